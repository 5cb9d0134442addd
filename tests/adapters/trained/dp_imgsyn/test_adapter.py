"""DP-ImgSyn: its teacher, alignment, and runs that fit, sample and evolve it."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import pe
from adapters.glyphs import Glyphs
from adapters.trained.dp_imgsyn.adapter import DPImgSyn
from adapters.trained.dp_imgsyn.alignment import align, align_companions, total_variation
from adapters.trained.dp_imgsyn.moments import moments_release
from adapters.trained.dp_imgsyn.reader import Reader
from adapters.trained.dp_imgsyn.settings import Alignment
from adapters.trained.dp_imgsyn.teacher import CrossEntropy, make_teacher
from adapters.trained.dp_sgd.gradients import record_gradients
from adapters.trained.plain import tensors
from adapters.trained.public import Public
from pe.data.conditions import SOFT_LABEL
from pe.engine.execute import Surroundings, resume_run, run_recipe, stored_recipe
from pe.engine.extend import extend_run
from pe.errors import APIError, PEError, RecipeError
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.protocols import RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.trainer import FitTerms

SIDE, CLASSES, COUNT = 8, ("ell", "oh"), 24
SHAPE = (SIDE, SIDE, 1)
CPU = torch.device("cpu")
TRAINING = {"steps": 4, "block": 2, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
ALIGNMENT = {"steps": 3, "companions": 12}
PUBLIC = {"kind": "glyphs", "characters": "XMT", "count": 40}


@pytest.mark.parametrize("kind", ["small", "resnet18"])
def test_per_record_gradients_equal_a_loop_over_records(kind: str) -> None:
    torch.manual_seed(0)
    model, loss = make_teacher(kind, 1, SIDE, 2, 0), CrossEntropy(1)
    images, labels = torch.randn(3, 1, SIDE, SIDE), torch.tensor([0, 1, 1])
    drawn = loss.draw(3, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(0))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    found = record_gradients(model, loss, parameters, images, labels, drawn)
    for i in range(3):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for each, (name, value) in zip(found, model.named_parameters(), strict=True):
            assert value.grad is not None, name
            torch.testing.assert_close(each[i], value.grad, rtol=1e-4, atol=1e-5)


def test_a_shifted_copy_is_the_image_moved() -> None:
    image = torch.arange(9.0).view(1, 3, 3)
    seen: list[torch.Tensor] = []

    def model(copies: torch.Tensor) -> torch.Tensor:
        seen.append(copies)
        return torch.zeros(len(copies), 2)

    CrossEntropy(1)(model, image, torch.tensor(0), (torch.tensor([[0, 0], [1, 0], [0, -1]]),))
    torch.testing.assert_close(seen[0][0], image)
    torch.testing.assert_close(seen[0][1, 0, 1:], image[0, :-1])
    torch.testing.assert_close(seen[0][2, 0, :, :-1], image[0, :, 1:])


def private_file(folder: Path) -> Path:
    labels = np.arange(COUNT) % 2
    seeds = np.random.default_rng(5).integers(0, 2**63, COUNT).astype(np.uint64)
    images = Glyphs(size=SIDE).random_api(RandomRequest(tuple("LO"[label] for label in labels), seeds)).samples.array
    np.savez(folder / "private.npz", images=images, labels=np.array(CLASSES)[labels])
    return folder / "private.npz"


def recipe(path: Path, iterations: int = 0, **api: Any) -> Recipe:
    common = {"kind": "dp_imgsyn", "public": PUBLIC, "training": TRAINING, "alignment": ALIGNMENT, "device": "cpu"}
    return Recipe.parse(
        {
            "private": {
                "kind": "npz",
                "path": path,
                "size": SIDE,
                "channels": 1,
                "classes": list(CLASSES),
                "declared_size": COUNT,
            },
            "api": common | ({"fit": {"budget_share": 0.6}} if iterations else {}) | api,
            "embedding": {"kind": "pixels", "size": SIDE},
            "privacy": {"epsilon": 8, "delta": 1e-3},
            "evolution": {"iterations": iterations, "population": 8, "lookahead": 0, "degree": 0.5},
        },
        "the test",
    )


def test_it_is_fitted_and_sampled_on_one_ledger_which_a_hand_computation_confirms(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    names = {release["name"]: release for release in run.guarantee["releases"]}
    assert list(names) == ["fit/moments", "fit/training/1", "fit/training/2"]
    moments_, sigma = names["fit/moments"], names["fit/training/1"]["noise_multiplier"]
    by_hand = [
        Release("a", "discrete_gaussian", 1.0, moments_["noise_multiplier"], grid=moments_["grid"]),
        Release("b", "gaussian", 1e-3, sigma, count=4),
    ]
    assert run.guarantee["epsilon"] == pytest.approx(epsilon(by_hand, 1e-3), rel=1e-6)
    assert run.guarantee["epsilon"] <= 8
    alone = moments_release(Budget(0.1 * 8, 1e-3), Relation.ADD_REMOVE, "record")
    assert moments_["noise_multiplier"] == alone.noise_multiplier
    soft = run.population(0).conditions[SOFT_LABEL]
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)


def test_part_of_the_budget_fits_it_and_the_rest_evolves_it(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), iterations=2), tmp_path / "run", Surroundings())
    names = [release["name"] for release in run.guarantee["releases"]]
    assert names == ["fit/moments", "fit/training/1", "fit/training/2", "histogram/1", "histogram/2"]
    assert run.guarantee["epsilon"] <= 8


def test_a_fit_that_is_gone_on_with_draws_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        pass

    def broken(*_: Any) -> Any:
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr("adapters.trained.dp_imgsyn.adapter.noisy_sum", broken)
        with pytest.raises(Broken):
            run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run" / "releases").iterdir()}
    assert set(kept) == {"fit-training-1.npy", "fit-training-2.npy"}
    run = resume_run(tmp_path / "run", Surroundings())
    assert all((run.folder / "releases" / name).read_bytes() == content for name, content in kept.items())
    assert [release["charges"] for release in run.guarantee["releases"]] == [1, 1, 1]


def test_public_images_may_lie_elsewhere_and_must_be_those_it_was_fitted_with(tmp_path: Path) -> None:
    public = tmp_path / "public.npz"
    images = np.random.default_rng(5).integers(0, 256, (40, *SHAPE)).astype(np.uint8)
    np.savez(public, images=images)
    private = private_file(tmp_path)
    run = run_recipe(recipe(private, public={"kind": "npz", "path": str(public)}), tmp_path / "run", Surroundings())
    moved = public.rename(tmp_path / "moved.npz")
    there = (f"api.public.path={moved}",)
    assert np.load(extend_run(run.folder, 3, 0.5, Surroundings(), there))["images"].shape == (3, *SHAPE)
    again = recipe(private).model_dump(mode="json", exclude_none=True)
    again["api"] = {"kind": "trained", "path": str(run.folder)}
    with pytest.raises(RecipeError, match=r"there is no \.npz file at '.*public\.npz'"):
        run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings())
    again["api"]["settings"] = {"public": {"path": str(moved)}}
    np.savez(moved, images=images[::-1])
    with pytest.raises(RecipeError, match=r"api\.public: the images of .*moved\.npz are not those with which"):
        run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings())
    assert not (tmp_path / "again").exists()
    np.savez(moved, images=images)
    assert len(run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings()).synthetic) > 0


def test_a_fit_that_is_gone_on_with_keeps_its_public_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        pass

    def broken(*_: Any) -> Any:
        raise Broken

    for name, seed in (("first", 1), ("other", 2)):
        images = np.random.default_rng(seed).integers(0, 256, (40, *SHAPE)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images)
    wanted = recipe(private_file(tmp_path), public={"kind": "npz", "path": str(tmp_path / "first.npz")})
    with monkeypatch.context() as patched:
        patched.setattr("adapters.trained.dp_imgsyn.adapter.noisy_sum", broken)
        with pytest.raises(Broken):
            run_recipe(wanted, tmp_path / "run", Surroundings())
    others = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'other.npz'}",))
    with pytest.raises(RecipeError, match=r"the images of .*other\.npz are not those with which .*run was fitted"):
        resume_run(tmp_path / "run", Surroundings(), others)
    (tmp_path / "first.npz").rename(tmp_path / "moved.npz")
    moved = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'moved.npz'}",))
    assert len(resume_run(tmp_path / "run", Surroundings(), moved).synthetic) == 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fitted")
    return run_recipe(recipe(private_file(place)), place / "run", Surroundings()).folder / "model"


def loaded(folder: Path, **alignment: Any) -> DPImgSyn:
    settings = Alignment.model_validate(ALIGNMENT | alignment)
    api = DPImgSyn(public=Public.model_validate(PUBLIC), alignment=settings, device="cpu")
    api.load(folder)
    return api


@pytest.fixture(scope="module")
def fitted(folder: Path) -> DPImgSyn:
    return loaded(folder)


def asked(count: int = 6) -> RandomRequest:
    return RandomRequest(tuple(CLASSES[i % 2] for i in range(count)), np.arange(count, dtype=np.uint64))


def varied(api: DPImgSyn, degree: float, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    parents = api.random_api(asked(count))
    request = VariationRequest(
        parents.samples, asked(count).labels, parents.conditions, np.arange(count, dtype=np.uint64) + 99, degree
    )
    return parents.samples.array, api.variation_api(request).samples.array


def test_an_answer_does_not_depend_on_what_else_was_asked(fitted: DPImgSyn) -> None:
    whole = fitted.random_api(asked()).samples.array.astype(int)
    one = RandomRequest(asked().labels[3:4], asked().seeds[3:4])
    assert np.abs(fitted.random_api(one).samples.array.astype(int) - whole[3:4]).max() <= 1


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


def test_noise_may_be_what_it_begins_with(tmp_path: Path) -> None:
    public = {"kind": "noise", "count": 30}
    run = run_recipe(recipe(private_file(tmp_path), public=public), tmp_path / "run", Surroundings())
    assert isinstance(run, pe.Run)
    assert len(run.synthetic) == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"teacher": "large"}, "take small, resnet18 or package.module:function"),
        ({"teacher": f"{__name__}:with_batch_norm"}, "BatchNorm2d.*take GroupNorm in its place"),
        ({"teacher": f"{__name__}:without_norm"}, "no GroupNorm layer"),
        ({"teacher": f"{__name__}:with_spectral_norm"}, "writes to '0.parametrizations.weight.0._u' when it is called"),
        ({"teacher": f"{__name__}:with_running_mean"}, "RunningMean writes to 'mean' when it is called.*GroupNorm"),
        ({"teacher": f"{__name__}:with_a_count"}, "Counting answers the same image otherwise when it is asked again"),
        ({"teacher": f"{__name__}:with_coins"}, "Coins answers the same image otherwise"),
        ({"teacher": f"{__name__}:with_wide_kernel"}, "cannot be trained record by record on images of 8×8×1 .*Kernel"),
        ({"teacher": f"{__name__}:with_a_branch"}, "cannot be trained record by record on images of 8×8×1 .*vmap"),
        ({"teacher": f"{__name__}:of_five"}, "makes 3×5 numbers of 3 images, not 3×2 logits"),
        ({"alignment": {"companions": 50}}, "companions is 50, and the public set has 40 images"),
        ({"moments_share": 1.0}, "moments_share is 1"),
        ({"moments_share": 1e-6}, "24 records add at most 1 each: take a larger share"),
        ({"public": {"kind": "folder", "path": "nowhere"}}, "no folder with images at 'nowhere'"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = private_file(tmp_path)
    with pytest.raises(PEError, match=said) as raised:
        run_recipe(recipe(path, **changes), tmp_path / "run", Surroundings())
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]  # neither a run nor an entry in the data set's budget


def test_a_teacher_of_one_s_own_is_fitted_and_layers_may_share_their_weights(tmp_path: Path) -> None:
    own = {"teacher": f"{__name__}:with_tied_weights"}
    run = run_recipe(recipe(private_file(tmp_path), **own), tmp_path / "run", Surroundings())
    assert len(run.synthetic) == 8
    assert np.load(extend_run(run.folder, 4, 0.5, Surroundings()))["images"].shape == (4, *SHAPE)

    handed_on = {"kind": "trained", "path": str(run.folder)}
    content = recipe(private_file(tmp_path)).model_dump(mode="json") | {"api": handed_on}
    with pytest.raises(RecipeError, match=r"runs code that it names itself, teacher: '.*:with_tied_weights'"):
        run_recipe(Recipe.parse(content, "the test"), tmp_path / "other", Surroundings())
    content["api"] = handed_on | {"settings": own}
    assert len(run_recipe(Recipe.parse(content, "the test"), tmp_path / "other", Surroundings()).synthetic) == 8


def test_without_labels_there_is_nothing_to_teach() -> None:
    api = DPImgSyn(public=Public.model_validate(PUBLIC))
    terms = FitTerms(("all",), SHAPE, COUNT, Relation.ADD_REMOVE, "record", Budget(8.0, 1e-3))
    with pytest.raises(PEError, match="fewer than two"):
        api.planned(terms)
    with pytest.raises(APIError, match="answers once it is fitted"):
        api.random_api(asked())


def with_batch_norm(channels: int, classes: int) -> nn.Module:
    norm = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
    return nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def ending(front: nn.Module, classes: int) -> nn.Module:
    return nn.Sequential(front, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def with_spectral_norm(channels: int, classes: int) -> nn.Module:
    return ending(nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, 4, 3)), classes)


class Changed(nn.Module):
    """A teacher with something before it."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.rest = ending(nn.Conv2d(channels, 4, 3), classes)
        self.register_buffer("mean", torch.zeros(()))
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rest(self.before(images))
        return found

    def before(self, images: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class RunningMean(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * images.mean()
        return images - self.mean


class Counting(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images * self.calls


class Coins(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(images, 0.5, training=True)


class Branch(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        return images if images.mean() > 0 else -images


class Tied(Changed):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.one, self.other = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.other.weight = self.one.weight

    def before(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.other(self.one(images))
        return found


with_running_mean, with_a_count, with_coins, with_a_branch = RunningMean, Counting, Coins, Branch
with_tied_weights = Tied


def with_wide_kernel(channels: int, classes: int) -> nn.Module:
    return ending(nn.Conv2d(channels, 4, 12), classes)


def of_five(channels: int, classes: int) -> nn.Module:
    return ending(nn.Conv2d(channels, 4, 3), 5)


def test_what_a_layer_writes_when_it_is_called_reaches_no_other_image() -> None:
    """Beside the refusal: buffers are copied for every call, in training and in reading."""
    torch.manual_seed(0)
    public = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)
    reader = Reader(RunningMean(1, 2))
    alone = reader.moments(public[:1], CPU)
    reader.moments(public[1:], CPU)
    np.testing.assert_array_equal(np.hstack(reader.moments(public[:1], CPU)), np.hstack(alone))
    assert reader.teacher.mean == 0

    model, loss = with_spectral_norm(1, 2).train(), CrossEntropy(1)
    before = {name: value.clone() for name, value in model.named_buffers()}
    drawn = loss.draw(6, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(0))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    record_gradients(model, loss, parameters, tensors(public, CPU), torch.arange(6) % 2, drawn)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def without_norm(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def test_soft_labels_go_with_the_samples_into_every_export(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    soft = run.population(0).conditions[SOFT_LABEL]
    for form in ("npz", "folder", "parquet"):
        run.export(tmp_path / form, form)
    np.testing.assert_array_equal(np.load(tmp_path / "npz" / "synthetic.npz")["soft_labels"], soft)
    with (tmp_path / "folder" / "synthetic" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [[float(row["p(ell)"]), float(row["p(oh)"])] for row in rows]
    np.testing.assert_allclose(written, soft, rtol=1e-6)
    column = pq.read_table(tmp_path / "parquet" / "synthetic.parquet")["soft_label"].to_pylist()
    np.testing.assert_allclose(column, soft, rtol=1e-6)
