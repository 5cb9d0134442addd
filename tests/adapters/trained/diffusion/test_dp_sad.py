"""DP-SAD: what its student learns from, what its discriminator sees, and what both cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.diffusion import Sampling
from adapters.trained.diffusion_networks import Velocity, scheduler, unet
from adapters.trained.dp_sad import DPSAD, Learning, Teaching
from adapters.trained.dp_sad_networks import Chain, Distillation, Judge
from adapters.trained.dp_sgd.gradients import clipped_sum, record_gradients
from adapters.trained.dp_sgd.training import Training
from adapters.trained.public import tensors
from adapters.trained.settings import GRID, Discrimination, Network, PlainTraining
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.errors import PrivacyError, RecipeError
from pe.plugins.protocols import RandomRequest
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import MemoryStore
from pe.privacy.release import Poisson, Relation
from tests.adapters.trained.diffusion.small import (
    CLASSES,
    NETWORK,
    PLAIN,
    PUBLIC,
    SHAPE,
    TRAINING,
    Broken,
    breaking,
    counted,
    fitting,
    private_file,
    recipe,
    records,
    releases,
    terms,
)
from tests.adapters.trained.sources import source

DISCRIMINATION = {"steps": 3, "batch": 4, "chains": 6}
API = {
    "kind": "dp_sad",
    "network": NETWORK,
    "teacher": TRAINING | {"share": 0.4},
    "training": TRAINING,
    "discrimination": DISCRIMINATION,
    "sampling": {"steps": 3},
    "device": "cpu",
}
NAMED = {"kind": "npz", "path": "PUBLIC"}
ALL = ["fit/teacher/1", "fit/teacher/2", "fit/training/1", "fit/training/2"]
TINY = Network.model_validate(NETWORK)


def model(**changes: Any) -> DPSAD:
    settings: dict[str, Any] = {
        "network": TINY,
        "teacher": Teaching.model_validate(API["teacher"]),
        "training": Learning.model_validate(TRAINING),
        "discrimination": Discrimination.model_validate(DISCRIMINATION),
        "sampling": Sampling(steps=3),
        "device": "cpu",
    }
    return DPSAD(**settings | changes)


def networks(*phases: str) -> list[Any]:
    return [unet(TINY, SHAPE, len(CLASSES) + 1, 0, phase) for phase in phases]


def judge(teacher: nn.Module, **changes: Any) -> Judge:
    settings = Discrimination.model_validate(DISCRIMINATION | changes)
    return Judge(teacher.requires_grad_(False), (1, 8, 8), len(CLASSES), settings, 5, 0)


def named_public(folder: Path) -> str:
    private = records(16, seed=9)
    np.savez(folder / "public.npz", images=private.samples, labels=np.array(CLASSES)[private.labels])
    return str(folder / "public.npz")


def test_teacher_and_student_are_charged_on_one_ledger_and_the_run_can_be_sampled_and_extended(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), api=API), tmp_path / "run", Surroundings())
    assert releases(run) == [(name, 1) for name in ALL]
    assert 7.99 < run.guarantee["epsilon"] <= 8
    assert run.synthetic.samples.array.shape == (8, *SHAPE)
    np.testing.assert_array_equal(run.synthetic.conditions["api_class"], run.synthetic.labels)
    files = PixelFiles.find(str(run.folder / "model"), None, offline=True)
    assert (files.unet["num_class_embeds"], files.class_count(), files.classes) == (3, 2, CLASSES)
    assert np.load(extend_run(run.folder, 6, 0.7, Surroundings()))["images"].shape == (6, *SHAPE)


def test_it_is_evolved_by_the_rest_of_the_budget(tmp_path: Path) -> None:
    content = recipe(private_file(tmp_path), iterations=1, api=API | {"fit": {"budget_share": 0.6}})
    run = run_recipe(content, tmp_path / "run", Surroundings())
    assert [name for name, _ in releases(run)] == [*ALL, "histogram/1"]
    assert 7.99 < run.guarantee["epsilon"] <= 8


def test_the_ledger_s_total_is_that_of_all_steps_counted_by_hand() -> None:
    planned = model().planned(terms())
    assert [release.name for release in planned] == ALL
    assert {release.sampling for release in planned} == {None}  # the rate is 1
    teacher, student = planned[0].noise_multiplier, planned[2].noise_multiplier
    mu = sqrt(4 / teacher**2 + 4 / student**2)  # four full-batch Gaussian steps each compose to one
    assert epsilon(planned, 1e-3) == pytest.approx(_gaussian_epsilon(mu, 1e-3), rel=1e-6)
    assert _gaussian_epsilon(sqrt(4 / teacher**2), 1e-3) == pytest.approx(0.4 * 8, rel=1e-6)


@pytest.mark.slow
def test_sampled_steps_are_declared_as_such() -> None:
    smaller = TRAINING | {"expected_batch": 6}
    planned = model(training=Learning.model_validate(smaller)).planned(terms(epsilon=1.0))
    assert [release.sampling for release in planned] == [None, None, Poisson(0.25), Poisson(0.25)]
    assert [release.count for release in planned] == [2, 2, 2, 2]


def test_a_teacher_of_public_images_alone_costs_nothing(tmp_path: Path) -> None:
    public = source(named_public(tmp_path))
    free = model(public=public, pretraining=PlainTraining.model_validate(PLAIN), teacher=Teaching(share=0))
    store, asked = MemoryStore(), []

    def private() -> Any:
        asked.append([one.release.name for one in store.charged() if one.array is None])
        return records()

    free.fit(fitting(free, tmp_path / "model", store, private))
    assert asked == [["fit/training/1"]]
    assert [one.release.name for one in store.charged()] == ["fit/training/1", "fit/training/2"]
    free.load(tmp_path / "model")
    assert len(free.random_api(RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))).samples) == 2


def test_records_are_read_only_while_a_block_is_drawn_and_never_by_the_discriminator(tmp_path: Path) -> None:
    store, asked, sad = MemoryStore(), [], model()

    def private() -> Any:
        asked.append([one.release.name for one in store.charged() if one.array is None])
        return records()

    with counted(Judge, "learn") as rounds, counted(Judge, "_walk") as walks:
        sad.fit(fitting(sad, tmp_path / "model", store, private))
    assert asked == [["fit/teacher/1"]]  # and then kept in memory, for the blocks
    assert len(rounds) == 2  # before each block of the student, and not after the last
    assert len(walks) == 1


def test_the_discriminator_is_a_function_of_released_weights_and_public_seeds_alone(tmp_path: Path) -> None:
    teacher, student, other = networks("teacher", "student", "other")
    one, two, three = judge(teacher), judge(teacher), judge(teacher)
    one.learn(student), two.learn(student), three.learn(other)
    for a, b in zip(one.discriminator.parameters(), two.discriminator.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(one.discriminator.parameters(), three.discriminator.parameters(), strict=True)
    )


@pytest.mark.slow
def test_the_discriminator_learns_whose_images_it_sees() -> None:
    teacher, student = networks("teacher", "student")
    with torch.no_grad():
        student.conv_out.bias += 0.5
    seen = judge(teacher, steps=150, batch=32, chains=32)
    seen.learn(student)
    step, which = torch.arange(5).repeat(32), torch.arange(32).repeat_interleave(5)
    noisy, steps, classes = seen._points[step, which], seen.chain.timesteps[step], seen._classes[which]
    with torch.no_grad():
        made = seen.chain.next_image(noisy, student(noisy, steps, class_labels=classes).sample, steps)
        level = seen.chain.after(steps)
        right = seen.discriminator(seen._points[step + 1, which], level, classes) > 0
        wrong = seen.discriminator(made, level, classes) > 0
    assert right.float().mean() > 0.9
    assert wrong.float().mean() < 0.1


def test_a_step_of_the_chain_is_the_sampler_s_own() -> None:
    schedule, chain = scheduler(), Chain(5, torch.device("cpu"))
    schedule.set_timesteps(5)
    rng = torch.Generator().manual_seed(0)
    noisy, velocity = torch.randn((2, 1, 8, 8), generator=rng), 0.1 * torch.randn((2, 1, 8, 8), generator=rng)
    schedule.config.clip_sample = False
    for timestep in schedule.timesteps:
        wanted = schedule.step(velocity, timestep, noisy).prev_sample
        found = chain.next_image(noisy, velocity, timestep.expand(2))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_next_step_images_are_as_far_apart_as_velocities_but_for_one_constant() -> None:
    chain, rng = Chain(10, torch.device("cpu")), torch.Generator().manual_seed(0)
    steps = torch.randint(100, 1000, (200,), generator=rng)
    noisy, one, other = (torch.randn((200, 1, 8, 8), generator=rng) for _ in range(3))
    images = chain.next_image(noisy, one, steps) - chain.next_image(noisy, other, steps)
    ratio = (images**2).sum(dim=(1, 2, 3)) / ((one - other) ** 2).sum(dim=(1, 2, 3))
    assert ratio.std() / ratio.mean() < 0.02


def losses(imitation: float, adversarial: float, teacher: Any, student: Any) -> torch.Tensor:
    seen = judge(teacher) if adversarial else None
    loss = Distillation(teacher, seen, imitation, adversarial, len(CLASSES))
    drawn = tuple(part[0] for part in loss.draw(1, 6, (1, 8, 8), torch.Generator().manual_seed(3)))
    image = tensors(records().samples[:1], torch.device("cpu"))[0]
    with torch.no_grad():
        return loss(student, image, torch.tensor(1), drawn)


def test_each_term_of_the_loss_can_be_left_out() -> None:
    teacher, student = networks("teacher", "student")
    plain, taught = losses(0, 0, teacher, student), losses(1, 0, teacher, student)
    judged, twice = losses(0, 1, teacher, student), losses(0, 2, teacher, student)
    drawn = tuple(part[0] for part in Velocity(none=2).draw(1, 6, (1, 8, 8), torch.Generator().manual_seed(3)))
    image = tensors(records().samples[:1], torch.device("cpu"))[0]
    with torch.no_grad():
        alone = Velocity(none=2)(student, image, torch.tensor(1), drawn)
    torch.testing.assert_close(plain, alone)
    assert (taught > plain).all()
    torch.testing.assert_close(losses(1, 0, student, student), plain)  # nothing to learn from oneself
    assert (judged < plain).all()  # log(1 − φ) is negative
    torch.testing.assert_close(twice - plain, 2 * (judged - plain))


def test_in_a_tenth_of_the_draws_the_class_is_none() -> None:
    unlabelled = Velocity(none=2).draw(500, 4, (1, 8, 8), torch.Generator().manual_seed(0))[3]
    assert 0.08 < unlabelled.float().mean() < 0.12
    told: list[torch.Tensor] = []

    def network(noisy: torch.Tensor, steps: torch.Tensor, class_labels: torch.Tensor) -> Any:
        told.append(class_labels)
        return type("Output", (), {"sample": torch.zeros_like(noisy)})

    drawn = torch.zeros(4, dtype=torch.int64), torch.ones(4), torch.zeros(4, 1, 8, 8), torch.tensor([1, 0, 0, 1]) > 0
    Velocity(none=2)(network, torch.zeros(1, 8, 8), torch.tensor(1), drawn)
    assert told[0].tolist() == [2, 1, 1, 2]


def test_per_record_gradients_of_the_whole_loss_equal_a_loop_over_records() -> None:
    teacher, student = networks("teacher", "student")
    loss = Distillation(teacher, judge(teacher), 1.0, 1.0, len(CLASSES))
    images, labels = tensors(records().samples[:3], torch.device("cpu")), torch.tensor([0, 1, 0])
    drawn = loss.draw(3, 4, (1, 8, 8), torch.Generator().manual_seed(1))
    parameters = {name: value.detach() for name, value in student.named_parameters()}
    found = record_gradients(student, loss, parameters, images, labels, drawn)
    for i in range(3):
        student.zero_grad()
        loss(student, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for gradient, parameter in zip(found, student.parameters(), strict=True):
            torch.testing.assert_close(gradient[i], parameter.grad, atol=1e-5, rtol=1e-4)


def clipped_at_the_output(weight: torch.Tensor, images: torch.Tensor, clip: float) -> torch.Tensor:
    """The gradient as published: what is clipped is the loss's at the student's output, for each record.

    The student is x_θ = θ·x: one weight, one pixel, the record's own loss alone.
    """
    made = (weight * images).requires_grad_()
    ((made - 1) ** 2).sum().backward()
    cut = made.grad * (clip / made.grad.abs()).clamp(max=1.0)
    found: torch.Tensor = (cut * images).sum()  # times ∂x_θ/∂θ
    return found


def test_clipping_at_the_output_as_published_moves_farther_than_it_claims_and_clipping_the_whole_does_not() -> None:
    weight, clip = torch.tensor(3.0), 1.0
    others, record = torch.tensor([0.5, 0.2]), torch.tensor([40.0])
    moved = clipped_at_the_output(weight, torch.cat([others, record]), clip) - clipped_at_the_output(
        weight, others, clip
    )
    assert moved.abs() > 30 * clip  # the Jacobian is the record itself, and nothing bounds it

    def whole(images: torch.Tensor) -> torch.Tensor:
        gradients = (2 * (weight * images - 1) * images)[:, None]
        return clipped_sum([gradients], torch.ones(len(images), dtype=torch.bool), clip)

    assert (whole(torch.cat([others, record])) - whole(others)).abs() <= GRID


def test_a_teacher_that_saw_the_records_unprotected_moves_every_record_s_gradient() -> None:
    """Why the teacher needs DP-SGD: clipped sums of ALL records move when one record changes an unprotected teacher."""
    teacher, student = networks("teacher", "student")
    images, labels = tensors(records(8).samples, torch.device("cpu")), torch.tensor([0, 1] * 4)
    clip, sums = 1e-3, []
    for shift in (0.0, 3.0):  # what one record more might do to a teacher without DP
        with torch.no_grad():
            teacher.conv_out.bias += shift
        loss = Distillation(teacher, None, 1.0, 0.0, len(CLASSES))
        drawn = loss.draw(8, 2, (1, 8, 8), torch.Generator().manual_seed(1))
        parameters = {name: value.detach() for name, value in student.named_parameters()}
        found = record_gradients(student, loss, parameters, images, labels, drawn)
        sums.append(clipped_sum(found, torch.ones(8, dtype=torch.bool), clip))
    assert (sums[1] - sums[0]).double().norm() > 2 * GRID  # seven of the eight records are the same


@contextmanager
def learned() -> Iterator[list[dict[str, torch.Tensor]]]:
    """The discriminator's weights each time that it has learned."""
    found: list[dict[str, torch.Tensor]] = []
    whole = Judge.learn

    def learn(judge: Judge, student: Any) -> None:
        whole(judge, student)
        found.append({name: value.clone() for name, value in judge.discriminator.state_dict().items()})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Judge, "learn", learn)
        yield found


@pytest.mark.parametrize("after", [1, 3])
def test_a_fit_that_breaks_off_goes_on_to_the_same_discriminators(after: int, tmp_path: Path) -> None:
    path = private_file(tmp_path)
    with learned() as before, breaking(after=after), pytest.raises(Broken):
        run_recipe(recipe(path, api=API), tmp_path / "run", Surroundings())
    with learned() as again, counted(Training, "block") as blocks:
        run = resume_run(tmp_path / "run", Surroundings())
    assert len(blocks) == 4 - after
    assert len(again) == 2
    assert len(before) == {1: 0, 3: 2}[after]  # of two blocks of the student's, before each
    for one, other in zip(before, again, strict=False):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert releases(run) == [(name, 1) for name in ALL]


def test_guidance_goes_beyond_the_class_and_away_from_none(tmp_path: Path) -> None:
    sad = model()
    sad.fit(fitting(sad, tmp_path / "model", MemoryStore()))
    request = RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))
    found = []
    for guidance in (1.0, 1.8):
        sampled = model(guidance=guidance)
        sampled.load(tmp_path / "model")
        found.append(sampled.random_api(request).samples.array.astype(int))
    assert np.abs(found[1] - found[0]).mean() > 0.5


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"teacher": {"share": 0}}, RecipeError, "teacher.share is 0, and public names no images"),
        ({"teacher": {"share": 1}}, RecipeError, r"teacher\.share must be less than 1, not 1"),
        ({"teacher": {"share": 0}, "public": PUBLIC}, RecipeError, "have none named 'ell': name public labels as"),
        ({"begin": "new", "imitation": 0, "adversarial": 0}, RecipeError, "the teacher would teach nothing"),
        ({"begin": "old"}, RecipeError, "begin"),
        ({"imitation": -1}, RecipeError, "imitation is -1"),
        ({"adversarial": -0.5}, RecipeError, "adversarial is -0.5: it must be at least 0"),
        ({"guidance": 0.5}, RecipeError, "guidance is 0.5: it must be at least 1, which is none"),
        ({"teacher": {**TRAINING, "share": 1e-5}}, PrivacyError, "the noise drowns even what all of them agree on"),
        ({"teacher": {**TRAINING, "share": 0.999999}}, PrivacyError, "noise drowns|take all of the budget|is left"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence_before_the_run_exists(
    changes: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence) as raised:
        run_recipe(recipe(private_file(tmp_path), api=API | changes), tmp_path / "run", Surroundings())
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_under_replace_one_both_move_twice_as_far(share: float) -> None:
    own = terms(relation=Relation.REPLACE_ONE)
    planned = model(teacher=Teaching.model_validate(TRAINING | {"share": share})).planned(own)
    assert [release.sensitivity for release in planned] == [2] * 4
    assert 0.999 * own.budget.epsilon < epsilon(planned, own.budget.delta) <= own.budget.epsilon


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of a Gaussian release with sensitivity over noise `mu`, by the closed form and bisection (Balle and Wang)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(epsilon: float) -> float:
        found: float = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta
        return found

    root: float = brentq(excess, 0, 100, xtol=1e-12)
    return root
