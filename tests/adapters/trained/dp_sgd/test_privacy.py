"""Sampling, noise and division are those that the accountant is told of.

A model whose gradient is the record itself shows from outside what a step has done. Each promise is
a function of a class of training, and is shown to fail for one broken on purpose. Statistics err
with a probability below 1e-9.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from adapters.trained.dp_sgd.gradients import clipped_sum
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import GRID
from adapters.trained.trainings import block_releases
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Relation
from tests.adapters.trained.dp_sgd.models import (
    SIDE,
    Recording,
    Showing,
    Weights,
    gradients_of,
    images_of,
    plain,
)
from tests.seeded_noise import UnsafeSeededNoise

FALSE_ALARM = 1e-10
COUNT = 2 * SIDE * SIDE


def showing(kind, **changes):
    return kind(Weights(), Showing(), plain(**changes))


def sums(training, images, labels, noise, steps):
    """What each of `steps` steps summed up: float64 steps×p."""
    found, state = [], training.start()
    for _ in range(steps):
        after = training.block(state, images, labels, noise)
        found.append(
            (state[1 : COUNT + 1].astype(np.float64) - after[1 : COUNT + 1])
            * training.settings.expected_batch
        )
        state = np.concatenate(
            [training.start()[:1] + after[:1], training.start()[1:]]
        )  # from 0 again: no rounding
    return np.array(found)


def single_pixels(count):
    """Record i is white at pixel i, else black: a sum tells who took part."""
    images = np.zeros((count, SIDE * SIDE), np.uint8)
    images[np.arange(count), np.arange(count)] = 255
    return images.reshape(count, SIDE, SIDE, 1), np.zeros(count, np.int64)


def gaussian_fits(draws, scale):
    """Exact: (x/scale)² adds up to χ²."""
    total = float(np.sum((draws / scale) ** 2))
    return (
        stats.chi2.cdf(total, draws.size) > FALSE_ALARM / 2
        and stats.chi2.sf(total, draws.size) > FALSE_ALARM / 2
    )


def samples_by_coins(kind):
    """Every record takes part with probability q, whoever else does, and a batch may be empty or
    thrice as large.
    """
    steps = 400
    for count in (6, 40):
        images, labels = single_pixels(count)
        training = showing(kind, steps=steps, expected_batch=3, declared_size=30, clip=2.0)
        found = sums(training, images, labels, SystemNoise(), steps)[:, :count]
        took_part = np.rint(found)
        assert np.allclose(found, took_part, atol=1e-4)
        assert set(np.unique(took_part)) == {0, 1}
        for record in took_part.T:
            assert stats.binomtest(int(record.sum()), steps, 0.1).pvalue > FALSE_ALARM
        sizes = took_part.sum(axis=1)
        assert stats.binomtest(int(sizes.sum()), took_part.size, 0.1).pvalue > FALSE_ALARM
        assert stats.binomtest(int((sizes == 0).sum()), steps, 0.9**count).pvalue > FALSE_ALARM
        large = stats.binom.sf(6, count, 0.1)
        assert stats.binomtest(int((sizes > 6).sum()), steps, large).pvalue > FALSE_ALARM
        assert (
            0.5 < sizes.var() / (count * 0.1 * 0.9) < 1.6
        )  # of 400 sizes: some 7 standard deviations


def adds_the_declared_noise(kind):
    """To batches of many micro-batches and to empty ones alike; new in each step and coordinate."""
    training = showing(
        kind, steps=60, noise_multiplier=2.0, clip=0.5, expected_batch=8, declared_size=64
    )
    release = block_releases(training.settings, "fit", Relation.ADD_REMOVE)[0]
    scale = release.scale / GRID * training.settings.clip
    assert scale == 1.0
    black, labels = np.zeros((160, SIDE, SIDE, 1), np.uint8), np.zeros(160, np.int64)
    for count in (0, 160):
        draws = sums(training, black[:count], labels[:count], SystemNoise(), 60)
        assert gaussian_fits(draws, scale)
        assert not gaussian_fits(draws, scale / 1.5)
        assert not gaussian_fits(draws, scale * 1.5)
        assert len(np.unique(draws)) > 0.99 * draws.size


def divides_by_the_expected_size(kind):
    """One record moves the parameters by 1/expected_batch, alone or among others, and labels do not
    matter.
    """
    images, labels = single_pixels(40)
    for count in (1, 3, 40):
        training = showing(kind, expected_batch=8, declared_size=8, clip=2.0)
        moved = training.block(training.start(), images[:count], labels[:count], SystemNoise())[
            1 : COUNT + 1
        ]
        assert np.allclose(moved[:count], -1 / 8)
        assert not moved[count : SIDE * SIDE].any()


def clips_each_record_over_all_parameters(kind):
    """A record more moves the sum by C at most, one replaced by 2C; with numbers that are none,
    too.
    """
    for seed in range(5):
        images, labels = images_of(11, seed), np.array([0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0])
        for clip in (1e-3, 1.0, 3.0):
            training = showing(kind, clip=clip)

            def total(chosen, training=training, images=images, labels=labels):
                return sums(training, images[chosen], labels[chosen], SystemNoise(), 1)[0]

            with np.errstate(invalid="ignore"):
                whole = total(range(10))
                assert all(
                    np.linalg.norm(whole - total([j for j in range(10) if j != i])) <= clip * 1.0001
                    for i in (0, 1, 9)
                )
                assert np.linalg.norm(whole - total([10, *range(1, 10)])) <= 2 * clip * 1.0001


def sums_what_the_records_say(kind):
    """Small gradients arrive whole, each once, whatever the micro-batch."""
    images = images_of(11)
    for size in (1, 4, 11, 64):
        training = showing(kind, clip=100.0, micro_batch=size)
        found = sums(training, images, np.zeros(11, np.int64), SystemNoise(), 1)[0]
        assert np.allclose(found, gradients_of(images).sum(axis=0), atol=1e-5)


PROMISES = [
    samples_by_coins,
    adds_the_declared_noise,
    divides_by_the_expected_size,
    clips_each_record_over_all_parameters,
    sums_what_the_records_say,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_step(promise):
    promise(Training)


class Shuffles(Training):
    def _sample(self, records, noise):
        return np.random.default_rng().permutation(records)[: self.settings.expected_batch]


class RateOfTheRealSize(Training):
    def _sample(self, records, noise):
        return np.flatnonzero(noise.coins(records, self.settings.expected_batch / max(1, records)))


class NoNoiseOnNothing(Training):
    def _add_noise(self, total, noise):
        return super()._add_noise(total, noise) if total.any() else total


class NoiseForEachMicroBatch(Training):
    def _clip(self, gradients, counted):
        return super()._add_noise(super()._clip(gradients, counted), SystemNoise())

    def _add_noise(self, total, noise):
        return total


class DividesByTheRealSize(Training):
    def _sample(self, records, noise):
        self.seen = super()._sample(records, noise)
        return self.seen

    def _mean(self, noisy):
        return noisy / max(1, len(self.seen))


class ClipsEachParameter(Training):
    def _clip(self, gradients, counted):
        return torch.cat(
            [clipped_sum([gradient], counted, self.settings.clip) for gradient in gradients]
        )


class NoClip(Training):
    def _clip(self, gradients, counted):
        far = 1e4
        return (clipped_sum(gradients, counted, far) * (far / self.settings.clip)).long()


class CountsBlanks(Training):
    def _clip(self, gradients, counted):
        return super()._clip([gradient + 0.01 for gradient in gradients], torch.ones_like(counted))


BROKEN = [
    (Shuffles, samples_by_coins),
    (RateOfTheRealSize, samples_by_coins),
    (NoNoiseOnNothing, adds_the_declared_noise),
    (NoiseForEachMicroBatch, adds_the_declared_noise),
    (DividesByTheRealSize, divides_by_the_expected_size),
    (ClipsEachParameter, clips_each_record_over_all_parameters),
    (NoClip, clips_each_record_over_all_parameters),
    (CountsBlanks, sums_what_the_records_say),
]


@pytest.mark.parametrize(("kind", "promise"), BROKEN, ids=lambda one: one.__name__)
def test_a_broken_step_is_found_out(kind, promise):
    with pytest.raises(AssertionError):
        promise(kind)


@pytest.mark.parametrize("relation", list(Relation))
def test_what_a_block_draws_is_what_its_release_declares(relation):
    settings = plain(
        steps=7, block=3, expected_batch=2, declared_size=40, clip=0.25, noise_multiplier=3.0
    )
    training = Training(Weights(), Showing(), settings)
    state, images = training.start(), images_of(50)
    for release in block_releases(settings, "fit", relation):
        noise = Recording(1)
        state = training.block(state, images, np.zeros(50, np.int64), noise)
        assert noise.gaussians == [(COUNT, release.scale)] * release.count
        assert noise.rates == [release.sampling.rate] * release.count
    assert training.step_of(state) == 7


def test_the_loss_draws_for_every_record_and_step_from_a_seed_of_its_own_that_the_noise_gives():
    seeds = []

    class Seeds(Showing):
        def draw(self, draws, shape, generator):
            seeds.append(generator.initial_seed())
            return ()

    training = Training(Weights(), Seeds(), plain(steps=3, block=3))
    for noise in (SystemNoise(), SystemNoise(), UnsafeSeededNoise(5), UnsafeSeededNoise(5)):
        training.block(training.start(), images_of(10), np.zeros(10, np.int64), noise)
    places = 3 * 3 * training.settings.micro_batch  # steps, micro-batches
    assert len(seeds) == 4 * places
    assert len(set(seeds)) == 3 * places
    assert seeds[2 * places : 3 * places] == seeds[3 * places :]
