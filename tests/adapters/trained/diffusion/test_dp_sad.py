"""DP-SAD: what its student learns from, what its discriminator sees, and its classes by public
centroids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.diffusion_networks import Denoising, scheduler, unet
from adapters.trained.dp_sad_networks import Chain, Distillation, Judge
from adapters.trained.public import tensors
from adapters.trained.settings import Discrimination, NetworkSize
from pe.plugins.protocols import RandomRequest
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import MemoryStore
from tests.adapters.trained.diffusion.small import (
    CLASSES,
    NETWORK,
    PLAIN,
    SHAPE,
    counted,
    images_file,
    records,
)
from tests.contracts.fitted import FITS, fitting, make, model_of, terms

CPU = torch.device("cpu")


def networks(*phases: str) -> list[Any]:
    return [
        unet(NetworkSize.model_validate(NETWORK), SHAPE, len(CLASSES) + 1, 0, phase)
        for phase in phases
    ]


def judge(teacher: nn.Module) -> Judge:
    settings = Discrimination(steps=3, batch=4, chains=6)
    return Judge(teacher.requires_grad_(False), SHAPE, len(CLASSES), settings, 5, 0)


def test_the_teacher_has_its_share_of_the_budget_and_the_student_all_the_rest() -> None:
    for share in (0.4, 0.9):
        planned = make(
            "dp_sad", {"teacher": FITS["dp_sad"]["teacher"] | {"share": share}}
        ).plan_releases(terms())
        assert epsilon(planned[:2], 1e-3) == pytest.approx(share * 20, rel=1e-3)
        assert 0.999 * 20 < epsilon(planned, 1e-3) <= 20


def test_a_teacher_of_public_images_alone_costs_nothing_and_shows_it_what_is_named_like_the_records(
    tmp_path: Path,
) -> None:
    own, store = terms(classes=CLASSES), MemoryStore()
    public = str(images_file(tmp_path / "public.npz", seed=9))
    free = make("dp_sad", {"public": public, "pretraining": PLAIN, "teacher": {"share": 0}})
    with counted(Judge, "learn") as rounds, counted(Judge, "_walk") as walks:
        free.fit(fitting(free, tmp_path, store, records, own))
    assert [one.release.name for one in store.charges()] == ["fit/training/1", "fit/training/2"]
    assert len(rounds) == 2  # before each block of the student, and not after the last
    assert len(walks) == 1
    free.load(tmp_path)
    assert (
        len(free.random_api(RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))).samples) == 2
    )


def test_the_discriminator_is_a_function_of_released_weights_and_public_seeds_alone() -> None:
    teacher, student, other = networks("teacher", "student", "other")
    weights = []
    for seen in (student, student, other):
        one = judge(teacher)
        one.learn(seen)
        weights.append(torch.cat([value.flatten() for value in one.discriminator.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_step_of_the_chain_is_the_sampler_s_own() -> None:
    schedule, chain = scheduler(), Chain(5, CPU)
    schedule.set_timesteps(5)
    rng = torch.Generator().manual_seed(0)
    noisy, velocity = (
        torch.randn((2, 1, 8, 8), generator=rng),
        0.1 * torch.randn((2, 1, 8, 8), generator=rng),
    )
    schedule.config.clip_sample = False
    for timestep in schedule.timesteps:
        wanted = schedule.step(velocity, timestep, noisy).prev_sample
        found = chain.next_image(noisy, velocity, timestep.expand(2))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def losses(loss: Denoising, student: Any) -> torch.Tensor:
    drawn = loss.draw(6, (1, 8, 8), torch.Generator().manual_seed(3))
    with torch.no_grad():
        return loss(student, tensors(records().samples[:1], CPU)[0], torch.tensor(1), drawn)


def test_each_term_of_the_loss_can_be_left_out() -> None:
    teacher, student = networks("teacher", "student")
    seen, none = judge(teacher), len(CLASSES)
    plain = losses(Distillation(teacher, None, 0, 0, none), student)
    judged = losses(Distillation(teacher, seen, 0, 1, none), student)
    torch.testing.assert_close(plain, losses(Denoising(none), student))
    assert (losses(Distillation(teacher, None, 1, 0, none), student) > plain).all()
    torch.testing.assert_close(
        losses(Distillation(student, None, 1, 0, none), student), plain
    )  # nothing to learn
    assert (judged < plain).all()  # log(1 − φ) is negative
    twice = losses(Distillation(teacher, seen, 0, 2, none), student)
    torch.testing.assert_close(twice - plain, 2 * (judged - plain))


def test_guidance_goes_beyond_the_class_and_away_from_none() -> None:
    request, found = RandomRequest(("0", "1"), np.array([1, 2], dtype=np.uint64)), []
    for guidance in (1.0, 1.8):
        sampled = make("dp_sad", {"guidance": guidance})
        sampled.load(model_of("dp_sad"))
        found.append(sampled.random_api(request).samples.array.astype(int))
    assert np.abs(found[1] - found[0]).mean() > 0.5
