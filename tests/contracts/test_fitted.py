"""What every fitted method must do, whichever it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pe
from adapters.trained.fit import Fit, FittedMethod
from adapters.trained.noisy_mean import DPMERF
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.engine.execution import RunContext, run_recipe
from pe.engine.extend import extend_run
from pe.errors import APIError, PrivacyError, RecipeError
from pe.fit.trainer import Cache, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest, ReadsPublicSamples, VariationRequest
from pe.plugins.registry import load, plugins
from pe.privacy.accounting import epsilon
from pe.privacy.certificate import verify
from pe.privacy.ledger import Array, Ledger, MemoryStore
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release
from pe.recipe.schema import Recipe
from pe.store.run import purge
from tests.contracts.fitted import (
    CLASSES,
    COUNT,
    FITS,
    RELEASES,
    SIDE,
    fitting,
    make,
    model_of,
    records_of_fits,
    settings_of,
    terms,
)
from tests.evaluation.surfaces import compare_surfaces
from tests.evaluation.worlds import Listener

every = pytest.mark.parametrize("kind", FITS)
QUICK = ("dp_gaussian", "dp_merf", "dp_imgsyn", "dpdm", "dpgan", "privimage")
"""One of each kind of fit: their whole runs are in `make test`, those of the others in `make
test-slow`."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The last bits of a result on a CPU depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_fitted_method_is_held_to_this() -> None:
    classes = {kind: load("pe.adapters", kind) for kind in plugins("pe.adapters")}
    found = {
        kind
        for kind, one in classes.items()
        if isinstance(one, type) and issubclass(one, FittedMethod)
    }
    others = {
        kind: classes[kind].info.modality
        for kind in found
        if classes[kind].info.modality != "images"
    }
    assert found - others.keys() == set(FITS)
    assert others == {  # tests/adapters/trained/test_max_entropy.py, test_attributes.py
        "max_entropy": "table",
        "independent": "table",
        "fitted_chat": "texts",
        "fitted_causal_lm": "texts",
    }


@every
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_its_releases_are_known_by_name_and_take_the_whole_budget_and_replace_one_moves_them_twice_as_far(
    kind: str, relation: Relation
) -> None:
    planned = make(kind).plan_releases(terms(relation=relation))
    assert [one.name for one in planned] == RELEASES[kind]
    assert 0.999 * 20 < epsilon(planned, 1e-3) <= 20
    for one in planned:  # of the semantics, one count less and another more
        twice = 2 if one.name != "fit/semantics" else 2**0.5
        assert one.sensitivity == (twice if relation is Relation.REPLACE_ONE else 1)
        assert (one.relation, one.unit, one.mechanism) == (relation, "record", "discrete_gaussian")


class Down(BaseException):
    """The machine goes down."""


class Disk(MemoryStore):
    """What outlives the machine, which goes down in the draw after `left` others, or once the last
    is kept.
    """

    def __init__(self, planned: int) -> None:
        super().__init__()
        self.left, self._planned = 0, planned

    def keep(self, name: str, array: Array) -> None:
        if not self.left:
            raise Down
        super().keep(name, array)
        self.left -= 1
        if (
            all(one.array is not None for one in self.charges())
            and len(self.charges()) == self._planned
        ):
            raise Down

    def traces(self, name: str) -> bool:
        return False

    def is_drawing(self) -> bool:
        return any(one.array is None for one in self.charges())


@every
def test_broken_off_in_every_draw_it_ends_as_if_it_had_not_and_reads_records_only_to_draw(
    kind: str, tmp_path: Path
) -> None:
    api, names = make(kind), RELEASES[kind]
    disk, kept, folder = Disk(len(names)), Cache(tmp_path / "kept"), tmp_path / "model"
    folder.mkdir()

    class Guarded(PrivateRecords):
        def __getattribute__(self, name: str) -> Any:
            assert disk.is_drawing()
            return super().__getattribute__(name)

    def private() -> PrivateRecords:
        records = records_of_fits()
        return Guarded(records.samples, records.labels, records.units)

    for _ in range(len(names) + 1):
        with pytest.raises(Down):
            api.fit(fitting(api, folder, disk, private, cache=kept))
        disk.left = 1
    assert not list(folder.iterdir())
    api.fit(
        fitting(
            api,
            folder,
            disk,
            lambda: pytest.fail("all is drawn, and records were read"),
            cache=kept,
        )
    )
    assert {one.release.name: one.charges for one in disk.charges()} == dict.fromkeys(names, 1)
    assert {one.release for one in disk.charges()} == set(api.plan_releases(terms()))
    assert files_in(folder) == files_in(model_of(kind))


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@every
def test_what_it_cannot_answer_it_refuses(kind: str, tmp_path: Path) -> None:
    api, seeds = make(kind), np.zeros(1, dtype=np.uint64)
    with pytest.raises(APIError, match="is not fitted yet"):
        api.random_api(RandomRequest(CLASSES[:1], seeds))
    with pytest.raises(RecipeError):
        api.load(tmp_path)
    api.load(model_of(kind))
    with pytest.raises(RecipeError, match=r"fitted for the labels '0', .* but not for 'nine'"):
        api.random_api(RandomRequest(("nine",), seeds))
    if kind in ("dp_gaussian", "dp_merf", "dpgan"):
        parent = Images(np.zeros((1, SIDE, SIDE, 1), np.uint8))
        with pytest.raises(APIError, match="needs the parent's code"):
            api.variation_api(VariationRequest(parent, CLASSES[:1], Conditions(), seeds, 0.5))


@every
def test_a_unit_larger_than_a_record_is_refused_where_gradients_are_clipped(kind: str) -> None:
    if "fit/training/1" in RELEASES[kind]:
        with pytest.raises(PrivacyError, match="protects no 'patient'"):
            make(kind).plan_releases(terms(unit="patient"))
    else:
        assert make(kind).plan_releases(terms(unit="patient"))[0].unit == "patient"


@every
def test_its_trainings_are_forecast_with_their_blocks(kind: str) -> None:
    api = make(kind)
    trained = Counter(name.rpartition("/")[0] for name in RELEASES[kind] if name[-1].isdigit())
    parts = {one.part: one for one in api.dry_run(terms())}
    assert {name: one.blocks for name, one in parts.items() if one.blocks} == trained
    assert len(parts) - len(trained) == ("pretraining" in FITS[kind]) + len(
        FITS[kind].get("easy", ())
    )
    assert all(one.seconds > 0 and one.parameters > 0 for one in parts.values())
    assert api.dry_run(terms(), measured=False) == []


@pytest.mark.parametrize("kind", [kind for kind, settings in FITS.items() if "public" in settings])
def test_its_public_images_can_be_compared_with_the_records(kind: str, tmp_path: Path) -> None:
    names = np.array([f"{i}" for i in range(7)])
    np.savez(tmp_path / "public.npz", images=np.zeros((7, SIDE, SIDE, 1), np.uint8), labels=names)
    api = make(kind, {"public": str(tmp_path / "public.npz")})
    assert isinstance(api, ReadsPublicSamples)
    assert api.public_paths() == (tmp_path / "public.npz",)
    assert [image.shape for _, image in api.public_samples((SIDE, SIDE, 1), None)] == [
        (SIDE, SIDE, 1)
    ] * 7


def test_a_fit_without_a_plan_refuses_what_a_plan_does_and_charges_nothing(tmp_path: Path) -> None:
    planned = DPMERF().plan_releases(terms())
    ledger = Ledger(terms().budget, Relation.ADD_REMOVE, "record", planned, MemoryStore())
    with pytest.raises(RecipeError, match=r"`api\.batch` is 2, .* Set it to 5 or more"):
        DPMERF(batch=2).fit(
            Fitting(terms(), lambda: pytest.fail("records were read"), ledger, tmp_path)
        )
    assert not ledger.has_drawn(planned[0])


@pytest.mark.parametrize("is_late", [True, False])
def test_what_a_plan_does_not_know_of_is_not_released(is_late: bool, tmp_path: Path) -> None:
    """A method that declares when its plan has ended, or draws what it has not declared, is
    refused.
    """

    class Hasty(FittedMethod):
        def _fit(self, fit: Fit) -> None:
            release = fit.sum("small", share=0.5)
            fit.begin()
            release = fit.sum("more", share=0.5) if is_late else replace(release, name="fit/other")
            fit.sums(release, lambda image: image.ravel() / 255 / SIDE, (SIDE * SIDE,))

    api, store = Hasty(), MemoryStore()
    assert [one.name for one in api.plan_releases(terms())] == ["fit/small"]
    with pytest.raises(PrivacyError, match=r"before `fit\.begin\(\)`"):
        api.fit(fitting(api, tmp_path, store, lambda: pytest.fail("records were read")))
    assert not store.charges()


# Whole runs: with the releases of a fit held fixed, nothing that its run shows depends on the
# private records.


@pytest.fixture
def releases_held_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release is drawn as shipped, and replaced by what the first run of the test drew under
    its name.
    """
    release_as_shipped, first = Ledger.release, {}

    def release(ledger: Ledger, what: Release, draw: Callable[[Noise], np.ndarray]) -> np.ndarray:
        return release_as_shipped(
            ledger, what, lambda noise: first.setdefault(what.name, draw(noise))
        )

    monkeypatch.setattr(Ledger, "release", release)


def run_of(folder: Path, kind: str, chosen: list[int]) -> tuple[pe.Run, list[object]]:
    """A run on these of the records, which always lie in the same file, and all that it told."""
    path, records = folder.parent.parent / "private.npz", records_of_fits()
    path.with_name("private.npz.ledger.json").unlink(missing_ok=True)  # each world has its own
    np.savez(path, images=records.samples[chosen], labels=np.array(CLASSES)[records.labels[chosen]])
    shape = {"size": SIDE, "channels": 1, "classes": CLASSES, "declared_size": COUNT}
    content = {
        "private": {"kind": "npz", "path": path, **shape},
        "api": {"kind": kind, **settings_of(kind), "fit": {"budget_share": 0.8}},
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": 30, "delta": 1e-3},
        "evolution": {"iterations": 1, "population": 10, "lookahead": 0},
    }
    listener = Listener()
    run = run_recipe(Recipe.parse(content, "the test"), folder, RunContext(progress=listener))
    return run, [listener.told, run.guarantee | {"run": ""}]


ALL = list(range(COUNT))
OTHERS = 2 * [i for i in ALL if i % len(CLASSES) != 1]
"""Another number of records, and none of the second label."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in FITS]
)
@pytest.mark.usefixtures("releases_held_fixed")
def test_fit_and_votes_are_on_one_ledger_and_all_that_a_run_shows_is_the_same_for_other_records(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, shown = run_of(tmp_path / "a" / "run", kind, ALL)
    other, shown_too = run_of(tmp_path / "b" / "run", kind, OTHERS)
    assert (first.folder / "model" / "fitted.json").is_file()
    assert compare_surfaces(first.folder, other.folder) == []
    assert shown == shown_too
    assert capfd.readouterr() == ("", "")

    charges = {one["name"]: one["charges"] for one in first.guarantee["releases"]}
    assert charges == dict.fromkeys([*RELEASES[kind], "histogram/1"], 1)
    assert 29.95 < first.guarantee["epsilon"] <= 30
    covered = {one["file"] for one in first.guarantee["covered"]}
    assert {f"model/{name}" for name in files_in(first.folder / "model")} <= covered
    assert {f"releases/{name.replace('/', '-')}.npy" for name in RELEASES[kind]} <= covered
    assert verify(first.guarantee, first.folder) == []
    purge(first)
    assert np.load(extend_run(first.folder, 5, 0.7, RunContext()))["images"].shape == (
        5,
        SIDE,
        SIDE,
        1,
    )


@pytest.mark.usefixtures("releases_held_fixed")
def test_a_fit_that_tells_the_number_of_records_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_as_shipped = DPMERF.fit

    def telling(self: DPMERF, fitting: Fitting) -> None:
        fit_as_shipped(self, fitting)
        (fitting.folder / "count.json").write_text(json.dumps(len(fitting.private().samples)))

    monkeypatch.setattr(DPMERF, "fit", telling)
    first, _ = run_of(tmp_path / "a" / "run", "dp_merf", ALL)
    other, _ = run_of(tmp_path / "b" / "run", "dp_merf", OTHERS)
    assert "model/count.json" in compare_surfaces(first.folder, other.folder)
