"""The usefulness that `pe plan` says runs like this one had: by what was measured, and
within it.
"""

import re
from pathlib import Path

import pytest

from pe.planning.forecast import forecast
from pe.planning.usefulness import DRAWN, GOOD, OWN_LABELS, POOL
from pe.plugins.protocols import as_generator
from tests.planning.test_choice import Own, recipe_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "will-it-work.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "benchmarks" / "results" / "usefulness.md").read_text(encoding="utf-8")
A_POOL = Own(degrees=(0.0,), by_label=False, distinct=3000)


def expected(size, labels, epsilon, api=A_POOL, **sections):
    return forecast(recipe_of(size, labels, epsilon, **sections), as_generator(api)).expected


@pytest.mark.parametrize(
    ("size", "labels", "epsilon", "api", "beginning", "more"),
    [
        (
            1000,
            10,
            1,
            A_POOL,
            "At ε = 1 with 1,000 records of 10 labels, runs of `evolution: auto` on digits, "
            "pictures",
            ["ε = 1.1", "1,200"],
        ),
        (
            100,
            10,
            4,
            A_POOL,
            "At ε = 4 with 100 records of 10 labels, runs of `evolution: auto` on digits, pictures",
            ["320"],
        ),
        (
            1000,
            5,
            4,
            A_POOL,
            "At ε = 4 with 1,000 records of 5 labels, runs of `evolution: auto` on digits, "
            "pictures",
            [],
        ),
        (
            20,
            10,
            1,
            A_POOL,
            "ε = 1 with 20 records of 10 labels is beyond what was measured: at the fewest",
            ["1,200"],
        ),
        (
            1000,
            10,
            1,
            Own(),
            "At ε = 1 with 1,000 records of 10 labels, runs of `evolution: auto` on drawn",
            ["ε = 4.3", "3,900"],
        ),
        (
            10**5,
            2,
            4,
            Own(),
            "ε = 4 with 100,000 records of 2 labels is beyond what was measured: at the most",
            [],
        ),
    ],
)
def test_a_plan_says_what_runs_like_it_reached_and_what_good_data_took(
    size, labels, epsilon, api, beginning, more
):
    sentence = expected(size, labels, epsilon, api)
    assert sentence.startswith(beginning)
    assert (
        re.findall(r"ε = [\d.]+|[\d,]+(?= records)", sentence.partition("; 7 of 10 took")[2])
        == more
    )
    assert (
        sentence
        in str(forecast(recipe_of(size, labels, epsilon), as_generator(api))).partition(
            "candidates"
        )[0]
    )


@pytest.mark.parametrize("api", [A_POOL, Own()])
def test_with_what_good_data_took_good_data_are_expected(api):
    epsilon, records = re.search(
        r"ε = ([\d.]+) or ([\d,]+) records would", expected(300, 5, 1, api)
    ).groups()
    for sentence in (
        expected(300, 5, float(epsilon) * 1.05, api),
        expected(int(records.replace(",", "")), 5, 1, api),
    ):
        assert f"reached about {GOOD:g} of 10" in sentence
        assert "would give" not in sentence


@pytest.mark.parametrize(
    ("labels", "api", "sections", "sentence"),
    [
        (1, A_POOL, {}, ""),
        (5, Own(by_label=False), {}, ""),
        (
            5,
            A_POOL,
            {"private": {"declared_size": None}, "evolution": {"iterations": 1, "population": 50}},
            "",
        ),
        (5, A_POOL, {"evolution": {"iterations": 0}}, ""),
        (5, Own(degrees=(0.0,), distinct=3000), {}, OWN_LABELS),
    ],
)
def test_nothing_is_said_of_what_was_not_measured(labels, api, sections, sentence):
    assert expected(1000, labels, 1, api, **sections) == sentence


def test_the_numbers_of_the_plan_and_of_the_page_are_those_that_were_measured():
    for measured in (POOL, DRAWN):
        part = RESULTS.partition(f"\n## {measured.sets}\n")[2].partition("\n\nRecords")[0]
        rows = [
            tuple(float(cell) for cell in row.split("|")[1:5])
            for row in re.findall(r"^\| \d.*", part, re.M)
        ]
        assert tuple(rows) == measured.rows
    rows = [row for row in PAGE.splitlines() if re.match(r"\| [\d,]+ (of|\|)", row)]
    assert len(rows) > 10
    assert {row for row in rows if row not in RESULTS.splitlines()} == set()
