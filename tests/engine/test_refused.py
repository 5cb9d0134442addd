"""What a run refuses: a start, before anything is written or asked; and answers, before a
release.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pe
from adapters.trained.noisy_mean import DPMERF
from pe.errors import ContractError, PluginError, PrivateDataError, RecipeError
from pe.plugins import devices
from pe.store.writer import read_journal
from tests.engine.small import SETTINGS, but, evolve
from tests.generators import Mean, Shades

SHOWN = []
BOOK = {"dark": "a cave"}


def centred(samples):
    """Looks at its block."""
    SHOWN.append(samples.pixels.tobytes())
    vectors = (
        samples.pixels.reshape(len(samples), -1).mean(axis=1, keepdims=True).astype(np.float32)
    )
    return vectors - vectors.mean(axis=0)


def as_they_are(samples):
    """Takes pixels in whatever size."""
    return samples.pixels.reshape(len(samples), -1).astype(np.float32)


def of_books(labels, seeds):
    """Draws a condition of each new sample from a book that lacks a label."""
    return pe.Conditions({"prompt": np.array([BOOK[label] for label in labels])})


def leave_nothing(degree, iteration=1):
    raise RecipeError(f"Degree {degree:g} leaves nothing.")


def cut_off(private):
    (private.path.parent / "scans").mkdir()
    (private.path.parent / "scans" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    return pe.ImageFolder(private.path.parent / "scans", size=4)


ELSEWHERE = but(Shades(), info=pe.PluginInfo(hosts=("a.invalid",)))
LARGER = {"api": pe.api("glyphs", size=8), "embedding": but(Mean(), embed=as_they_are)}
REFUSED = [
    (
        {"api": pe.api("glyphs", sise=4)},
        RecipeError,
        "api 'glyphs': unknown key 'sise'; did you mean 'size'",
    ),
    (
        {"api": DPMERF()},
        PluginError,
        r"DPMERF is fitted on the private records.* entry point of pe\.adapters",
    ),
    (
        {"api": but(Shades(), draw_conditions=of_books)},
        RecipeError,
        "draw conditions for .* dark, light: .* 'light'",
    ),
    (
        {"api": but(Shades(), describe_degree=leave_nothing)},
        RecipeError,
        r"Degree 0\.5 leaves nothing",
    ),
    (
        {"api": ELSEWHERE},
        RecipeError,
        r"price of a\.invalid is not stated. Set `api\.price` .* or `limits\.max_im",
    ),
    (
        {"api": "scans"},
        PluginError,
        r"api is 'scans', a text, which lacks capabilities, random_api, var.*: give pe\.a",
    ),
    ({"api": Shades}, PluginError, r"api is the class Shades: pass an object of it, Shades\(…\)"),
    (
        {"embedding": len},
        PluginError,
        "embedding is an object of the class builtin.*, which lacks batch_size, embed",
    ),
    (
        {"embedding": but(Mean(), embed=lambda _: np.zeros((16, 2)))},
        ContractError,
        r"Mean\.embed returned float64",
    ),
    (
        {"embedding": but(Mean(), embed=centred)},
        ContractError,
        "gives a sample another vector when the others",
    ),
    (
        LARGER,
        ContractError,
        r"embed gives 16 numbers for a private sample of 4×4×1 and 64 for a generated one",
    ),
    (
        {"private": lambda given: replace(given, ledger_file=Path("withheld"))},
        RecipeError,
        "ledger_file. is 'withheld'",
    ),
    ({"private": cut_off}, PrivateDataError, r"one\.png"),
    (
        {"private": lambda _: "scans"},
        RecipeError,
        r"scans does not exist: name a folder of images or texts",
    ),
]


@pytest.mark.parametrize(
    ("changes", "error", "sentence"), REFUSED, ids=[sentence for *_, sentence in REFUSED]
)
def test_a_start_is_refused_before_anything_is_written_or_asked(
    private, tmp_path, changes, error, sentence
):
    source = changes.get("private", lambda given: given)(private)
    before, settings = sorted(tmp_path.iterdir()), {"api": Shades()} | changes
    settings.pop("private", None)
    with pytest.raises(error, match=sentence) as refused:
        evolve(source, tmp_path / "run", **settings)
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before
    assert getattr(settings["api"], "random_requests", []) == []
    with np.load(private.path) as archive:  # nor is a record shown to an embedding that is refused
        assert not any(image.tobytes() in block for image in archive["images"] for block in SHOWN)


def test_a_run_that_would_leave_gpus_idle_is_refused_before_anything_is_drawn(
    spots, tmp_path, monkeypatch
):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "he driver has 1 GPU, and torch .* sees none: .* evolution.neighbor_search: faiss"
    with pytest.raises(RecipeError, match=said):
        evolve(spots, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for changes, refused in (
        ({}, True),
        ({"neighbor_search": "faiss"}, False),
        ({"iterations": 0}, False),
    ):
        told = " ".join(pe.plan(spots, Shades(), embedding=Mean(), **SETTINGS | changes).warnings)
        assert bool(re.search(f"A run would not start. T{said}", told)) == refused


def makes(sample, shape=None):
    """A generator whose samples are all like this one."""
    api = Shades(max_chunk=5)

    def answer(request):
        api.random_requests.append(request)
        return pe.Answer(sample.take(np.zeros(len(request), np.int64)))

    return but(
        api, info=pe.PluginInfo(hosts=(), shape=shape), random_api=answer, variation_api=answer
    )


def image(*shape):
    return pe.Images(np.zeros((1, *shape), np.uint8))


@pytest.mark.parametrize(
    ("sample", "shape", "sentence"),
    [
        (
            image(2, 2, 1),
            None,
            r"made images of 2×2×1 \(.*\), but images of 4×4×1 \(.*\) are declared. Have it",
        ),
        (image(4, 4, 1), (8, 8, 1), r"made images of 4×4×1 .* but images of 8×8×1 "),
        (pe.Texts.of(["a text"], 20), None, r"made texts, but images are declared"),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"initial_variations": 3}])
def test_what_is_not_as_declared_is_refused_before_a_release(
    private, tmp_path, sample, shape, sentence, changes
):
    api = makes(sample, shape)
    with pytest.raises(ContractError, match=sentence):
        evolve(private, tmp_path / "run", api, **changes)
    assert api.asked <= 10
    with read_journal(pe.Run.open(tmp_path / "run")) as journal:
        assert journal.charges() == []
        assert journal.totals().answers == 0
    assert (
        len(
            evolve(
                private, tmp_path / "run", makes(image(4, 4, 1)), resume=True, **changes
            ).synthetic
        )
        == 20
    )
