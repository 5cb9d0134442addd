"""Tables by max-entropy weights: what a record can change, what a crash leaves, and what agrees
with the counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import pe
from adapters.trained.counts import GRID, Groups, nearest_cells, nearest_rows, noisy_counts
from adapters.trained.dp_sgd.training import peak_memory
from adapters.trained.max_entropy import CANDIDATES, Independent, MaxEntropy, max_entropy
from adapters.trained.ranges import Bins, split
from pe.data.columns import Columns
from pe.data.rows import Rows
from pe.errors import RecipeError
from pe.fit.trainer import Cache, FitTerms, PrivateRecords
from pe.planning.releases import check_fit
from pe.plugins.protocols import RandomRequest
from pe.plugins.specs import construct
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget, MemoryStore
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release
from pe.private.tables import RowTable
from pe.recipe.schema import Recipe
from tests.contracts.fitted import fitting
from tests.contracts.test_fitted import Disk, Down, files_in
from tests.test_modality import invoke, stopped

DECLARED: dict[str, Any] = {
    "a": {"kind": "integer", "min": 0, "max": 5000},
    "b": {"kind": "real", "min": 0, "max": 1, "unit": 0.01, "missing": True},
    "c": {"kind": "category", "values": ["x", "y", "z"], "other": True},
}
COLUMNS = Columns(DECLARED)
NAMES = [
    "fit/labels",
    "fit/values/1",
    "fit/values/2",
    "fit/values/3",
    "fit/pairs",
    *(f"fit/votes/{i}" for i in range(1, 9)),
]


def terms(**changes: Any) -> FitTerms:
    fields = {
        "classes": ("0", "1"),
        "shape": (COLUMNS.width,),
        "declared_size": 80,
        "relation": Relation.ADD_REMOVE,
    }
    return FitTerms(**{**fields, "unit": "record", "budget": Budget(20, 1e-3), **changes})


def records_of(codes: np.ndarray, units: np.ndarray | None = None) -> PrivateRecords:
    labels = np.arange(len(codes), dtype=np.int32) % 2
    return PrivateRecords(
        COLUMNS.rows(codes).array, labels, np.arange(len(codes)) if units is None else units
    )


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_its_releases_are_known_beforehand_and_take_the_whole_budget(relation: Relation) -> None:
    planned = MaxEntropy(columns=DECLARED).plan_releases(terms(relation=relation, unit="patient"))
    assert [one.name for one in planned] == NAMES
    assert 0.999 * 20 < epsilon(planned, 1e-3) <= 20
    assert {one.sensitivity for one in planned} == {
        1.0 if relation is Relation.ADD_REMOVE else 2**0.5
    }
    assert {one.unit for one in planned} == {"patient"}


def test_the_baseline_counts_values_alone_when_a_recipe_names_it_too() -> None:
    made = construct("pe.adapters", "independent", {"columns": DECLARED})
    names = [one.name for one in made.plan_releases(terms())]
    assert names == [one for one in NAMES if not one.startswith(("fit/pairs", "fit/votes"))]
    for key, value in (("pairs", True), ("rounds", 3)):
        with pytest.raises(RecipeError, match=f"unknown key '{key}'"):
            construct("pe.adapters", "independent", {"columns": DECLARED, key: value})


def test_nearest_rows_are_not_asked_for_where_most_columns_are_categories() -> None:
    columns = DECLARED | {"d": DECLARED["c"], "e": DECLARED["c"]}
    assert [one.name for one in MaxEntropy(columns=columns).plan_releases(terms())] == NAMES[:5]
    assert [one.name for one in Independent(columns=columns).plan_releases(terms())] == NAMES[:4]


class Silent(Noise):
    """No noise, so that a sum shows what a unit adds."""

    def discrete_gaussian(self, shape: Any, scale: float) -> Any:
        return np.zeros(shape, np.int64)


CODES = st.tuples(st.integers(0, 5000), st.integers(0, 101), st.integers(0, 4))


def counts_of(codes: np.ndarray, units: np.ndarray, what: str) -> np.ndarray:
    """The sums of one release without noise, in units of what a record may change."""
    bins = Bins.of(COLUMNS)
    some = np.random.default_rng(0).integers(0, [5001, 101, 4], (CANDIDATES, 3))
    groups = Groups.of(COLUMNS, bins, [np.ones(len(edges) - 1) for edges in bins.edges])
    cells, number, norm = {
        "values": (bins.cells([0, 1, 2]), 2 * int(bins.starts[-1]), 3**0.5),
        "pairs": (groups.cells, 2 * groups.number, 3**0.5),
        "votes": (nearest_cells(COLUMNS, [some, some]), 2 * CANDIDATES, 1.0),
    }[what]
    release = Release(
        "fit/a", "discrete_gaussian", 1.0, 1.0, Relation.ADD_REMOVE, "record", grid=GRID
    )
    return (
        noisy_counts(COLUMNS, records_of(codes, units), cells, number, norm, release, Silent())
        / GRID
    )


@pytest.mark.parametrize("what", ["values", "pairs", "votes"])
@given(
    st.lists(CODES, min_size=1, max_size=4),
    st.lists(CODES, min_size=1, max_size=4),
    st.lists(CODES, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_a_unit_moves_the_counts_by_one_at_most_and_another_in_its_place_by_root_two(
    what: str, mine: list[Any], yours: list[Any], others: list[Any]
) -> None:
    def counts(rows: list[Any], one_unit: bool = True) -> np.ndarray:
        codes = np.array([*others, *rows]).reshape(-1, 3)
        units = np.arange(len(codes))
        units[len(others) :] = units[-1] if one_unit and len(codes) else units[len(others) :]
        return counts_of(codes, units, what)

    assert np.linalg.norm(counts(mine) - counts([])) <= 1
    assert np.linalg.norm(counts(mine) - counts(yours)) <= 2**0.5
    same = [mine[0]] * 4  # the broken version, which takes each record for a unit of its own
    assert np.linalg.norm(counts(same, one_unit=False) - counts([])) > 2


def test_a_vote_is_for_the_nearest_candidate_whatever_is_beside_it() -> None:
    rng = np.random.default_rng(0)
    codes, candidates = (rng.integers(0, [5002, 102, 5], (n, 3)) for n in (5000, 50))
    rows, centres = (np.rint(COLUMNS.vectors(one, 1023, 341)) for one in (codes, candidates))
    distances = np.square(rows[:, None] - centres[None]).sum(axis=2)
    assert (nearest_rows(rows, centres) == distances.argmin(axis=1)).all()
    assert (nearest_rows(rows[7:9], centres) == nearest_rows(rows, centres)[7:9]).all()


def test_broken_off_in_every_draw_it_ends_as_if_it_had_not(tmp_path: Path) -> None:
    api = MaxEntropy(columns=DECLARED)
    records = records_of(np.random.default_rng(0).integers(0, [5001, 101, 4], (80, 3)))
    whole, folder = tmp_path / "whole", tmp_path / "model"
    whole.mkdir(), folder.mkdir()
    api.fit(fitting(api, whole, own=terms(), private=lambda: records))
    disk, kept = Disk(len(NAMES)), Cache(tmp_path / "kept")
    disk.left = 5
    for _ in range(9):
        with pytest.raises(Down):
            api.fit(fitting(api, folder, disk, lambda: records, terms(), cache=kept))
        disk.left = 1
    api.fit(
        fitting(api, folder, disk, lambda: pytest.fail("records were read"), terms(), cache=kept)
    )
    assert {one.release.name: one.charges for one in disk.charges()} == dict.fromkeys(NAMES, 1)
    assert files_in(folder) == files_in(whole)


@pytest.mark.parametrize("name", ["candidates-1", "held"])
def test_counts_that_are_stored_are_of_the_candidates_and_ranges_that_were_kept(
    tmp_path: Path, name: str
) -> None:
    api, kept, store = MaxEntropy(columns=DECLARED), Cache(tmp_path / "kept"), MemoryStore()
    records = records_of(np.random.default_rng(0).integers(0, [5001, 101, 4], (80, 3)))

    def model() -> bytes:
        api.fit(fitting(api, tmp_path, store, lambda: records, terms(), cache=kept))
        return (tmp_path / "pool.npz").read_bytes()

    first = model()
    assert model() == first
    file = tmp_path / "kept" / f"{name}.npz"
    with np.load(file) as arrays:
        others = [
            one[::-1] if name == "candidates-1" else np.maximum(one - [0, 1], 1)
            for one in arrays.values()
        ]
    np.savez(file, *others)
    assert model() != first


def test_what_is_declared_a_hundred_times_too_wide_is_narrowed_by_the_counts(
    tmp_path: Path,
) -> None:
    wide: dict[str, Any] = {
        "x": {"kind": "integer", "min": -10_000, "max": 10_000, "missing": True},
        "code": {"kind": "category", "values": [f"K{i}" for i in range(300)]},
    }
    api, numbers = (
        MaxEntropy(columns=wide),
        np.random.default_rng(0).normal(5000, 50, 3000).astype(int),
    )
    places = np.arange(3000)
    codes = np.stack(
        [np.where(places % 10 == 0, 20_001, numbers + 10_000), 297 + places % 3], axis=1
    )
    whole = PrivateRecords(Columns(wide).rows(codes).array, places.astype(np.int32) % 2, places)
    planned = api.plan_releases(terms())
    api.fit(fitting(api, tmp_path, own=terms(budget=Budget(1, 1e-5)), private=lambda: whole))
    api.load(tmp_path)
    assert api.plan_releases(terms()) == planned  # by the columns as declared, not as narrowed
    request = RandomRequest(labels=("0", "1") * 2000, seeds=np.arange(4000, dtype=np.uint64))
    rows = api.random_api(request).samples.records
    assert np.mean([row["x"] is None for row in rows]) == pytest.approx(0.1, abs=0.03)
    assert np.mean([row["code"] in ("K297", "K298", "K299") for row in rows]) > 0.9
    numbers = np.array([row["x"] for row in rows if row["x"] is not None])
    assert 4000 < numbers.min() < 5000 < numbers.max() < 6000
    assert numbers.std() < 150


MEASURED: dict[str, Any] = {
    "age": {"kind": "integer", "min": 18, "max": 90},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "weight": {"kind": "real", "min": 30, "max": 200, "unit": 0.1, "missing": True},
    "cost": {"kind": "real", "min": 0, "max": 100_000, "unit": 0.01},
    "since": {"kind": "date", "min": "2000-01-01", "max": "2020-12-31"},
}
REALS: dict[str, Any] = {
    f"x{i}": {"kind": "real", "min": -1, "max": 1, "unit": 0.001} for i in range(3)
}
DIGITS: dict[str, Any] = {f"v{i}": {"kind": "integer", "min": 0, "max": 9} for i in range(12)}


@pytest.mark.parametrize(
    ("declared", "pairs", "rounds", "epsilon", "least"),
    [
        (MEASURED, True, 1, 4.0, 0.999),
        (MEASURED, False, 0, 1.0, 0.999),
        (REALS, False, 0, 4.0, 0.999),
        (DIGITS, True, 0, 1.0, 0.94),
    ],
    ids=["mixed", "mixed, alone", "reals, alone", "digits"],
)
def test_where_all_private_rows_differ_the_synthetic_ones_do(
    tmp_path: Path, declared: dict[str, Any], pairs: bool, rounds: int, epsilon: float, least: float
) -> None:
    """6,000 rows drawn by chance among the 20,000 of a label would hold 840 copies."""
    columns, rng = Columns(declared), np.random.default_rng(0)
    codes = (rng.beta(2, 3, (3000, len(columns))) * columns.sizes).astype(np.int64)
    records = columns.rows(codes).array
    assert len(np.unique(records)) == 3000
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(records))
    private = RowTable(tmp_path / "t.jsonl", columns=declared, declared_size=3000)
    api = pe.api("max_entropy", pairs=pairs, rounds=rounds)
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "population": 6000,
        "iterations": 0,
    }
    made = pe.evolve(private, api, out=tmp_path / "run", **settings).synthetic.samples
    assert len(np.unique(made.array)) > least * 6000
    assert isinstance(made, Rows)
    assert np.abs(columns.codes(made).mean(axis=0) / codes.mean(axis=0) - 1).max() < 0.25


def test_few_combinations_stay_few_and_keep_their_shares(tmp_path: Path) -> None:
    declared: dict[str, Any] = {
        "a": {"kind": "boolean"},
        "b": {"kind": "ordinal", "values": ["lo", "mid", "hi"]},
    }
    columns, places = Columns(declared), np.arange(3000)
    codes = np.stack([places % 2, places % 3], axis=1)
    records = PrivateRecords(columns.rows(codes).array, np.zeros(3000, np.int32), places)
    api = MaxEntropy(columns=declared)
    own = terms(classes=("0",), shape=(columns.width,), declared_size=3000, budget=Budget(4, 1e-5))
    api.fit(fitting(api, tmp_path, own=own, private=lambda: records))
    api.load(tmp_path)
    made = api.random_api(
        RandomRequest(labels=("0",) * 6000, seeds=np.arange(6000, dtype=np.uint64))
    )
    _, counts = np.unique(made.samples.array, return_counts=True)
    assert counts.tolist() == pytest.approx([1000] * 6, rel=0.2)


def memory_of_fits(declared: dict[str, Any], rounds: int, folder: Path) -> tuple[int, list[int]]:
    """The bytes that are foretold for a fit, and those that each of three fits takes."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("adapters.trained.max_entropy.POOL", 4000)
    columns = Columns(declared)
    codes = np.random.default_rng(0).integers(0, columns.sizes, (500, len(columns)))
    records = PrivateRecords(columns.rows(codes).array, np.zeros(500, np.int32), np.arange(500))
    own = terms(classes=("0",), shape=(columns.width,), declared_size=500)
    api = MaxEntropy(columns=declared, rounds=rounds)
    (foretold,) = api.dry_run(own)
    peaks = []
    for name in ("first", "second", "third"):
        (folder / name).mkdir()
        fit = fitting(api, folder / name, own=own, private=lambda: records)
        peaks.append(peak_memory(torch.device("cpu"), lambda fit=fit: api.fit(fit)))
    return foretold.memory, peaks


@pytest.mark.parametrize(("count", "rounds"), [(30, 0), (4, 2)], ids=["pairs", "many values"])
def test_a_fit_takes_the_memory_that_is_foretold(tmp_path: Path, count: int, rounds: int) -> None:
    """In a process of its own: what other tests left behind would count, too."""
    declared: dict[str, Any] = {
        f"n{i}": {"kind": "integer", "min": 0, "max": 9} for i in range(count)
    }
    if rounds:
        declared["code"] = {"kind": "category", "values": [f"K{i}" for i in range(3000)]}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        foretold, peaks = pool.submit(memory_of_fits, declared, rounds, tmp_path).result()
    # The first fit reads pages of libraries, too.
    assert 0.5 < min(peaks[1:]) / foretold < 1.2


def wide_table(folder: Path, columns: dict[str, Any], **api: Any) -> Path:
    content = {
        "private": {"kind": "table", "path": "t.csv", "columns": columns, "declared_size": 500},
        "api": {"kind": "max_entropy", **api},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    (folder / "t.csv").write_text(
        ",".join(columns) + "\n" + (",".join("1" for _ in columns) + "\n") * 9
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


DIGIT: dict[str, Any] = {"kind": "integer", "min": 0, "max": 9}
WIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "many columns": ({f"v{i}": DIGIT for i in range(3000)}, {}),
    "many columns, and no votes": ({f"v{i}": DIGIT for i in range(3000)}, {"rounds": 0}),
    "many values": (
        {f"v{i}": DIGIT for i in range(9)} | {"c": {"kind": "category", "values": [*range(10**5)]}},
        {},
    ),
}


@pytest.mark.parametrize(("columns", "api"), [*WIDE.values()][:2], ids=[*WIDE][:2])
def test_a_table_too_wide_for_the_machine_is_refused_before_anything_is_released(
    tmp_path: Path, columns: dict[str, Any], api: dict[str, Any]
) -> None:
    recipe = wide_table(tmp_path, columns, **api)
    for words in (("plan", recipe), ("run", recipe, "--out", tmp_path / "run")):
        said = stopped(*words)
        assert "The fit of 3,000 columns (4,498,500 pairs; labels: 1) takes about 5," in said
        assert "GB are free here: declare fewer columns" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "t.csv"]


def test_a_category_of_very_many_values_is_refused_where_rows_are_compared() -> None:
    columns, api = WIDE["many values"]
    with pytest.raises(
        RecipeError, match=r"The fit of 10 columns .*declare fewer columns, values or labels"
    ):
        MaxEntropy(columns=columns, **api).dry_run(terms(classes=tuple("abcdefghij")))
    assert MaxEntropy(columns=columns, rounds=0).dry_run(terms())[0].memory < 2**30


def test_a_process_that_may_take_less_memory_than_the_machine_has_is_told_so(
    tmp_path: Path,
) -> None:
    """`ulimit -v` bounds it, as a cluster's scheduler does."""
    recipe = wide_table(tmp_path, {f"v{i}": DIGIT for i in range(90)})
    program = (
        f"from pe.cli.main import main; import sys; sys.argv = ['pe', 'run', '{recipe}', '--out', "
        "'run']; main()"
    )
    words = ["bash", "-c", 'ulimit -v 5000000; exec "$@"', "-", sys.executable, "-c", program]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 2
    assert (
        "The fit of 90 columns (4,005 pairs; labels: 1) takes about 5.4 GB of memory, but 4."
        in told.stderr
    )
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "t.csv.ledger.json").exists()


def test_a_plan_says_what_memory_and_time_a_fit_takes(tmp_path: Path) -> None:
    recipe = wide_table(tmp_path, {f"v{i}": DIGIT for i in range(40)})
    assert "weighing rows: 12 steps of 20,000 parameters in about" in invoke("plan", recipe)
    (run,) = json.loads(invoke("plan", recipe, "--json"))["dry_run"]
    assert 0.9e9 < run["memory"] < 1.3e9
    assert 5 < run["seconds"] < 100


def test_images_that_do_not_fit_into_memory_are_not_fitted() -> None:
    content = {
        "private": {"kind": "folder", "path": "scans", "size": 1024, "declared_size": 10**8},
        "api": {"kind": "central_images"},
        "privacy": {"epsilon": 1, "delta": 1e-10},
        "evolution": {"iterations": 0, "population": 10},
    }
    with pytest.raises(
        RecipeError, match=r"To hold all 100,000,000 private images .* takes about 629,145\.6 GB"
    ):
        check_fit(Recipe.parse(content, "the test"))


def test_weights_agree_with_the_counts_and_splits_are_never_below_zero() -> None:
    from scipy.sparse import csr_array

    matrix = csr_array(np.repeat(np.eye(4), 25, axis=1))
    weights = max_entropy(matrix, np.array([10.0, 20, 30, 40]), np.full(4, 1e-2), 100.0)
    assert weights.sum() == pytest.approx(100)
    assert matrix @ weights == pytest.approx([10, 20, 30, 40], abs=0.1)
    parts = split(np.array([[5.0, -3, 90], [0, 50, -9]]), np.array([92.0, 41.0]), 2.0)
    assert parts.min() >= 0
    assert parts.sum(axis=1) == pytest.approx([92, 41])


def test_a_parity_of_numbers_which_no_pair_tells_is_learnt(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.uniform(-1, 1, (4000, 3)).round(2)
    labels = np.where((numbers > 0).sum(axis=1) % 2, "odd", "even")
    lines = [",".join(map(str, [*row, label])) for row, label in zip(numbers, labels, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["p,q,r,parity", *lines]))
    column = {"kind": "real", "min": -1, "max": 1, "unit": 0.01}
    private = RowTable(
        tmp_path / "a.csv",
        columns=dict.fromkeys("pqr", column),
        label_column="parity",
        classes=["odd", "even"],
        declared_size=4000,
    )
    run = pe.evolve(private, pe.api("max_entropy"), epsilon=4.0, delta=1e-5, out=tmp_path / "run")
    rows = np.array([list(row.values()) for row in run.synthetic.samples.records])  # type: ignore[attr-defined]
    parity = np.where((rows > 0).sum(axis=1) % 2, 0, 1)
    assert (parity == run.synthetic.labels).mean() > 0.8
    assert 3.5 < run.guarantee["epsilon"] <= 4
