"""ε is right, never too small, and there for every input in the range."""

import itertools
import math
import warnings

import dp_accounting as da
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import norm

from pe.errors import PrivacyError
from pe.privacy.accounting import delta, epsilon, gdp_mu
from pe.privacy.mechanisms import gaussian_delta, gaussian_epsilon, rdp_curve, sort_parts
from pe.privacy.noise import grid_for
from pe.privacy.release import Poisson, Relation, Release

PUBLISHED = [  # δ, σ, T, ε; as the paper of Private Evolution has them
    *[
        (1e-5, math.sqrt(8), t, e)
        for t, e in zip(range(1, 6), (1.36, 1.99, 2.50, 2.94, 3.34), strict=True)
    ],
    (3e-6, math.sqrt(8), 29, 9.92),
    (1e-3, 2.0, 13, 6.62),
    (1e-5, 10 * math.sqrt(2), 5, 0.56),
]


def histogram(
    z, count=1, *, sensitivity=1.0, grid=None, relation=Relation.ADD_REMOVE, name="histogram"
):
    grid = grid_for(z, sensitivity) if grid is None else grid
    return Release(name, "discrete_gaussian", sensitivity, z, relation, count=count, grid=grid)


def laplace(z, *, sensitivity=1.0, grid=1, count=1):
    return Release("class_counts", "discrete_laplace", sensitivity, z, grid=grid, count=count)


def dp_sgd(z, rate, count, relation=Relation.ADD_REMOVE, sensitivity=1.0):
    return Release(
        "dp_sgd",
        "discrete_gaussian",
        sensitivity,
        z,
        relation,
        sampling=Poisson(rate),
        count=count,
        grid=2**30,
    )


@pytest.mark.parametrize(("target", "z", "iterations", "published"), PUBLISHED)
def test_the_published_figures_come_out_to_two_decimals(target, z, iterations, published):
    one_by_one = [histogram(z, name=f"histogram/{t}") for t in range(iterations)]
    assert round(epsilon(one_by_one, target), 2) == published
    assert epsilon(one_by_one, target) == epsilon([histogram(z, iterations)], target)
    replaced = histogram(z, iterations, sensitivity=math.sqrt(2), relation=Relation.REPLACE_ONE)
    assert round(epsilon([replaced], target), 2) == published


@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.1, 1.0, 10.0, 1e3, 3e4])
@pytest.mark.parametrize("target", [1e-12, 1e-5, 0.1])
def test_the_closed_form_is_right_and_on_the_safe_side_over_the_whole_range(mu, target):
    found = gaussian_epsilon(mu, target)
    with mpmath.workdps(60):
        e, m = mpmath.mpf(found), mpmath.mpf(mu)

        def exact(e):
            return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)

        assert exact(e) <= target
        if found > 0:
            assert exact(e * (1 - mpmath.mpf("1e-9"))) > target
        assert float(gaussian_delta(mu, np.array(found))) == pytest.approx(
            float(exact(e)), rel=1e-6
        )


@pytest.mark.parametrize(
    ("z", "rate", "count", "interval"), [(20, 0.01, 300, 1e-4), (0.7, 0.02, 100, 1e-3)]
)
def test_dp_sgd_agrees_with_dp_accounting_and_is_not_below_its_lower_bound(
    z, rate, count, interval
):
    found = epsilon([dp_sgd(z, rate, count)], 1e-6)
    accountant = PLDAccountant(value_discretization_interval=interval)
    accountant.compose(da.PoissonSampledDpEvent(rate, da.GaussianDpEvent(z)), count)
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=0.01)
    known = {
        "sampling_prob": rate,
        "value_discretization_interval": interval,
        "use_connect_dots": False,
    }
    lower = pld.from_gaussian_mechanism(z, pessimistic_estimate=False, **known).self_compose(count)
    assert found >= lower.get_epsilon_for_delta(1e-6)


@pytest.mark.parametrize(("rate", "z"), [(1e-4, 0.05), (0.01, 1.0), (0.95, 20.0)])
def test_renyi_bounds_of_a_sampled_gaussian_are_those_of_dp_accounting(rate, z):
    orders, found = rdp_curve(sort_parts([dp_sgd(z, rate, 3)]))
    accountant = RdpAccountant(list(orders))
    accountant.compose(da.PoissonSampledDpEvent(rate, da.GaussianDpEvent(z)), 3)
    unsampled = 3 * orders / (2 * z**2)
    np.testing.assert_allclose(found, np.minimum(accountant.rdp, unsampled), rtol=1e-9)


def test_a_mixture_of_everything_agrees_with_dp_accounting():
    releases = [histogram(5, 3), laplace(20), dp_sgd(2, 0.05, 100)]
    interval = 1e-3
    total = pld.from_gaussian_mechanism(5 / math.sqrt(3), value_discretization_interval=interval)
    total = total.compose(
        pld.from_discrete_laplace_mechanism(1 / 20, value_discretization_interval=interval)
    )
    steps = pld.from_gaussian_mechanism(
        2, sampling_prob=0.05, value_discretization_interval=interval
    )
    total = total.compose(steps.self_compose(100))
    assert epsilon(releases, 1e-5) == pytest.approx(total.get_epsilon_for_delta(1e-5), rel=0.01)
    assert delta(releases, epsilon(releases, 1e-5)) == pytest.approx(1e-5, rel=0.02)
    rdp = RdpAccountant()
    rdp.compose(da.PoissonSampledDpEvent(0.05, da.GaussianDpEvent(2)), 100).compose(
        da.GaussianDpEvent(5), 3
    )
    assert epsilon([releases[0], releases[2]], 1e-5) <= rdp.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("sensitivity", "grid", "count"),
    [(1.0, 1, 1), (2.0, 1, 1), (1.0, 1, 4), (1.0, 64, 1), (1.0, 2**16, 1)],
)
def test_laplace_counts_with_histograms_agree_with_dp_accounting(sensitivity, grid, count):
    releases = [histogram(2, 4), laplace(5.0, sensitivity=sensitivity, grid=grid, count=count)]
    steps = int(min(grid, 64) * sensitivity)
    counts = pld.from_discrete_laplace_mechanism(
        1 / (5 * steps), steps, use_connect_dots=True
    ).self_compose(count)
    total = pld.from_gaussian_mechanism(2 / math.sqrt(4)).compose(counts)
    for target in (1e-8, 1e-5, 1e-2):
        assert epsilon(releases, target) == pytest.approx(
            total.get_epsilon_for_delta(target), rel=1e-3
        )


def test_a_grid_on_which_the_closed_form_does_not_bound_discrete_noise_is_refused():
    """At scale 1.381 and δ = 3e-6 the closed form gives 3.224, and the truth is 3.287."""
    for z in (0.5, 1.381, 7.9):
        with pytest.raises(PrivacyError, match="too few for this accountant"):
            epsilon([histogram(z, grid=1)], 3e-6)
    assert epsilon([histogram(8.0, grid=1)], 3e-6) > gaussian_epsilon(1 / 8, 3e-6)


@pytest.mark.parametrize("scale", [8, 32])
@pytest.mark.parametrize("shape", [(1,), (1, -1), (1, 1, 1, 1), (0.3, -0.8, 0.5)])
def test_no_shift_of_a_discrete_gaussian_costs_more_than_charged(scale, shape):
    """By summing the hockey stick over the lattice: the loss depends on Σ step·x alone, an
    integer.
    """
    shift = [int(scale * part) for part in shape]  # toward zero
    sensitivity = math.sqrt(sum(step**2 for step in shift)) / scale
    release = histogram(1 / sensitivity, sensitivity=sensitivity, grid=scale)
    assert release.scale == pytest.approx(scale)
    reach = 9 * scale
    masses, lowest = np.ones(1), 0
    for step in shift:
        own = np.zeros(2 * reach * abs(step) + 1)
        own[:: abs(step)] = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
        masses, lowest = fftconvolve(masses, own / own.sum()), lowest - reach * abs(step)
    sums = lowest + np.arange(len(masses))
    losses = (sum(step * step for step in shift) - 2 * sums) / (2 * scale**2)
    for e in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        true = float(np.sum(masses * np.maximum(-np.expm1(e - losses), 0)))
        found = delta([release], e)
        assert found >= true - 1e-14
        assert found <= true * {8: 3, 32: 1.1}[scale]


def test_sampled_replacement_covers_every_pair_of_contributions():
    """Contributions of norm ≤ C = 1, so that the declared sensitivity is 2; by integrating the
    hockey stick.
    """
    sigma, rate = 2.0, 0.1
    x = np.linspace(-30, 30, 60_001)

    def mixture(mean):
        return (1 - rate) * norm.pdf(x, scale=sigma) + rate * norm.pdf(x, mean, sigma)

    release = dp_sgd(sigma / 2, rate, 1, Relation.REPLACE_ONE, sensitivity=2.0)
    for e in (0.0, 0.05, 0.1):
        found = delta([release], e)
        for first, second in itertools.product((-1.0, -0.5, 0.0, 0.7, 1.0), (-1.0, 0.3, 1.0)):
            pieces = np.maximum(mixture(first) - math.exp(e) * mixture(second), 0)
            true = float(pieces.sum() * (x[1] - x[0]))
            assert found >= true - 1e-9
            if (first, second) == (-1.0, 1.0):
                assert found <= true * 1.01 + 1e-9


@pytest.mark.parametrize(
    ("z", "count", "target"), [*itertools.product((1e-2, 1e5), (1, 10**5), (1e-12, 0.1))]
)
def test_no_extreme_crashes_or_goes_below_the_closed_form(z, count, target):
    plain = gaussian_epsilon(math.sqrt(count) / z, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            plain * (1 - 1e-12)
            <= epsilon([histogram(z, count)], target)
            <= plain * (1 + 1e-6) + 1e-9
        )
        assert plain <= epsilon([histogram(z, count), laplace(max(z, 0.1))], target) < math.inf
        assert 0 <= epsilon([dp_sgd(z, 0.01, count)], target) <= plain * (1 + 1e-9) + 1e-15


def test_a_delta_met_without_epsilon_costs_nothing():
    for releases in ([], [histogram(100)], [laplace(100)], [dp_sgd(10, 0.01, 10)]):
        assert epsilon(releases, 0.1) == 0


@given(
    st.permutations(
        [histogram(3, name="a"), histogram(5, 7, name="b"), laplace(9), histogram(3, 4, name="c")]
    )
)
def test_the_order_of_releases_does_not_matter(releases):
    assert epsilon(releases, 1e-6) == epsilon(
        sorted(releases, key=lambda release: release.name), 1e-6
    )


def test_mu_is_stated_for_gaussians_alone():
    assert gdp_mu([histogram(2, 4)]) == pytest.approx(1.0)
    for others in ([histogram(2, 4), laplace(3)], [dp_sgd(1, 0.1, 1)], []):
        assert gdp_mu(others) is None


def test_what_does_not_add_up_or_nothing_accounts_for_is_refused():
    with pytest.raises(PrivacyError, match="cannot be added up"):
        epsilon([histogram(1), histogram(1, relation=Relation.REPLACE_ONE)], 1e-6)
    for wrong in (0, 1, -1e-6, math.nan):
        with pytest.raises(PrivacyError, match="delta"):
            epsilon([histogram(1)], wrong)
    with pytest.raises(PrivacyError, match="epsilon"):
        delta([histogram(1)], -1)
    unknown = histogram(2.0)
    object.__setattr__(unknown, "mechanism", "staircase")
    with pytest.raises(
        PrivacyError,
        match="'histogram' uses 'staircase', a mechanism that this accountant does not know",
    ):
        epsilon([unknown], 1e-5)
