"""DP-ImgSyn's alignment, and the answers of a fitted model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained.dp_imgsyn import DPImgSyn
from adapters.trained.dp_imgsyn_networks import Aim, Reader, Way, align, align_companions, total_variation
from adapters.trained.public import tensors
from adapters.trained.settings import Alignment
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import PEError
from pe.plugins.protocols import VariationRequest
from tests.adapters.trained.dp_imgsyn.small import (
    ALIGNMENT,
    CPU,
    PUBLIC,
    asked,
    private_file,
    recipe,
)
from tests.adapters.trained.sources import source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fitted")
    return run_recipe(recipe(private_file(place)), place / "run", Surroundings()).folder / "model"


def loaded(folder: Path, **alignment: Any) -> DPImgSyn:
    settings = Alignment.model_validate(ALIGNMENT | alignment)
    api = DPImgSyn(public=source(PUBLIC), alignment=settings, device="cpu")
    api.load(folder)
    return api


@pytest.fixture(scope="module")
def fitted(folder: Path) -> DPImgSyn:
    return loaded(folder)


def varied(api: DPImgSyn, degree: float, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    parents = api.random_api(asked(count))
    request = VariationRequest(
        parents.samples, asked(count).labels, parents.conditions, np.arange(count, dtype=np.uint64) + 99, degree
    )
    return parents.samples.array, api.variation_api(request).samples.array


def test_an_answer_does_not_depend_on_what_else_was_asked(fitted: DPImgSyn) -> None:
    model = fitted._model
    assert model is not None
    # in float64: Adam makes much of a gradient's rounding, which differs between processors and batches
    reader, way = Reader(deepcopy(model.aim.reader.teacher).double(), CPU), model.way
    aim = Aim(reader, model.aim.means.double(), model.aim.deviations.double())
    way = Way(way.means.double(), way.squares.double())
    images = torch.from_numpy(np.stack([model.anew(seed)[0] for seed in range(6)])).permute(0, 3, 1, 2).double()
    labels, begin = torch.arange(6) % 2, torch.arange(6) % 3
    whole = align(images, labels, aim, way, begin, model.alignment)
    assert (whole != images).any()
    for i in range(6):
        alone = align(images[i : i + 1], labels[i : i + 1], aim, way, begin[i : i + 1], model.alignment)
        torch.testing.assert_close(alone, whole[i : i + 1], rtol=0, atol=1e-6)


def test_requests_at_the_same_time_get_the_answers_that_each_gets_alone(fitted: DPImgSyn) -> None:
    alone = fitted.random_api(asked(40))
    with ThreadPoolExecutor(4) as pool:
        together = [one.result() for one in [pool.submit(fitted.random_api, asked(40)) for _ in range(8)]]
    for answer in together:
        np.testing.assert_array_equal(answer.samples.array, alone.samples.array)


def test_a_fitted_model_can_be_sampled_with_fewer_steps_of_alignment_and_not_with_more(folder: Path) -> None:
    answers = [loaded(folder, steps=steps).random_api(asked()).samples.array.astype(int) for steps in (0, 2, 3)]
    moved = [np.abs(answer - answers[0]).mean() for answer in answers[1:]]
    assert 0 < moved[0] < moved[1]
    with pytest.raises(PEError, match=r"alignment\.steps is 4, and the model was fitted for 3: take at most those"):
        loaded(folder, steps=4)


def test_degree_0_changes_nothing_and_a_larger_one_changes_more(fitted: DPImgSyn) -> None:
    moved = []
    for degree in (0.0, 0.2, 1.0):
        parents, children = varied(fitted, degree, 24)
        moved.append(np.abs(parents.astype(float) - children).mean())
    assert moved[0] == 0
    assert 0 < moved[1] < moved[2]


def test_alignment_by_the_label_alone_makes_the_teacher_surer_of_it_and_keeps_images_smooth(folder: Path) -> None:
    model = loaded(folder, feature=0.0)._model
    assert model is not None
    labels = np.arange(24) % 2
    images = np.stack([model.anew(seed)[0] for seed in range(24)])
    still, soft_before = model.aligned(images, labels, np.full(24, len(model.way.means)))
    moved, soft_after = model.aligned(images, labels, np.zeros(24, dtype=np.int64))
    np.testing.assert_array_equal(still, ((images + 1) * 127.5).round().astype(np.uint8))
    sure = [soft[np.arange(24), labels].mean() for soft in (soft_before, soft_after)]
    assert sure[1] > sure[0]
    rough = [total_variation(torch.from_numpy(each / 127.5 - 1).permute(0, 3, 1, 2).float()) for each in (still, moved)]
    assert (rough[1] <= 2.05 * rough[0]).all()


def test_alignment_by_the_moments_alone_brings_them_nearer_to_the_private_ones(fitted: DPImgSyn) -> None:
    model = fitted._model
    assert model is not None
    rest = dict.fromkeys(("classification", "total_variation", "norm"), 0.0)
    settings = Alignment.model_validate(ALIGNMENT | rest | {"steps": 8})
    images = tensors(model.public.images[:12], CPU)
    way = align_companions(images, torch.arange(12) % 2, model.aim, settings)
    away = [(means - model.aim.means).square().sum() for means in way.means]
    assert away[-1] < away[0]


@pytest.mark.parametrize("weight", ["feature", "classification", "total_variation", "norm"])
def test_each_weight_moves_images_by_itself_and_without_any_they_stay(fitted: DPImgSyn, weight: str) -> None:
    model = fitted._model
    assert model is not None
    images = tensors(np.stack([model.public.images[place] for place in range(12)]), CPU)
    labels, begin = torch.arange(12) % 2, torch.zeros(12, dtype=torch.int64)
    none = dict.fromkeys(("feature", "classification", "total_variation", "norm"), 0.0)
    for weights, moves in ((none, False), (none | {weight: 1.0}, True)):
        settings = Alignment.model_validate(ALIGNMENT | weights)
        moved = align(images, labels, model.aim, model.way, begin, settings)
        assert (moved != images).any() == moves
