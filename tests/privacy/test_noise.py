"""The noise has the scale it says, and no draw can be foretold or repeated.

Every statistical test accepts the right scale except with probability below 1e-9 and rejects a scale 1.5 times
too small or too large.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from pe.errors import PrivacyError
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise

FALSE_ALARM = 1e-10
DRAWS = 2000
FINE = 2.0**17


def gaussian_fits(draws, scale):
    """Exact: (x/scale)² adds up to χ² (the grid is too fine to matter)."""
    total = float(np.sum((draws / scale) ** 2))
    return stats.chi2.cdf(total, draws.size) > FALSE_ALARM / 2 and stats.chi2.sf(total, draws.size) > FALSE_ALARM / 2


def laplace_fits(draws, scale):
    """Exact: |x|/scale adds up to a Gamma variable."""
    total = float(np.sum(np.abs(draws) / scale))
    return stats.gamma.cdf(total, draws.size) > FALSE_ALARM / 2 and stats.gamma.sf(total, draws.size) > FALSE_ALARM / 2


FITS = {"discrete_gaussian": gaussian_fits, "discrete_laplace": laplace_fits}
NOISES = [SystemNoise(), UnsafeSeededNoise(1)]


@pytest.mark.parametrize("noise", NOISES, ids=["system", "unsafe"])
@pytest.mark.parametrize("mechanism", FITS)
def test_the_scale_is_accepted_and_one_and_a_half_times_more_or_less_is_not(noise, mechanism):
    draw, fits = getattr(noise, mechanism), FITS[mechanism]
    assert fits(draw(DRAWS, FINE), FINE)
    assert not fits(draw(DRAWS, FINE / 1.5), FINE)
    assert not fits(draw(DRAWS, FINE * 1.5), FINE)


@pytest.mark.parametrize(
    ("mechanism", "reference"),
    [("discrete_gaussian", stats.norm), ("discrete_laplace", stats.laplace)],
)
def test_the_shape_is_right_and_symmetric(mechanism, reference):
    draws = getattr(SystemNoise(), mechanism)(DRAWS, FINE)
    assert stats.kstest(draws / FINE, reference.cdf).pvalue > FALSE_ALARM
    assert stats.binomtest(int(np.sum(draws > 0)), int(np.sum(draws != 0))).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("mechanism", "weight"),
    [("discrete_gaussian", lambda x: math.exp(-x * x / 2)), ("discrete_laplace", lambda x: math.exp(-abs(x)))],
)
def test_on_few_steps_the_probabilities_are_those_of_the_discrete_distribution(mechanism, weight):
    draws = getattr(SystemNoise(), mechanism)(20_000, 1.0)
    total = sum(weight(x) for x in range(-60, 61))
    for x in (-2, -1, 0, 1, 2):
        assert stats.binomtest(int(np.sum(draws == x)), draws.size, weight(x) / total).pvalue > FALSE_ALARM


def test_every_bin_and_every_call_gets_its_own_noise():
    noise = SystemNoise()
    draws = np.concatenate([noise.discrete_gaussian((50, 100), 2.0**56).ravel() for _ in range(2)])
    assert len(np.unique(draws)) == draws.size  # a collision has probability below 1e-9


def test_forked_processes_do_not_share_noise():
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
print(*noise.discrete_gaussian(3, 2.0**56))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    draws = done.stdout.split()
    assert len(draws) == len(set(draws)) == 12


def test_shape_and_type_are_those_asked_for():
    for noise in NOISES:
        draws = noise.discrete_gaussian((2, 3, 1), 10.0)
        assert (draws.shape, draws.dtype) == ((2, 3, 1), np.int64)
        assert noise.discrete_laplace(0, 10.0).shape == (0,)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**57])
def test_a_scale_out_of_range_is_refused(scale):
    for noise in NOISES:
        with pytest.raises(PrivacyError, match="scale"):
            noise.discrete_gaussian(1, scale)


def test_only_the_unsafe_switch_can_be_seeded_and_it_says_so():
    one, other = UnsafeSeededNoise(7), UnsafeSeededNoise(7)
    assert np.array_equal(one.discrete_gaussian(5, 100.0), other.discrete_gaussian(5, 100.0))
    assert one.unsafe
    assert not SystemNoise().unsafe
    with pytest.raises(TypeError):
        SystemNoise(seed=7)


def test_importing_the_room_does_not_load_dp_accounting():
    program = """
import sys
import pe.privacy.calibration, pe.privacy.certificate, pe.privacy.ledger, pe.privacy.certificate
print(*[name for name in ("dp_accounting", "scipy.stats", "torch", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("noise", NOISES, ids=["system", "unsafe"])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_coins_fall_at_their_rate_and_not_at_another(noise, rate):
    heads = int(noise.coins(100_000, rate).sum())
    assert stats.binomtest(heads, 100_000, rate).pvalue > FALSE_ALARM
    assert stats.binomtest(heads, 100_000, rate * 1.1).pvalue < FALSE_ALARM or rate == 0.01
    assert stats.binomtest(heads, 100_000, rate / 2).pvalue < FALSE_ALARM


def test_coins_are_never_the_same_twice():
    noise = SystemNoise()
    assert not np.array_equal(noise.coins(256, 0.5), noise.coins(256, 0.5))
    assert noise.coins(0, 0.5).shape == (0,)
