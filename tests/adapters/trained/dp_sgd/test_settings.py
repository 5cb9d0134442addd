"""Settings, what they cost, and the noise that a budget asks for."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from adapters.trained.fit import block_releases, calibrated
from adapters.trained.settings import DPSGD, GRID
from pe.errors import PEError, PrivacyError, RecipeError
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Poisson, Relation, Release
from tests.adapters.trained.dp_sgd.models import plain

WRONG = [
    ("steps", 0),
    ("steps", 2**24 + 1),
    ("steps", 1.5),
    ("steps", True),
    ("expected_batch", 9),
    ("expected_batch", 0),
    ("declared_size", -1),
    ("clip", 0.0),
    ("clip", math.nan),
    ("clip", math.inf),
    ("learning_rate", 0.0),
    ("learning_rate", math.inf),
    ("noise_multiplier", -1.0),
    ("noise_multiplier", math.nan),
    ("optimiser", "lion"),
    ("warm_up", -1),
    ("ema", 1.0),
    ("draws", 0),
    ("micro_batch", 0),
    ("block", 0),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_value_out_of_range_is_refused_and_named(field, value):
    with pytest.raises(RecipeError, match=f"^{field} is "):
        plain(**{field: value})


def test_no_noise_means_no_release():
    for unprotected in (plain(), plain(noise_multiplier=None)):
        with pytest.raises(PEError):
            block_releases(unprotected, "fit", Relation.ADD_REMOVE)


def test_rate_decay_and_sampling_are_a_public_schedule():
    settings = plain(steps=100, learning_rate=2.0, warm_up=3, ema=0.9, declared_size=32)
    assert [settings.rate_at(step) for step in (0, 1, 2, 3, 99)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert [settings.decay_at(step) for step in (0, 8, 1000)] == [0.1, 0.5, 0.9]
    assert settings.rate == 0.25


@pytest.mark.parametrize(("steps", "block"), [(1, 1), (11, 5), (4, 5)])
@pytest.mark.parametrize("relation", list(Relation))
def test_all_blocks_together_cost_what_all_steps_cost(steps, block, relation):
    settings = plain(steps=steps, block=block, expected_batch=8, declared_size=80, noise_multiplier=1.5, clip=0.1)
    parts = block_releases(settings, "fit", relation)
    assert [part.name for part in parts] == [f"fit/{i + 1}" for i in range(settings.blocks)]
    factor = 2 if relation is Relation.REPLACE_ONE else 1
    whole = Release(
        "all", "discrete_gaussian", factor, 1.5 / factor, relation, sampling=Poisson(0.1), count=steps, grid=GRID
    )
    assert all(part.scale == 1.5 * GRID for part in parts)
    assert epsilon(parts, 1e-5) == epsilon([whole], 1e-5)


def test_every_record_in_every_step_is_a_release_without_sampling():
    (release,) = block_releases(plain(noise_multiplier=1.0), "fit", Relation.ADD_REMOVE)
    assert release.sampling is None


def test_a_unit_larger_than_a_record_is_refused():
    with pytest.raises(PrivacyError, match="protects no 'patient'"):
        block_releases(plain(noise_multiplier=1.0), "fit", Relation.ADD_REMOVE, "patient")


BUDGET = Budget(2.0, 1e-5)
OTHER = Release("query", "discrete_gaussian", 1.0, 20.0, grid=2**20)


@pytest.mark.parametrize(("relation", "declared"), [(Relation.ADD_REMOVE, 64), (Relation.REPLACE_ONE, 640)])
def test_the_noise_is_the_least_for_which_all_of_it_fits(relation, declared):
    open_noise = plain(steps=20, block=5, expected_batch=64, declared_size=declared, noise_multiplier=None)
    other = replace(OTHER, relation=relation)
    settings = calibrated(open_noise, BUDGET, relation, (other,))
    parts = block_releases(settings, "fit", relation)
    assert 0.999 * BUDGET.epsilon < epsilon([other, *parts], BUDGET.delta) <= BUDGET.epsilon


def test_a_budget_too_small_for_a_single_useful_step_is_refused_with_the_number():
    open_noise = plain(steps=20, expected_batch=64, declared_size=64, noise_multiplier=None)
    with pytest.raises(
        PrivacyError, match=r"asks for a noise multiplier of 1,7\d\d\.\d for one single step, which expects 64"
    ):
        calibrated(open_noise, Budget(0.001, 1e-5), Relation.ADD_REMOVE)
    # As little as this is enough for one step, though its twenty steps are noisier than any of them is large.
    enough = calibrated(open_noise, Budget(0.05, 1e-5), Relation.ADD_REMOVE)
    assert enough.noise_multiplier > 64


def test_a_budget_that_others_have_spent_is_refused():
    with pytest.raises(PrivacyError, match="takes all of it"):
        calibrated(plain(), Budget(0.01, 1e-5), Relation.ADD_REMOVE, (OTHER,))


def test_settings_and_costs_load_no_heavy_library():
    program = """
import sys
import adapters.trained.dp_sgd
print(*[name for name in ("torch", "diffusers", "dp_accounting") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_rounds_of_a_step_are_those_of_batches_that_coins_fill(processes):
    settings = plain(expected_batch=200, declared_size=1000, processes=processes)
    batches = np.random.default_rng(0).binomial(1000, settings.rate, size=20_000)
    rounds = np.ceil(np.ceil(batches / 8) / processes).mean()
    assert settings.rounds(micro_batch=8) == pytest.approx(rounds, rel=0.01)


def test_the_defaults_are_fields_of_a_frozen_value():
    settings = DPSGD(steps=1, expected_batch=1, declared_size=1, clip=1.0, learning_rate=1.0)
    with pytest.raises(ValidationError):
        settings.steps = 2
    assert settings.noise_multiplier is None
