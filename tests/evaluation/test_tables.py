"""Tables are evaluated by the shares of their values; truths that are known come out."""

import json

import numpy as np
import pytest

import pe
from pe.data.columns import Columns, cramers_v
from pe.errors import RecipeError
from pe.evaluation.methods import are_repeated
from pe.evaluation.metrics import pairs_file
from pe.evaluation.sets import Notes, read_real
from pe.evaluation.tables import compare_tables, total_variation
from pe.private.tables import RowTable
from tests.evaluation.conftest import evaluate


def hanging_together(seed, count):
    """Bins of three columns, of which the second and the third follow from the first."""
    first = np.random.default_rng(seed).integers(0, 100, count)
    return np.stack([first * 16 // 100, first * 12 // 100, first % 3], axis=1)


def test_real_rows_are_near_and_columns_that_were_drawn_apart_lose_their_association():
    one, other = hanging_together(0, 4000), hanging_together(1, 4000)
    apart = np.random.default_rng(2).permuted(other, axis=0)
    result = compare_tables({"real": other, "same": one, "apart": apart}, one, ["a", "b", "c"])
    real, same, apart = result["sets"].values()
    assert result["rows"] == 4000
    assert (same["one_way"], same["two_way"], same["three_way"], same["association"]) == (
        0,
        0,
        0,
        0,
    )
    assert max(real["one_way"], real["two_way"], real["association"]) < 0.05
    assert apart["one_way"] == real["one_way"]
    assert apart["two_way"] > 5 * real["two_way"]
    assert apart["association"] > 0.3
    assert apart["pair"] == ["a", "b"]


def test_measures_are_those_of_their_definitions():
    ours, theirs = np.array([[0, 0], [0, 1], [1, 1], [1, 1]]), np.array([[0, 0], [1, 1]])
    assert total_variation(ours, theirs) == pytest.approx(0.25)
    assert total_variation(ours[:, :1], theirs[:, :1]) == 0
    assert cramers_v(*np.tile(theirs, (50, 1)).T) == 1
    assert cramers_v(*np.tile(ours, (5000, 1)).T) == pytest.approx(1 / np.sqrt(3), abs=1e-3)


def table(path, seed, count, values=101):
    """Rows whose label, is, says whether `a` is above the middle."""
    a, b = np.random.default_rng(seed).integers(0, values, (2, count))
    path.write_text(
        "a,b,is\n"
        + "".join(
            f"{x},{y},{'hi' if 2 * x > values else 'lo'}\n" for x, y in zip(a, b, strict=True)
        )
    )
    return path


@pytest.mark.parametrize("values", [101, 3])
def test_a_run_over_a_table_is_measured_whatever_rows_are_equal_by_chance(tmp_path, values):
    one = {"kind": "integer", "min": 0, "max": values - 1}
    private = RowTable(
        table(tmp_path / "private.csv", 0, 200, values),
        columns={"a": one, "b": one},
        label_column="is",
        classes=["lo", "hi"],
    )
    terms = {"epsilon": 50.0, "delta": 1e-3, "population": 100, "iterations": 2, "degree": 0.2}
    run = pe.evolve(private, pe.api("mutate"), out=tmp_path / "run", **terms)
    test = table(tmp_path / "test.csv", 1, 100, values)
    given = {"metrics": None, "api": None, "embedding": None}
    result = evaluate(run, test, **given)
    judgement = result["judgement"]
    places = {name: one["place"] for name, one in judgement["trained"].items()}
    assert judgement["measure"] == "AUC"
    assert places["real"]["value"] > 0.9
    assert places["synthetic"]["value"] >= places["unevolved"]["value"]
    assert {one["column"] for one in judgement["columns"]} == {"a", "b"}
    assert "of 10" in dict(judgement["lines"])["analyse"]
    assert result["table"]["sets"].keys() == {"synthetic", "unevolved", "real"}
    assert result["table"]["sets"]["real"]["columns"].keys() == {"a", "b", "(label)"}
    assert result["memorisation"]["warnings"] == []
    assert result["test"]["images"] > 90
    pairs = json.loads((run.folder / pairs_file("json")).read_text())
    assert json.loads(pairs[0]["private"]).keys() == {"a", "b"}
    rows = test.read_text().splitlines()
    test.write_text(
        "\n".join(
            [rows[0], *(f"{row.partition(',')[0]}.5,{row.partition(',')[2]}" for row in rows[1:])]
        )
    )
    with pytest.raises(
        RecipeError,
        match=r"test set .* does not fit the run: Column 'a': 100 cells cannot be read\.",
    ):
        evaluate(run, test, **given)


@pytest.mark.parametrize("odd", [["7.5", "x"], ["NA", "1,5"]])
def test_test_rows_that_cannot_be_read_are_told(tmp_path, odd):
    one = {"kind": "integer", "min": 0, "max": 100}
    source = RowTable(
        table(tmp_path / "test.csv", 0, 60),
        columns={"a": one, "b": one},
        label_column="is",
        classes=["lo", "hi"],
        on_bad_record="skip",
    )
    with (tmp_path / "test.csv").open("a") as file:
        file.writelines(f'"{cell}",3,lo\n' for cell in odd)
    notes = Notes(pe.Progress())
    assert len(read_real(source, "test set", ("lo", "hi"), notes).content) == 60
    (told,) = notes.sentences
    assert told.startswith(
        "2 rows of the test set cannot be read and are left out; the first: Row 61 of "
    )


def test_rows_that_more_than_chance_has_put_into_both_sets_are_left_out():
    columns = Columns(
        {
            "a": {"kind": "integer", "min": 0, "max": 99},
            "b": {"kind": "integer", "min": 0, "max": 99},
        }
    )
    rng = np.random.default_rng(0)
    one, other = (columns.rows(rng.integers(0, 100, (300, 2))) for _ in range(2))
    both = type(one)(np.concatenate([one.array[:30], other.array]))
    assert not are_repeated(other, one).any()
    assert are_repeated(both, one)[:30].all()
