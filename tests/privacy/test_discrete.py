"""Discrete draws follow their law exactly: the steps lie above it, and floating point decides only
what is certain.

Statistical tests accept what is right except with a probability below 1e-9.
"""

from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from math import exp, fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pe.privacy import noise as discrete
from pe.privacy.noise import (
    CELLS,
    DOUBT,
    LARGEST_SCALE,
    PART,
    Envelope,
    below,
    discrete_draws,
    random_words,
)

FALSE_ALARM = 1e-10
LAWS = ["gaussian", "laplace"]
SCALES = [
    0.05,
    0.3,
    1.0,
    2.7,
    31.9,
    32.0,
    63.99,
    1000.0,
    2.0**16,
    2.0**17 * 0.99,
    2.0**30,
    2.0**40,
    LARGEST_SCALE,
]
scales = st.one_of(st.sampled_from(SCALES), st.floats(0.01, 1e4), st.floats(1e4, LARGEST_SCALE))


def exponent(x, scale, law):
    """a(x), by another way than the product's."""
    x, scale = Fraction(x), Fraction(scale)
    return x * x / (2 * scale * scale) if law == "gaussian" else x / scale


def power(fraction):
    """e^−fraction to 60 digits."""
    with localcontext(prec=60, Emin=-(10**9)):
        return (-Decimal(fraction.numerator) / Decimal(fraction.denominator)).exp()


@given(scales, st.sampled_from(LAWS))
def test_no_acceptance_probability_exceeds_one(scale, law):
    """To the last digit: in the blocks and in the tail."""
    envelope = Envelope.above(scale, law)
    width, blocks, c = 2**envelope.width_bits, len(envelope.cells), Decimal(envelope.c)
    assert envelope.cells.sum() + 1 == CELLS == len(envelope.block)
    assert (np.bincount(envelope.block) == [*envelope.cells, 1]).all()
    assert width == 1 or scale / 64 < width <= scale / 32
    for k, cells in enumerate(envelope.cells.tolist()):
        assert c * power(exponent(k * width, scale, law)) <= cells
    for m in (*range(40), 1000):
        assert (
            PART * 2 ** (m + 1) * c * power(exponent((blocks + m * PART) * width, scale, law)) <= 1
        )


@given(scales, st.sampled_from(LAWS), st.integers(0, 2**32))
def test_every_proposal_is_accepted_in_proportion_to_its_weight(scale, law, seed):
    """Proposed times accepted is c·e^−a(x)/(CELLS·w), the same constant for every x: what makes the
    law exact.
    """
    envelope, rng = Envelope.above(scale, law), np.random.default_rng(seed)
    width, cells = 2**envelope.width_bits, envelope.cells
    for block in rng.integers(0, len(cells), 3).tolist():
        x = block * width + int(rng.integers(0, width))
        proposed = Fraction(int(cells[block]), CELLS * width)
        accepted = (
            Fraction(envelope.c) / int(cells[block]) * Fraction(power(exponent(x, scale, law)))
        )
        wanted = Fraction(envelope.c) * Fraction(power(exponent(x, scale, law))) / (CELLS * width)
        assert abs(float(proposed * accepted / wanted) - 1) < 1e-15
        computed = (
            envelope.ratios[block]
            * np.exp(-discrete._exponents(np.array([float(x)]), scale, law))[0]
        )
        assert abs(computed - float(accepted)) < DOUBT / 64


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.3, 3.0, 1000.0, 2.0**17, 2.0**40])
def test_floating_point_decides_as_exact_arithmetic_does(law, scale, monkeypatch):
    """The same bits give the same draws when every proposal is decided exactly."""
    words = random_words(4000)
    kept = words[
        words % CELLS != CELLS - 1
    ]  # the tail is always decided exactly, by bits drawn for it
    monkeypatch.setattr(
        discrete, "random_words", lambda count: np.random.default_rng(1).permutation(words)[:count]
    )
    fast = Envelope.above(scale, law)
    assert np.array_equal(fast.accept(kept), replace(fast, doubt=2.0).accept(kept))


@given(st.integers(0, 2**24 - 1), st.fractions(0, 20), st.integers(1, 4096))
def test_a_comparison_with_few_known_bits_is_the_same_as_with_many(bits, power_of, cells):
    """`below` never contradicts the bits that it knows."""
    factor = Fraction(cells, 4096)
    p = factor * Fraction(power(power_of))
    found = below(bits, 24, factor, power_of)
    if Fraction(bits + 1, 2**24) <= p:
        assert found
    if Fraction(bits, 2**24) >= p:
        assert not found


def test_an_undecided_comparison_is_decided_by_fair_bits():
    """One whose known bits are those of p itself comes out by the rest of p."""
    p = power(Fraction(1))
    bits = int(p * 2**24)
    rest = float(p * 2**24 - bits)
    hits = sum(below(bits, 24, Fraction(1), Fraction(1)) for _ in range(2000))
    assert stats.binomtest(hits, 2000, rest).pvalue > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0, 40.0])
def test_the_frequencies_are_those_of_the_law_and_of_no_other_scale(scale, law):
    """All the values that a draw may take, the tail among them; a scale one per cent larger is
    told.
    """
    far, count = int(60 * scale) + 5, 400_000
    draws = discrete_draws(count, scale, law)

    def fits(other):
        weights = [exp(-float(exponent(abs(x), other, law))) for x in range(-far, far + 1)]
        expected = np.array(weights) / fsum(weights) * count
        seen = np.bincount(np.clip(draws + far, 0, 2 * far), minlength=2 * far + 1)
        rare = expected < 20
        pooled = (
            np.append(expected[~rare], expected[rare].sum()),
            np.append(seen[~rare], seen[rare].sum()),
        )
        return stats.chisquare(pooled[1], pooled[0] * count / pooled[0].sum()).pvalue > FALSE_ALARM

    assert fits(scale)
    assert not fits(scale * 1.04)


def test_the_tail_is_drawn_as_often_as_the_law_says():
    """Beyond the last block, where proposals come in parts of falling probability."""
    envelope = Envelope.above(64.0, "laplace")
    start, count = len(envelope.cells) << envelope.width_bits, 2_000_000
    draws = np.abs(discrete_draws(count, 64.0, "laplace"))
    for beyond in (start, start + 40, start + 128):
        chance = 2 * exp(-beyond / 64) / (1 + exp(-1 / 64))
        assert stats.binomtest(int(np.sum(draws >= beyond)), count, chance).pvalue > FALSE_ALARM
    assert (draws >= start).any()


def test_the_low_bits_of_a_large_scale_are_fair_coins():
    """In the tail, too: no lattice, and no bit that is used twice."""
    draws = np.abs(discrete_draws(400_000, 2.0**30, "gaussian"))
    for part in (draws, draws[draws > 3 * 2**30]):
        for bit in range(24):
            assert (
                stats.binomtest(int(np.sum(part >> bit & 1)), len(part), 0.5).pvalue > FALSE_ALARM
            )
