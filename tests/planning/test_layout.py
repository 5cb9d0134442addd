import pytest

from pe.errors import RecipeError
from pe.planning.layout import lay_out
from pe.privacy.accounting import epsilon
from pe.recipe.schema import Recipe
from tests.recipe.test_schema import with_

CLASSES = ("a", "b", "c")


def laid_out(**changes: object):
    return lay_out(Recipe.parse(with_(private__classes=list(CLASSES), **changes), "here"))


def test_the_noise_meets_the_target_and_no_more() -> None:
    plan = laid_out(evolution__population=30)
    spent = epsilon([step.release for step in plan.steps], 1e-5)
    assert 1 - 1e-6 < spent <= 1


def test_a_given_noise_multiplier_is_taken_as_it_is() -> None:
    plan = laid_out(evolution__population=30, privacy__epsilon=None, privacy__noise_multiplier=5)
    assert [step.release.noise_multiplier for step in plan.steps] == [5, 5]


def test_schedules_reach_their_iterations() -> None:
    plan = laid_out(
        evolution__population=[30, 60, 90], evolution__degree=[0.9, 0.1], evolution__lookahead=[0, 3],
        evolution__threshold=[7, 8],
    )  # fmt: skip
    assert plan.sizes == (10, 10, 10)
    assert [step.sizes for step in plan.steps] == [(20, 20, 20), (30, 30, 30)]
    assert [(step.degree, step.lookahead, step.threshold) for step in plan.steps] == [(0.9, 0, 7), (0.1, 3, 8)]


def test_a_threshold_in_sigmas_is_votes_in_the_plan() -> None:
    plan = laid_out(
        evolution__population=30, evolution__threshold_sigmas=2, privacy__relation="replace_one",
        privacy__epsilon=None, privacy__noise_multiplier=5,
    )  # fmt: skip
    assert plan.steps[0].threshold == pytest.approx(2 * 5 * 2**0.5)


def test_label_sizes_divide_the_population_by_largest_remainders() -> None:
    plan = laid_out(evolution__population=10, evolution__label_sizes={"a": 1, "b": 1, "c": 1})
    assert plan.sizes == (4, 3, 3)
    plan = laid_out(evolution__population=10, evolution__label_sizes={"a": 700, "b": 200, "c": 100})
    assert plan.sizes == (7, 2, 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evolution__population": 10}, "cannot be divided equally among 3 labels: take 9 or 12"),
        ({"evolution__population": 2}, "cannot be divided equally among 3 labels: take 3, or state"),
        (
            {"evolution__population": 3, "evolution__neighbors": 2},
            "has 1 members of label 'a', and each record votes for 2",
        ),
        ({"evolution__population": 12, "evolution__label_sizes": {"a": 1, "b": 1}}, "label 'c' is missing"),
        ({"evolution__population": 12, "evolution__label_sizes": {"a": 1, "b": 1, "x": 1}}, "unknown label 'x'"),
        (
            {"evolution__population": 9, "evolution__label_sizes": {"a": 1, "b": 1, "c": 1e-9}},
            "has 0 members of label 'c'",
        ),
    ],
)
def test_a_population_that_does_not_fit_the_labels_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        laid_out(**changes)


def test_without_iterations_nothing_is_released() -> None:
    plan = laid_out(evolution__population=30, evolution__iterations=0)
    assert plan.steps == ()
