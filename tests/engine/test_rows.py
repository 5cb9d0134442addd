"""A run over a table: what a record holds beyond its declared columns reaches nothing shareable,
and no message.
"""

import pytest

from pe.engine.execution import RunContext, run_recipe
from pe.errors import PrivateDataError
from pe.planning.forecast import forecast
from pe.planning.parts import set_up_generator
from pe.private.tables import RowTable
from pe.recipe.schema import Recipe
from tests.durability.driver import SameNoise
from tests.engine.small import Told

COLUMNS = {
    "age": {"kind": "integer", "min": 0, "max": 110},
    "dose": {"kind": "real", "min": 0, "max": 3, "unit": 0.5, "missing": True},
    "sex": {"kind": "category", "values": ["f", "m"], "other": True},
    "grade": {"kind": "ordinal", "values": ["I", "II"], "missing": True},
    "seen": {"kind": "date", "min": "2020-01-01", "max": "2020-12-31", "missing": True},
    "fever": {"kind": "boolean", "missing": True},
}
DECLARED = "110,,other,,2020-12-31,,home"
HOSTILE = [
    "98765,,other,,2020-12-31,,home",  # an extreme
    "110,,zebras,,2020-12-31,,home",  # a category
    "110,,other,,2987-06-05,,home",  # a date out of range
]


def start(place, last, on_bad_record="skip"):
    """Run over a table whose last row is given; return the shareable files, what was told, and the
    plan.
    """
    rows = [
        f"{20 + i},{i % 3},{'fm'[i % 2]},I,2020-02-0{1 + i % 9},yes,{('home', 'dead')[i % 2]}"
        for i in range(29)
    ]
    (place / "a.csv").write_text("\n".join([",".join([*COLUMNS, "out"]), *rows, last]))
    recipe = Recipe.parse(
        {
            "private": RowTable(
                place / "a.csv",
                columns=COLUMNS,
                label_column="out",
                classes=["home", "dead"],
                declared_size=30,
                on_bad_record=on_bad_record,
                ledger_file=place / "l.json",
            ),
            "api": {"kind": "mutate"},
            "privacy": {"noise_multiplier": 0.5, "delta": 1e-3},
            "evolution": {"iterations": 2, "population": 400, "degree": 0.3, "lookahead": 0},
        },
        "the test",
    )
    (place / "l.json").unlink(missing_ok=True)
    progress = Told()
    run = run_recipe(recipe, place / "run", RunContext(noise=SameNoise(), progress=progress))
    files = [
        file
        for file in sorted(run.folder.rglob("*"))
        if file.is_file() and "confidential" not in file.parts
    ]
    shared = {str(file.relative_to(run.folder)): file.read_bytes() for file in files}
    run.folder.rename(place / f"run-{len([*place.iterdir()])}")
    return shared, progress, str(forecast(recipe, set_up_generator(recipe.api)[0], [], None, False))


def test_values_beyond_the_declared_columns_change_no_shareable_byte_no_message_and_no_plan(
    tmp_path,
):
    files, progress, plan = start(tmp_path, DECLARED)
    assert len(files) > 10
    for last in HOSTILE:
        other_files, other_progress, other_plan = start(tmp_path, last)
        assert {
            name for name in files | other_files if files.get(name) != other_files.get(name)
        } == set(), last
        assert vars(other_progress) == vars(progress), last
        assert other_plan == plan, last


def test_a_new_label_is_refused_before_anything_shareable_is_written(tmp_path):
    with pytest.raises(PrivateDataError, match="which the public class list lacks"):
        start(tmp_path, DECLARED.replace("home", "gone"), "fail")
    shared = {
        one.name for one in tmp_path.rglob("*") if one.is_file() and "confidential" not in one.parts
    }
    assert shared - {"l.json.lock"} == {"a.csv"}
