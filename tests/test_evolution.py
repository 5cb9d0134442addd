"""How the next population is chosen from noisy votes, label by label."""

import numpy as np

from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions
from pe.evolution import choose
from pe.histogram import Voting, histogram_release
from pe.privacy.release import Relation
from pe.selection import Selection, SelectionRule
from pe.steps import Plan, Step
from tests.generators import images_of

SHADES = np.array([9, 9, 7, 9, 9, 5, 9], np.uint8)
LABELS = np.array([0, 0, 0, 0, 1, 1, 1], np.int32)
VOTES = np.array([5.0, -2, 1, 0.5, 0.1, 2, 4])
"""Records vote for the first of equal candidates of their label: what the others have is noise."""


def parents(selection: Selection, lookahead: int):
    release = histogram_release(1, 1.0, Relation.ADD_REMOVE)
    step = Step(1, (3, 1), 0.5, lookahead, 0.0, release, SelectionRule(selection))
    population = Population(images_of(SHADES), LABELS, Conditions(), np.full(7, NO_PARENT))
    plan = Plan(("a", "b"), (4, 3), (step,), Voting(), seed=0)
    return choose(VOTES, population, np.zeros(7, bool), step, plan, print).parents.tolist()


def test_equal_candidates_of_a_label_have_one_rank_where_they_are_compared_without_lookahead():
    assert parents("rank", 0) == [0, 1, 3, 5]
    assert parents("rank", 2) == [0, 2, 3, 6]
    assert 1 not in parents("sample", 0)
