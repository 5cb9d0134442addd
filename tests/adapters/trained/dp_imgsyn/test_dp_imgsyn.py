"""DP-ImgSyn: its public images, its teacher, its alignment and its soft labels."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from adapters.trained.dp_imgsyn import DPImgSyn
from adapters.trained.dp_imgsyn_networks import (
    AlignedModel,
    CrossEntropy,
    Reader,
)
from adapters.trained.dp_sgd.gradients import record_gradients, stack, trained_parameters
from adapters.trained.public import tensors
from pe.data.samples import SOFT_LABEL
from pe.engine.execution import RunContext, resume_run, run_recipe, stored_recipe
from pe.engine.extend import extend_run
from pe.errors import PEError, RecipeError, RunError
from pe.plugins.protocols import RandomRequest
from pe.recipe.schema import Recipe
from tests.adapters.trained.diffusion import small
from tests.adapters.trained.diffusion.small import SHAPE, SIDE, Broken, breaks, private_file
from tests.adapters.trained.dp_imgsyn.teachers import RunningMean, with_spectral_norm
from tests.contracts.fitted import FITS, make, model_of

CPU = torch.device("cpu")
OWN = {"teacher": "tests.adapters.trained.dp_imgsyn.teachers:Tied"}


def recipe(path: Path, **changes: Any) -> Recipe:
    public = {"kind": "glyphs", "characters": "XMT", "count": 40}
    fit = {"kind": "dp_imgsyn", "public": public, "training": small.TRAINING}
    return small.recipe(path, api=FITS["dp_imgsyn"] | fit | changes)


def images_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (40, *SHAPE), dtype=np.uint8)


def test_public_images_may_lie_elsewhere_and_must_be_those_it_was_fitted_with_and_so_its_own_teacher(
    tmp_path: Path,
) -> None:
    public, private = tmp_path / "public.npz", private_file(tmp_path)
    np.savez(public, images=images_of(5))
    run = run_recipe(
        recipe(private, public={"kind": "npz", "path": str(public)}, **OWN),
        tmp_path / "run",
        RunContext(),
    )
    moved = public.rename(tmp_path / "moved.npz")
    there = (f"api.public.path={moved}",)
    assert np.load(extend_run(run.folder, 3, 0.5, RunContext(), there))["images"].shape == (
        3,
        *SHAPE,
    )

    again = recipe(private).model_dump(mode="json", exclude_none=True)

    def reused(**settings: object) -> object:
        again["api"] = {"kind": "trained", "path": str(run.folder), "settings": settings}
        return run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", RunContext())

    with pytest.raises(RecipeError, match=r"runs code that it names itself, teacher: '.*:Tied'"):
        reused(public={"path": str(moved)})
    with pytest.raises(RecipeError, match=r"there is no \.npz file at '.*public\.npz'"):
        reused(**OWN)
    np.savez(moved, images=images_of(5)[::-1])
    with pytest.raises(
        RecipeError, match=r"api\.public`: the images of .*moved\.npz are not those with which"
    ):
        reused(public={"path": str(moved)}, **OWN)
    assert not (tmp_path / "again").exists()
    np.savez(moved, images=images_of(5))
    assert len(reused(public={"path": str(moved)}, **OWN).synthetic) == 8


def test_a_fit_that_is_gone_on_with_keeps_its_public_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("first", 1), ("other", 2)):
        np.savez(tmp_path / f"{name}.npz", images=images_of(seed))
    wanted = recipe(
        private_file(tmp_path), public={"kind": "npz", "path": str(tmp_path / "first.npz")}
    )
    with monkeypatch.context() as patched:
        patched.setattr("adapters.trained.fit.noisy_sums", breaks)
        with pytest.raises(Broken):
            run_recipe(wanted, tmp_path / "run", RunContext())
    others = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'other.npz'}",))
    with pytest.raises(
        RunError, match=r"public images .*other\.npz are not those that .*run began with"
    ):
        resume_run(tmp_path / "run", RunContext(), others)
    (tmp_path / "first.npz").rename(tmp_path / "moved.npz")
    moved = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'moved.npz'}",))
    assert len(resume_run(tmp_path / "run", RunContext(), moved).synthetic) == 8


def test_soft_labels_go_with_the_samples_into_every_export(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", RunContext())
    soft = run.population(0).conditions[SOFT_LABEL]
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)
    for form in ("npz", "folder", "parquet"):
        run.export(tmp_path / form, form)
    np.testing.assert_array_equal(np.load(tmp_path / "npz" / "synthetic.npz")["soft_labels"], soft)
    with (tmp_path / "folder" / "synthetic" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [[float(row["p(ell)"]), float(row["p(oh)"])] for row in rows]
    np.testing.assert_allclose(written, soft, rtol=1e-6)
    column = pq.read_table(tmp_path / "parquet" / "synthetic.parquet")["soft_label"].to_pylist()
    np.testing.assert_allclose(column, soft, rtol=1e-6)


def test_what_a_layer_writes_when_it_is_called_reaches_no_other_image() -> None:
    """Beside the refusal: buffers are copied for every call, in training and in reading."""
    torch.manual_seed(0)
    public = images_of(0)[:6]
    reader = Reader(RunningMean(1, 2), CPU)
    alone = reader.moments(public[:1])
    reader.moments(public[1:])
    np.testing.assert_array_equal(np.hstack(reader.moments(public[:1])), np.hstack(alone))
    assert reader.teacher.mean == 0

    model, loss = with_spectral_norm(1, 2).train(), CrossEntropy(1)
    before = {name: value.clone() for name, value in model.named_buffers()}
    generator = torch.Generator().manual_seed(0)
    drawn = stack([loss.draw(2, (1, SIDE, SIDE), generator) for _ in range(6)], CPU)
    record_gradients(
        model, loss, trained_parameters(model), tensors(public, CPU), torch.arange(6) % 2, drawn
    )
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


ALIGNMENT = FITS["dp_imgsyn"]["alignment"]


def loaded(**alignment: Any) -> DPImgSyn:
    api = make("dp_imgsyn", {"alignment": ALIGNMENT | alignment, "batch_size": 40})
    api.load(model_of("dp_imgsyn"))
    return api


def model(**alignment: Any) -> AlignedModel:
    found = loaded(**alignment)._model
    assert found is not None
    return found


def asked(count: int = 6) -> RandomRequest:
    return RandomRequest(
        tuple("01"[i % 2] for i in range(count)), np.arange(count, dtype=np.uint64)
    )


def test_requests_at_the_same_time_get_the_answers_that_each_gets_alone() -> None:
    api = loaded()
    alone = api.random_api(asked(40))
    with ThreadPoolExecutor(4) as pool:
        together = [
            one.result() for one in [pool.submit(api.random_api, asked(40)) for _ in range(8)]
        ]
    for answer in together:
        np.testing.assert_array_equal(answer.samples.array, alone.samples.array)


def test_a_fitted_model_can_be_sampled_with_fewer_steps_of_alignment_and_not_with_more() -> None:
    answers = [
        loaded(steps=steps).random_api(asked()).samples.array.astype(int) for steps in (0, 2, 4)
    ]
    moved = [np.abs(answer - answers[0]).mean() for answer in answers[1:]]
    assert 0 < moved[0] < moved[1]
    with pytest.raises(
        PEError,
        match=r"alignment\.steps` is 5, but the model was fitted for 4\. Take at most those",
    ):
        loaded(steps=5)
