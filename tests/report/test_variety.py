"""Equal and nearly equal samples are counted from the populations alone, by iteration and label, with bounded work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.words import Words

from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions, Samples
from pe.engine.report import write_report
from pe.privacy.release import Release
from pe.report.pictures import MOST, NEAR, WORK, Variety, collapse_warnings, usual_distance, varieties, whole
from pe.steps import Step
from tests.cli.typed import pe as command


def population(samples: Samples, labels: list[int] | np.ndarray) -> Population:
    founders = np.full(len(samples), NO_PARENT, np.int64)
    return Population(samples, np.asarray(labels, np.int32), Conditions(), founders)


def shades(*values: float) -> Images:
    """2×2 grey images, each of one shade."""
    return Images(np.repeat(np.array(values, np.uint8), 4).reshape(-1, 2, 2, 1))


def step(degree: float, threshold: float) -> Step:
    release = Release("histogram/1", "discrete_gaussian", 1.0, 2.0, grid=64)
    return Step(t=1, sizes=(60,), degree=degree, lookahead=0, threshold=threshold, release=release)


FIRST = population(shades(*range(0, 250, 5)), np.zeros(50))


def variety_of(*values: float, labels: list[int] | None = None) -> dict[str, Variety]:
    of = population(shades(*values), labels or [0] * len(values))
    return varieties([FIRST, of], ["a", "b"], 0)[1]


def test_of_nearly_equal_samples_of_a_label_one_counts() -> None:
    usual = usual_distance(FIRST, 0)
    assert 60 < usual < 100  # of two numbers from 0 to 250: 73 in the median
    step = NEAR * usual
    assert variety_of(10, 10, 12, 200, 201, 203, 100) == {"a": Variety(7, 6, 7, 3)}
    assert variety_of(10, 10 + 0.9 * step)["a"].apart == 1
    assert variety_of(10, 10 + 1.2 * step)["a"].apart == 2
    assert variety_of(10, 10, 10, 10, labels=[0, 1, 0, 1]) == {"a": Variety(2, 1, 2, 1), "b": Variety(2, 1, 2, 1)}
    assert whole(variety_of(10, 10, 200, labels=[0, 0, 1])) == Variety(3, 2, 3, 2)


def test_a_population_of_copies_of_a_few_has_collapsed() -> None:
    rng = np.random.default_rng(0)
    few = variety_of(*rng.choice([20, 120, 220], 60) + rng.integers(0, 3, 60))
    (warning,) = collapse_warnings(3, few, step(0.5, 2.0))
    assert warning.startswith("S_3 has collapsed: of 60 samples that were compared, only 3 differ clearly")
    assert collapse_warnings(1, varieties([FIRST], ["a"], 0)[0], step(0.5, 2.0)) == []


@pytest.mark.parametrize(
    ("degree", "threshold", "remedy"),
    [
        (0.5, 2.0, "more candidates, a lower threshold or a higher last degree"),
        (0.5, 0.0, "more candidates or a higher last degree"),
        (1.0, -1.0, "more candidates"),
    ],
)
def test_a_remedy_against_collapse_can_be_followed(degree: float, threshold: float, remedy: str) -> None:
    (warning,) = collapse_warnings(1, {"a": Variety(90, 2, 90, 2)}, step(degree, threshold))
    assert warning.endswith(f": take {remedy}.")
    (of_none,) = collapse_warnings(0, {"a": Variety(90, 2, 90, 2)}, None)
    assert of_none.endswith(": take a generator that varies more.")


@pytest.mark.parametrize(("apart", "warned"), [(9, True), (12, False)])
def test_copies_of_enough_that_one_vote_chose_have_not_collapsed(apart: int, warned: bool) -> None:
    one = {label: Variety(500, apart, 500, apart) for label in "ab"}
    assert bool(collapse_warnings(1, one, step(0.0, 2.5))) == warned
    assert collapse_warnings(1, one, step(0.5, 2.5))


def test_alone_or_among_equal_first_samples_only_equal_ones_are_nearly_equal() -> None:
    alone = population(shades(7), [0])
    assert varieties([alone, population(shades(7, 8, 8), [0, 0, 0])], ["a"], 0)[1]["a"] == Variety(3, 2, 3, 2)
    same = population(shades(7, 7, 7), [0, 0, 0])
    assert varieties([same], ["a"], 0) == [{"a": Variety(3, 1, 3, 1)}]
    assert varieties([], ["a"], 0) == []


@pytest.mark.parametrize(("side", "members", "labels"), [(1, 1500, 1), (64, 300, 2)])
def test_the_work_is_bounded(side: int, members: int, labels: int) -> None:
    pixels = np.zeros((members, side, side, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(members) % 251
    (found,) = varieties([population(Images(pixels), np.arange(members) % labels)], ["a", "b"], 0)
    for one in found.values():
        assert 2 <= one.compared <= min(MOST, one.samples)
        assert labels * one.compared**2 / 2 * pixels[0].nbytes <= WORK
        assert one.samples == members // labels
        assert one.different == min(251, members // labels)
    assert whole(found).compared < members


def test_other_modalities_are_compared_by_their_own_distance() -> None:
    spread = population(Words(np.array(["abcd", "efgh", "ijkl", "mnop"])), [0] * 4)
    same = population(Words(np.array(["abcd", "abcd", "mnop", "mnop"])), [0] * 4)
    assert [whole(each) for each in varieties([spread, same], ["a"], 0)] == [Variety(4, 4, 4, 4), Variety(4, 2, 4, 2)]


def test_page_and_console_tell_of_a_run_whose_data_are_copies_of_a_few(tmp_path: Path) -> None:
    images = np.repeat(np.arange(6, dtype=np.uint8) * 40, 16).reshape(6, 4, 4, 1)
    np.savez(tmp_path / "pool.npz", images=images)
    np.savez(tmp_path / "private.npz", images=images + 1, labels=["cat"] * 3 + ["dog"] * 3)
    private = {"kind": "npz", "path": "private.npz", "size": 4, "channels": 1, "classes": ["cat", "dog"]}
    recipe = {
        "private": private,
        "api": {"kind": "public_images", "path": "pool.npz", "channels": 1, "pool_overlaps": "declared"},
        "embedding": {"kind": "pixels", "size": 4},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": [12, 80], "degree": 0, "lookahead": 0},
    }
    recipe["api"].pop("pool_overlaps")
    recipe["privacy"]["pool_overlaps"] = "declared"
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    made = command("run", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert re.search(r"warning: S_1 has collapsed: of 80 samples that were compared, only \d+ differ", made.stderr)
    page = write_report(tmp_path / "run").read_text()
    assert "S_1 has collapsed: of 80 samples" in page.split("<h2>Warnings</h2>")[1].split("</section>")[0]
    table = page.split("<h2>Different samples</h2>")[1].split("</section>")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)]
    assert ["S0", "12", "12", "12", "12"] in rows
    (last,) = (row for row in rows if row[:1] == ["S1"])
    assert (last[1], last[3]) == ("80", "80")
    assert int(last[4]) <= int(last[2]) <= 12
    assert [row[:2] for row in rows if row[:1] in (["cat"], ["dog"])] == [["cat", "40"], ["dog", "40"]]
    summed = command("resume", "run", "--json", "--quiet", cwd=tmp_path)
    assert json.loads(summed.stdout)["warnings"][0].startswith("S_1 has collapsed")
