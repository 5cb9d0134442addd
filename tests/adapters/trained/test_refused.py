"""What cannot be fitted is one sentence, before anything is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pe.engine.execution import RunContext, run_recipe
from pe.errors import PEError, RecipeError
from pe.privacy.ledger import Budget
from tests.adapters.diffusion.tiny import stable_diffusion
from tests.adapters.trained.diffusion.small import api, private_file, recipe
from tests.adapters.trained.finetune.brought import write_checkpoint
from tests.contracts.fitted import TRAINING, fitting, make, terms

EASY = {"kind": "central_images", "share": 0.2}
TEACHERS = "tests.adapters.trained.dp_imgsyn.teachers"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "central_images",
        {"subsets": 2},
        "`subsets` is 2, but with `rate: 1` all subsets are the same",
    ),
    ("dp_gaussian", {"public": "no_such_folder"}, "no folder with images at"),
    ("dp_gaussian", {"public": "nowhere.npz"}, r"there is no \.npz file at '.*nowhere\.npz'"),
    ("dp_merf", {"features": 2, "bandwidth": [1, 2]}, "too few for 2 bandwidths. Take at least 4"),
    (
        "dpdm",
        {"network": {"channels": [8, 8, 8, 8]}},
        "8×8 cannot be halved so often. Take fewer levels",
    ),
    ("privimage", {"public": "UNLABELLED"}, "has no labels, by which PrivImage selects"),
    ("privimage", {"semantics": 3}, "take 15 public labels, but the public set has 7. Take"),
    (
        "privimage",
        {"easy": [EASY | {"share": 0.9}]},
        r"have shares of ε that add up to 1\.1, which leaves DP-SGD",
    ),
    (
        "dp_feta",
        {"easy": [EASY, {"kind": "dp_merf", "share": 0.8}]},
        "have shares of ε that add up to 1, which leaves DP-SGD",
    ),
    ("dp_sad", {"teacher": {"share": 0}}, "`api.teacher.share` is 0 and `api.public` is missing"),
    (
        "dp_sad",
        {"teacher": {"share": 0}, "public": "UNLABELLED"},
        "have none named '0'. Name public labels as",
    ),
    (
        "dp_sad",
        {"teacher": TRAINING | {"share": 1e-6}},
        "the noise drowns even what all of them agree on",
    ),
    ("dp_imgsyn", {"moments_share": 1e-6}, "40 records add at most 1 each. Take a larger share"),
    (
        "dp_imgsyn",
        {"teacher": f"{TEACHERS}:with_spectral_norm"},
        "writes to '0.parametrizations.weight.0._u' when it",
    ),
    (
        "dp_imgsyn",
        {"teacher": f"{TEACHERS}:Counting"},
        "Counting'.* has another gradient for a record among others",
    ),
    ("finetune", {"model": "./nowhere"}, r"there is nothing at '\./nowhere'"),
    (
        "finetune",
        {"model": "small"},
        "makes images of 28×28×1, but the private images are 8×8×1. Set `private.size`",
    ),
    (
        "finetune",
        {"lora": {"targets": ["to_kk"]}},
        "lora.targets`: no layer .* ends in 'to_kk'; did you mean 'to_k'",
    ),
    (
        "finetune",
        {"classes": {"0": "Q"}},
        "no class named 'Q'",
    ),
    (
        "finetune",
        {"classes": {"em": "L"}},
        "`classes` names the label 'em', which the private records do not have",
    ),
    (
        "finetune",
        {"model": "PLAIN", "classes": {"0": "L"}},
        "has no classes",
    ),
    ("finetune", {"model": "SD"}, "`api.prompts` is missing: .* Write one for each label"),
    (
        "finetune",
        {"model": "SD", "prompts": {"0": "a 0"}},
        "prompts: there is none for the label '1'",
    ),
    (
        "finetune",
        {"model": "SD", "prompts": "a {label}"},
        "images whose sides 16 divides, .* private images are 8×8×1",
    ),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Public images and checkpoints that the table names in capitals."""
    folder = tmp_path_factory.mktemp("places")
    found = {name: folder / name for name in ("UNLABELLED", "PLAIN", "SD")}
    found["UNLABELLED"].mkdir()
    Image.fromarray(np.full((8, 8), 60, dtype=np.uint8)).save(found["UNLABELLED"] / "0.png")
    write_checkpoint(found["PLAIN"], classes=())
    stable_diffusion().save_pretrained(found["SD"])
    return {name: str(path) for name, path in found.items()}


@pytest.mark.parametrize(("kind", "changes", "sentence"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_cannot_be_fitted_is_one_sentence(
    kind: str, changes: dict[str, Any], sentence: str, places: dict[str, str]
) -> None:
    changes = {
        name: places.get(value, value) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    with pytest.raises(PEError, match=sentence) as raised:
        make(kind, changes).plan_releases(terms())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "own", "sentence"),
    [
        ("dpdm", {"budget": Budget(1e-3, 1e-9)}, "noise drowns even what all of them agree on"),
        ("dp_imgsyn", {"classes": ("all",)}, "needs two labels or more"),
        (
            "dp_gaussian",
            {"declared_size": 10, "budget": Budget(1, 1e-5)},
            "noise of 17 to the number of records, of",
        ),
        ("dp_gaussian", {"shape": (8, 10, 1)}, "glyphs, which are square"),
    ],
)
def test_terms_that_a_method_cannot_serve_are_refused(
    kind: str, own: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PEError, match=sentence):
        make(kind).plan_releases(terms(**own))


ONE = {
    "api": {"kind": "dp_merf", "fit": {"budget_share": 1}},
    "evolution": {"iterations": 2, "population": 20},
}
MUCH = {
    "api": {"kind": "dp_merf", "fit": {"budget_share": 1}},
    "evolution": {"iterations": 0, "population": 20, "estimate_label_sizes": 0.7},
}
FEW = {"iterations": 2, "population": 8, "degree": [0.5, 0.1], "lookahead": 0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"api": {"kind": "glyphs", "fit": {"budget_share": 0.5}}},
            "'glyphs' is not fitted on private records",
        ),
        (
            {"privacy": {"noise_multiplier": 3, "delta": 1e-5}},
            "leaves no budget to fit 'dpdm' with. Set .privacy.epsilon",
        ),
        ({"evolution": {"iterations": 2, "population": 20}}, "Set .api.fit.budget_share"),
        (ONE, "leaves no budget for votes"),
        (MUCH, "cost ε = .* together, but the run has"),
        ({"api": api("dpdm", device="cuda:99")}, "`device` is 'cuda:99', but this machine has"),
        (
            {
                "api": api("dpdm", sampling={"steps": 5}) | {"fit": {"budget_share": 0.5}},
                "evolution": FEW,
            },
            "least 0.2",
        ),
    ],
)
def test_a_recipe_at_odds_with_its_fit_is_one_sentence_before_the_run_exists(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path = private_file(tmp_path)
    with pytest.raises(RecipeError, match=sentence) as raised:
        run_recipe(recipe(path, **changes), tmp_path / "run", RunContext())
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]  # neither a run nor an entry in the data set's ledger


def test_fewer_public_images_than_companions_are_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    model = make("dp_imgsyn", {"alignment": {"companions": 50}})
    with pytest.raises(RecipeError, match="companions` is 50, but the public set has 42 images"):
        model.fit(fitting(model, tmp_path, None, lambda: pytest.fail("records were read")))


def test_memory_that_does_not_suffice_for_public_images_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = make("pdp_diffusion", {"pretraining": {"steps": 1, "batch": 8}})
    fit = fitting(model, tmp_path)
    monkeypatch.setattr(torch.Tensor, "backward", refused)
    with pytest.raises(RecipeError, match="Set `batch: 4`"):
        model.fit(fit)
