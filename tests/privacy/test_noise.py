"""The noise has the scale it says, and no draw can be foretold or repeated.

Every statistical test accepts the right scale except with probability below 1e-9 and rejects a
scale 1.5 times too small or too large. tests/privacy/test_discrete.py has the law of each draw.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from pe.errors import PrivacyError
from pe.privacy.noise import SystemNoise
from tests.seeded_noise import UnsafeSeededNoise

FALSE_ALARM = 1e-10
DRAWS = 2000
FINE = 2.0**17
NOISES = [SystemNoise(), UnsafeSeededNoise(1)]


def fits(law, draws, scale):
    """Exact: (x/scale)² adds up to χ², and |x|/scale to a Gamma variable (the grid is too fine to
    matter).
    """
    if law == "discrete_gaussian":
        total, known = float(np.sum((draws / scale) ** 2)), stats.chi2(draws.size)
    else:
        total, known = float(np.sum(np.abs(draws) / scale)), stats.gamma(draws.size)
    return min(known.cdf(total), known.sf(total)) > FALSE_ALARM / 2


@pytest.mark.parametrize("noise", NOISES, ids=["system", "unsafe"])
@pytest.mark.parametrize("law", ["discrete_gaussian", "discrete_laplace"])
def test_the_scale_is_accepted_and_one_and_a_half_times_more_or_less_is_not(noise, law):
    draw = getattr(noise, law)
    for by, right in ((1, True), (1 / 1.5, False), (1.5, False)):
        assert fits(law, draw(DRAWS, FINE * by), FINE) == right
    draws = draw((2, 3, 1), 10.0)
    assert (draws.shape, draws.dtype) == ((2, 3, 1), np.int64)
    assert draw(0, 10.0).shape == (0,)
    assert stats.binomtest(int(np.sum(draw(DRAWS, FINE) > 0)), DRAWS).pvalue > FALSE_ALARM
    for scale in (0.0, -1.0, math.nan, math.inf, 2.0**57):
        with pytest.raises(PrivacyError, match="scale"):
            draw(1, scale)


def test_forked_processes_and_calls_do_not_share_noise():
    program = """
import os
from pe.privacy.noise import SystemNoise
noise = SystemNoise()
noise.discrete_gaussian(1, 2.0**56)
for _ in range(3):
    if os.fork() == 0:
        print(*noise.discrete_gaussian(3, 2.0**56), flush=True)
        os._exit(0)
    os.wait()
print(*noise.discrete_gaussian((3, 50), 2.0**56).ravel())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    draws = done.stdout.split()
    assert len(draws) == len(set(draws)) == 9 + 150  # a collision has probability below 1e-9


def test_only_the_unsafe_switch_can_be_seeded_and_it_says_so():
    one, other = UnsafeSeededNoise(7), UnsafeSeededNoise(7)
    assert np.array_equal(one.discrete_gaussian(5, 100.0), other.discrete_gaussian(5, 100.0))
    assert one.unsafe
    assert not SystemNoise().unsafe
    with pytest.raises(TypeError):
        SystemNoise(seed=7)


@pytest.mark.parametrize("noise", NOISES, ids=["system", "unsafe"])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_coins_fall_at_their_rate_and_at_no_other_and_never_the_same_twice(noise, rate):
    heads = noise.coins(100_000, rate)
    for by, right in ((1, True), (1.1, rate == 0.01), (0.5, False)):
        assert (stats.binomtest(int(heads.sum()), 100_000, rate * by).pvalue > FALSE_ALARM) == right
    assert not np.array_equal(heads, noise.coins(100_000, rate))
    assert noise.coins(0, rate).shape == (0,)
