"""No attack beats the bound on its hits, and the best attack nearly reaches it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from pe.errors import PrivacyError
from pe.privacy.calibration import most_hits
from pe.privacy.release import Poisson, Release
from pe.privacy.words import power

DELTA = 1e-5


def gaussian(sigma: float, sampling: Poisson | None = None) -> Release:
    return Release("votes", "discrete_gaussian", 1.0, sigma, sampling=sampling, grid=2**30)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 8.0])
def test_of_gaussian_noise_it_is_what_the_likelihood_ratio_finds(sigma: float) -> None:
    (found,) = most_hits([gaussian(sigma)], [0.1], DELTA)
    assert found == pytest.approx(norm.sf(norm.isf(0.1) - 1 / sigma), rel=1e-9)


def test_of_a_sampled_release_it_lies_between_the_best_attack_and_the_unsampled_bound() -> None:
    rate, sigma = 0.25, 0.5
    (found,) = most_hits([gaussian(sigma, Poisson(rate))], [0.1], DELTA)
    best = (1 - rate) * 0.1 + rate * norm.sf(norm.isf(0.1) - 1 / sigma)
    (unsampled,) = most_hits([gaussian(sigma)], [0.1], DELTA)
    assert best <= found < min(1.1 * best, unsampled)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 5.0, 2000.0])
def test_the_bound_by_epsilon_is_reached_by_randomised_response(epsilon: float) -> None:
    keep = 1 / (1 + math.exp(-epsilon))  # it says the truth so often, which is ε-DP
    lie = 1 - keep
    assert power(epsilon, 0.0, lie) == pytest.approx(keep) if 0 < lie < 1 else power(epsilon, 0, 0.1) == 1
    for share in np.linspace(0.01, 0.99, 9):
        assert share - 1e-12 <= power(epsilon, 0.0, share) <= power(epsilon, 0.01, share) <= 1


def test_nothing_is_bounded_without_noise_and_a_share_out_of_range_is_refused() -> None:
    noiseless = Release("votes", "none", 1.0, 0.0)
    assert most_hits([noiseless], [0.1, 0.5], DELTA) == [1.0, 1.0]
    with pytest.raises(PrivacyError, match="between 0 and 1"):
        most_hits([gaussian(1.0)], [0.0], DELTA)
