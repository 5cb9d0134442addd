"""Sampling and SDEdit against closed forms: for Gaussian data the ideal denoiser is linear.

With data N(μ, Σ), a step from ᾱ to ᾱ' is a linear map in each of Σ's directions, so that after any number of steps the
answer is normal, with a mean and a covariance that `chain` states. With ever more steps they become those of the data,
or, for SDEdit, those of the flow and of the posterior.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler

from adapters.diffusion.improved import CosineDDIM
from adapters.diffusion.items import Item, Job, normals, seeded
from adapters.diffusion.pixel import PixelModel

Array = npt.NDArray[np.float64]

SHAPE = (1, 2, 2)
MEAN = np.array([0.1, -0.2, 0.0, 0.25])
_TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
VARIANCES = np.array([0.04, 0.03, 0.02, 0.01])
COVARIANCE = _TURN @ np.diag(VARIANCES) @ _TURN.T
COUNT = 4000
STEPS = 50
PARENT = np.array([170, 120, 90, 200], dtype=np.uint8).reshape(2, 2, 1)


class Ideal:
    """ε for data N(MEAN, COVARIANCE) under a schedule: what a perfect network of it would say."""

    def __init__(self, kept: Any) -> None:
        self.kept = torch.as_tensor(kept, dtype=torch.float64)  # ᾱ

    def __call__(self, x: torch.Tensor, t: torch.Tensor, class_labels: None = None) -> SimpleNamespace:
        """x_t = √ᾱ x_0 + √(1−ᾱ) ε is normal, so E[ε | x_t] = √(1−ᾱ) (ᾱ Σ + (1−ᾱ) I)⁻¹ (x_t − √ᾱ μ)."""
        kept = self.kept[t]
        spread = kept * torch.tensor(COVARIANCE) + (1 - kept) * torch.eye(4)
        off = x.double().reshape(len(x), 4) - kept.sqrt() * torch.tensor(MEAN)
        noise = (1 - kept).sqrt() * torch.linalg.solve(spread, off.T).T
        return SimpleNamespace(sample=noise.reshape(x.shape).float())


def schedule(name: str) -> Any:
    if name.startswith("cosine"):
        return CosineDDIM("stride" if name.endswith("stride") else "ends")
    settings = {"num_train_timesteps": 1000, "clip_sample": False}
    return DDPMScheduler(**settings) if name == "ddpm" else DDIMScheduler(**settings, timestep_spacing="trailing")


def model(name: str, eta: float = 0.0) -> tuple[PixelModel, Any]:
    scheduler = schedule(name)
    kept = scheduler.alpha_bar if name.startswith("cosine") else scheduler.alphas_cumprod
    ideal: Any = Ideal(kept)
    return PixelModel(ideal, scheduler, SHAPE, torch.device("cpu"), torch.float32, eta=eta), scheduler


def made(name: str, steps: int, degree: float | None = None, eta: float = 0.0, count: int = COUNT) -> Array:
    """n×4, in [−1, 1]."""
    job = Job(steps, degree)
    items = [Item(job, seed, None if degree is None else PARENT) for seed in range(count)]
    network, _ = model(name, eta)
    with torch.no_grad():
        outcomes = network.sample(job, items) if degree is None else network.vary(job, items)
    return np.stack(outcomes).reshape(count, 4) / 127.5 - 1.0  # type: ignore[arg-type]


def betas(name: str) -> Array:
    """The trained noise schedule, from its definition."""
    if not name.startswith("cosine"):
        return np.linspace(0.0001, 0.02, 1000)
    left = np.cos((np.arange(4001) / 4000 + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - left[1:] / left[:-1], 0.999)


def visited(name: str, steps: int, degree: float = 1.0) -> list[float]:
    """ᾱ at each timestep that is run, then 1."""
    scheduler = schedule(name)
    scheduler.set_timesteps(steps)
    kept = np.cumprod(1 - betas(name))
    return [*kept[scheduler.timesteps[-round(steps * degree) :].numpy()].tolist(), 1.0]


def chain(kept: list[float], drawing: bool) -> tuple[Array, Array]:
    """Factor and added variance, per direction of Σ, from x_t − √ᾱ μ to x_0 − μ over these ᾱ.

    Args:
        kept: ᾱ at each timestep, then 1.
        drawing: whether each step draws from its posterior (DDPM, and DDIM with η = 1), or follows the flow (η = 0).
    """
    factor, added = np.ones(4), np.zeros(4)
    for now, then in itertools.pairwise(kept):
        clean = np.sqrt(now) * VARIANCES / (now * VARIANCES + 1 - now)  # E[x_0 | x_t] per x_t
        if drawing:
            beta = 1 - now / then
            step = (np.sqrt(then) * beta * clean + np.sqrt(1 - beta) * (1 - then)) / (1 - now)
            noise = beta * (1 - then) / (1 - now)
        else:
            step = np.sqrt(then) * clean + np.sqrt((1 - then) / (1 - now)) * (1 - np.sqrt(now) * clean)
            noise = 0.0
        factor, added = factor * step, added * step**2 + noise
    return factor, added


def assert_normal(found: Array, mean: Array, variances: Array, share: float = 0.0) -> None:
    """In the directions of Σ: mean and covariance to five standard errors, and a share of it for finite steps."""
    n, deviations = len(found), np.sqrt(variances)
    turned = found @ _TURN
    np.testing.assert_array_less(np.abs(turned.mean(axis=0) - mean @ _TURN), 5 * deviations / np.sqrt(n) + 0.001)
    errors = np.abs(np.cov(turned.T) - np.diag(variances)) / np.outer(deviations, deviations)
    np.testing.assert_array_less(errors, 5 * (1 + np.eye(4) * 0.42) / np.sqrt(n) + share)


SAMPLERS = [("ddim", 0.0), ("ddim", 1.0), ("ddpm", 0.0), ("cosine ends", 0.0), ("cosine stride", 0.0)]


@pytest.mark.parametrize(("name", "eta"), SAMPLERS)
def test_sampling_has_the_mean_and_covariance_of_its_steps(name: str, eta: float) -> None:
    drawing = name == "ddpm" or eta == 1
    kept = visited(name, STEPS)
    factor, added = chain(kept, drawing)
    mean = MEAN - _TURN @ (factor * (_TURN.T @ MEAN)) * np.sqrt(kept[0])  # x_T starts around 0, not around √ᾱ μ
    assert_normal(made(name, STEPS, eta=eta, count=1000 if drawing else COUNT), mean, factor**2 + added)


@pytest.mark.parametrize("degree", [0.2, 0.5, 0.8])
@pytest.mark.parametrize(("name", "eta"), SAMPLERS)
def test_sdedit_has_the_mean_and_covariance_of_its_steps(name: str, eta: float, degree: float) -> None:
    drawing = name == "ddpm" or eta == 1
    kept = visited(name, STEPS, degree)
    factor, added = chain(kept, drawing)
    parent = PARENT.reshape(4) / 127.5 - 1.0
    mean = MEAN + _TURN @ (factor * (_TURN.T @ (parent - MEAN))) * np.sqrt(kept[0])
    found = made(name, STEPS, degree, eta, count=1000 if drawing else COUNT)
    assert_normal(found, mean, factor**2 * (1 - kept[0]) + added)


@pytest.mark.parametrize("degree", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["ddim", "cosine ends", "cosine stride"])
def test_deterministic_sdedit_is_the_linear_map_of_its_noise_image_by_image(name: str, degree: float) -> None:
    kept = visited(name, STEPS, degree)
    factor, _ = chain(kept, drawing=False)
    parent = PARENT.reshape(4) / 127.5 - 1.0
    noise = normals(SHAPE, [seeded(seed) for seed in range(100)]).numpy().reshape(100, 4)
    off = np.sqrt(kept[0]) * (parent - MEAN) + np.sqrt(1 - kept[0]) * noise
    expected = MEAN + (off @ _TURN * factor) @ _TURN.T
    assert np.abs(made(name, STEPS, degree, count=100) - expected).max() < 0.51 / 127.5  # half a grey level


def test_many_steps_reproduce_the_mean_and_covariance_of_the_data() -> None:
    assert_normal(made("cosine ends", 1000), MEAN, VARIANCES, share=0.06)


@pytest.mark.parametrize("degree", [0.2, 0.5, 0.8, 1.0])
def test_with_more_steps_sdedit_becomes_the_flow_s_map_and_the_posterior(degree: float) -> None:
    """Flow: Σ^½ (ᾱ Σ + (1−ᾱ) I)^−½. Posterior: √ᾱ Σ (ᾱ Σ + (1−ᾱ) I)⁻¹, with covariance Σ (1−ᾱ) (ᾱ Σ + (1−ᾱ) I)⁻¹."""
    errors = []
    for steps in (250, 500, 1000, 2000):
        kept = visited("cosine ends", steps, degree)
        spread = kept[0] * VARIANCES + 1 - kept[0]
        factor, _ = chain(kept, drawing=False)
        flow = np.abs(factor * np.sqrt(spread / VARIANCES) - 1).max()
        _, added = chain(kept, drawing=True)
        errors.append((flow, np.abs(added * spread / (VARIANCES * (1 - kept[0])) - 1).max()))
    for coarse, fine in itertools.pairwise(errors):
        assert fine[0] < 0.75 * coarse[0]
        assert fine[1] < 0.75 * coarse[1]
    assert max(errors[-1]) < 0.05


def test_a_larger_degree_forgets_more_of_the_parent() -> None:
    image = PARENT.reshape(4) / 127.5 - 1.0
    degrees = (0.1, 0.4, 0.7, 1.0)
    distances = [np.linalg.norm(made("ddim", STEPS, degree, count=500) - image, axis=1).mean() for degree in degrees]
    assert distances == sorted(distances)
    fresh = np.linalg.norm(made("ddim", STEPS, count=500) - image, axis=1).mean()
    assert distances[-1] == fresh


def test_the_largest_strided_timestep_leaves_a_trace_of_the_parent() -> None:
    """The paper's Camelyon17 run varies from "timestep 10 of 10", which is 3,600 of 4,000."""
    assert visited("cosine stride", 10)[0] == pytest.approx(0.02397, abs=1e-5)
    assert visited("cosine ends", 10)[0] < 1e-9
