"""The skeleton of a fitted method, which declares its releases once; planning and fitting follow that declaration.

A method has a section of settings, `_draws` (the noisy sums and DP-SGD trainings that it releases), `_fit` (the one
function that fits it, with the tools of a `Fit`), RANDOM_API and VARIATION_API.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from adapters.trained.settings import DPSGD, GRID, FineTuning
from pe.data.arrays import Float32Array, Float64Array, Int64Array
from pe.data.bounded import read_bytes
from pe.errors import APIError, Interrupted, PEError, PrivacyError, RecipeError, quoted
from pe.fit.trainer import FIT, FitTerms, Fitting, PrivateRecords
from pe.plugins.devices import check_arithmetic, choose_devices, require_torch
from pe.plugins.weights import check_whole
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise, grid_for
from pe.privacy.release import Poisson, Relation, Release

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adapters.trained.dp_sgd.gradients import Loss
    from adapters.trained.dp_sgd.training import Training
    from pe.fit.trainer import DryRun

Array = TypeVar("Array", bound=npt.NDArray[np.generic])
Images = TypeVar("Images")

Vector = Callable[[npt.NDArray[Any]], Float64Array]
"""Function from a record, such as an image, uint8 (h, w, c), to a vector, float64 (length,)."""

TRAINING = f"{FIT}training"

BELOW_ONE = 1 - 1e-9
"""Factor that keeps a vector's norm at most 1, whatever rounding does."""


def on_grid(vector: Float64Array, grid: int) -> Int64Array:
    """Return `vector`, of L2 norm ≤ 1, in integer grid steps, rounded toward zero, so that its norm does not grow."""
    return np.trunc(vector * (grid * BELOW_ONE)).astype(np.int64)


def noisy_sums(
    records: PrivateRecords,
    classes: int,
    vector: Vector,
    length: int,
    release: Release,
    noise: Noise,
) -> Int64Array:
    """Return noisy sums of vectors over each drawn subset and label, int64 (subsets, classes, length), in grid steps.

    Guarantee: the release's, over all `count` subsets, if the vector of an image, float64 (length,), has an L2 norm of
    at most 1 and depends on that image and on public values alone, to the last bit. Each subset tosses a coin for every
    unit. A unit's records share a weight of 1; vectors are rounded toward zero on the grid. So adding or removing a
    unit changes a subset's clean sums by at most 1 in L2 norm, replacing one by at most 2. There may be no records.
    """
    names, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    sums = np.zeros((release.count, classes, length), dtype=np.int64)
    rate = 1.0 if release.sampling is None else release.sampling.rate
    subsets = [noise.coins(len(names), rate) if rate < 1 else np.ones(len(names), bool) for _ in sums]
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        part = on_grid(vector(image) / of_unit[owner], release.grid)
        for subset_sums, subset in zip(sums, subsets, strict=True):
            if subset[owner]:
                subset_sums[label] += part
    return sums + noise.discrete_gaussian(sums.shape, release.scale)


def block_releases(settings: DPSGD, name: str, relation: Relation, unit: str = "record") -> tuple[Release, ...]:
    """Return one release per block of DP-SGD, in order, named `name`/1, `name`/2 and so on.

    Each declares the Poisson-sampled discrete Gaussian that `Training.block` draws `count` times, in units of the clip.
    Under replace-one, one record's gradient takes another's place: the sensitivity is 2, and the noise multiplier,
    which counts in sensitivities, is σ/2. Raises PrivacyError for a unit other than a record, or σ out of range.
    """
    if unit != "record":
        raise PrivacyError(
            f"DP-SGD clips the gradient of a record, so it protects no '{unit}': take private.privacy_unit: record."
        )
    sensitivity = 2 if Relation(relation) is Relation.REPLACE_ONE else 1
    sampling = Poisson(settings.rate) if settings.rate < 1 else None
    return tuple(
        Release(
            name=f"{name}/{block + 1}",
            mechanism="discrete_gaussian",
            sensitivity=sensitivity,
            noise_multiplier=settings.sigma / sensitivity,
            relation=relation,
            unit=unit,
            sampling=sampling,
            count=settings.steps_from(block * settings.block),
            grid=GRID,
        )
        for block in range(settings.blocks)
    )


@lru_cache(maxsize=64)
def calibrate_training(settings: DPSGD, budget: Budget, relation: Relation, others: tuple[Release, ...] = ()) -> DPSGD:
    """Return `settings` with the least noise for which the training and `others` together meet `budget`.

    Raises PrivacyError if `others` take all of the budget, or leave too little for one useful step. Cached: where
    records are sampled, the search takes many seconds.
    """

    def least(settings: DPSGD) -> float:
        return calibrate(lambda z: [*others, *block_releases(settings.with_noise(z), "fit", relation)], budget)

    sigma = least(settings)
    if sigma > settings.expected_batch:
        # Refuse if, in one step alone, the noise in any direction exceeds what all its records could add there.
        single = least(settings.model_copy(update={"steps": 1}))
        if single > settings.expected_batch:
            raise PrivacyError(
                f"What a training has of its ε = {budget.epsilon:g} asks for a noise multiplier of {single:,.1f} for "
                f"one single step, which expects {settings.expected_batch} records: the noise drowns even what all of "
                "them agree on; raise privacy.epsilon, or the training's share of it."
            )
    return settings.with_noise(sigma)


@dataclass(frozen=True)
class Sum:
    """A noisy sum, or several over drawn subsets, to which a privacy unit adds a vector of bounded L2 norm.

    Attributes:
        name: of the release, without the prefix FIT.
        share: the share of the fit's ε that the release costs, taken alone.
        sensitivities: L2 sensitivities: first under add/remove and zero-out, then under replace-one.
        fractional: whether a record may add fractions; if not, it adds whole numbers only.
        sampling: of the units of each subset; None: every subset holds all units.
        count: number of sums, one for each subset.
        grid: integer steps per 1 of the sum; None: as many as `grid_for` returns.
    """

    name: str
    share: float = 1.0
    sensitivities: tuple[float, float] = (1.0, 2.0)
    fractional: bool = True
    sampling: Poisson | None = None
    count: int = 1
    grid: int | None = None

    @lru_cache(maxsize=64)  # noqa: B019 - where records are sampled, it takes seconds
    def release(self, terms: FitTerms) -> Release:
        """Return the release with the least discrete noise that keeps to the share; raise PrivacyError if none can."""
        sensitivity = self.sensitivities[Relation(terms.relation) is Relation.REPLACE_ONE]

        def release(z: float) -> Release:
            return Release(
                name=f"{FIT}{self.name}",
                mechanism="discrete_gaussian",
                sensitivity=sensitivity,
                noise_multiplier=z,
                relation=terms.relation,
                unit=terms.unit,
                sampling=self.sampling,
                count=self.count,
                grid=self.grid or grid_for(z, sensitivity, fractional=self.fractional),
            )

        return release(calibrate(lambda z: [release(z)], part_of(terms, self.share).budget))


@dataclass(frozen=True)
class Steps:
    """A training by DP-SGD.

    Attributes:
        training: the training's section of the recipe.
        name: of the training and, with a number after it, of its releases.
        share: the share of the fit's ε that the training costs, taken alone; None: all that earlier draws leave.
    """

    training: FineTuning
    name: str = TRAINING
    share: float | None = None

    def settings(self, terms: FitTerms, others: tuple[Release, ...] = ()) -> DPSGD:
        """Return settings with the least noise that meets the training's budget; raise RecipeError or PrivacyError."""
        settings, relation = self.training.dp_sgd(terms.declared_size), Relation(terms.relation)
        block_releases(settings.with_noise(1.0), self.name, relation, terms.unit)  # check the unit before the search
        if self.share is None:
            return calibrate_training(settings, terms.budget, relation, others)
        return calibrate_training(settings, part_of(terms, self.share).budget, relation)


Draws = Sequence[Sum | Steps | Release]
"""A method's draws in the order in which they get their budget; a `Release` is of another method, fitted within it."""


def part_of(terms: FitTerms, share: float) -> FitTerms:
    """Return `terms` with `share` of the budget's ε, and the whole δ."""
    return replace(terms, budget=Budget(share * terms.budget.epsilon, terms.budget.delta))


class Plan:
    """The releases of a fit, and the calibrated settings of its DP-SGD trainings, by name."""

    def __init__(self, draws: Draws, terms: FitTerms) -> None:
        self.releases: tuple[Release, ...] = ()
        self.settings: dict[str, DPSGD] = {}
        self.blocks: dict[str, tuple[Release, ...]] = {}
        for draw in draws:
            if isinstance(draw, Steps):
                self.settings[draw.name] = draw.settings(terms, self.releases)
                self.blocks[draw.name] = block_releases(self.settings[draw.name], draw.name, terms.relation, terms.unit)
                self.releases += self.blocks[draw.name]
            else:
                self.releases += (draw.release(terms) if isinstance(draw, Sum) else draw,)


class Fit:
    """The tools of a method's `_fit`: they give it planned releases, and nothing else that depends on records.

    Attributes:
        fitting: ledger, progress, folder and stop signal; its `private` reads the records once.
        terms: of the fit.
    """

    def __init__(self, fitting: Fitting, plan: Plan) -> None:
        self.fitting = replace(fitting, private=cache(fitting.private))
        self.terms, self.plan = fitting.terms, plan

    def release_of(self, name: str) -> Release:
        """Return the planned release of a sum; `name`: without the prefix FIT."""
        return next(release for release in self.plan.releases if release.name == f"{FIT}{name}")

    def is_drawn(self, name: str) -> bool:
        """Return whether the sum of that name, or the first block of the training of that name, is stored."""
        release = self.plan.blocks[name][0] if name in self.plan.blocks else self.release_of(name)
        return self.fitting.ledger.has_drawn(release)

    def release(self, name: str, draw: Callable[[PrivateRecords, Release, Noise], Array]) -> Array:
        """Return the noisy value of a sum: the stored one, or one that is drawn now.

        Guarantee: the release's, if `draw` keeps it. The records are read only while the sum is drawn.
        """
        release = self.release_of(name)
        array = self.fitting.ledger.release(release, lambda noise: draw(self.fitting.private(), release, noise))
        return cast(Array, array)

    def sums(self, name: str, vector: Vector, shape: tuple[int, ...]) -> Int64Array:
        """Return the noisy sums of the records' vectors in the release's grid steps: see `noisy_sums`.

        Args:
            name: of the planned sum.
            vector: computes the vector of one image.
            shape: (length,) for one sum, (labels, length), or (subsets, labels, length).
        """

        def draw(records: PrivateRecords, release: Release, noise: Noise) -> Int64Array:
            if len(shape) == 1:
                records = replace(records, labels=np.zeros_like(records.labels))
            return noisy_sums(records, (1, *shape)[-2], vector, shape[-1], release, noise).reshape(shape)

        return self.release(name, draw)

    def dp_sgd(
        self,
        model: nn.Module,
        loss: Loss,
        devices: Sequence[torch.device],
        *,
        name: str = TRAINING,
        task: str = "training on the private records",
        between: Callable[[Training, Float32Array], None] | None = None,
    ) -> nn.Module:
        """Return the model after all blocks of a planned training; stored blocks are used again, the others are drawn.

        Guarantee: the releases'. The private records are read only while a block is drawn.

        Args:
            model: see `Training`.
            loss: of one record.
            devices: those that share each step.
            name: of the planned training.
            task: the training's name in messages.
            between: called with the training and its state, public or released, before the first block and after each.
        """
        from adapters.trained.dp_sgd.training import Training

        training = Training(model, loss, self.plan.settings[name], *devices)
        ledger, blocks, records = self.fitting.ledger, self.plan.blocks[name], self.fitting.private
        state = training.start()
        if between is not None:
            between(training, state)

        def draw(noise: Noise) -> Float32Array:
            return training.block(state, records().samples, records().labels, noise)

        with self.fitting.progress.task(task, training.settings.steps) as progress:
            for release in blocks:
                self.check_stop()
                state = ledger.release(release, draw)
                if between is not None:
                    between(training, state)
                progress.advance(release.count)
        return training.load(state)

    def pretrain(
        self,
        model: nn.Module,
        public: Callable[[], Images],
        train: Callable[[Images, Callable[[], None]], object],
        *,
        steps: int,
        file: str,
        images: str = "public images",
    ) -> None:
        """Train `model` on public images, or load the weights that an interrupted fit kept after this training.

        Args:
            model: changed in place.
            public: gives the images; not called if `file` was kept.
            train: trains `model` on them; gets a function to call after each step, whose exceptions end the training.
            steps: number of steps.
            file: name under which the trained weights are kept.
            images: name of the images in messages.
        """
        from safetensors.torch import load, save

        if (content := self.fitting.cache.find(file)) is not None:
            model.load_state_dict(load(content))
            return
        public_set = public()
        with self.steps(f"training on {images}", steps) as step_done:
            train(public_set, step_done)
        weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
        self.fitting.cache.keep(file, save(weights))

    @contextmanager
    def steps(self, task: str, steps: int) -> Iterator[Callable[[], None]]:
        """Yield a function to call after each of `steps` steps: it raises Interrupted if a stop was requested."""
        with self.fitting.progress.task(task, steps) as progress:

            def step_done() -> None:
                progress.advance(1)
                self.check_stop()

            yield step_done

    def check_stop(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.fitting.stop.is_set():
            raise Interrupted(
                "Stopped as asked, with every block of the fit that was released kept; "
                f"`pe run {quoted(self.fitting.folder.parent)}` goes on."
            )


class FittedMethod(ABC):
    """A generator that is fitted before it answers: a `Trainer`."""

    needs_torch: ClassVar[bool] = True

    def _check(self, terms: FitTerms) -> None:  # noqa: B027 - nothing to check by default
        """Raise RecipeError or PrivacyError if the method cannot be fitted on these terms."""

    @abstractmethod
    def _draws(self, terms: FitTerms) -> Draws:
        """Return all that the fit releases."""

    @abstractmethod
    def _fit(self, fit: Fit) -> None:
        """Fit the model, and write it to the fit's folder; it may depend on records through planned draws only."""

    def plan_releases(self, terms: FitTerms) -> Sequence[Release]:
        """See `Trainer`; raise PrivacyError if the budget is too small, or the unit larger than the method protects."""
        self._check(terms)
        return list(Plan(self._draws(terms), terms).releases)

    def fit(self, fitting: Fitting) -> None:
        """See `Trainer`; raise what `plan_releases` does, and RecipeError if memory does not suffice.

        Guarantee: the planned releases'; everything besides is post-processing of them, or public. The private records
        are read only while a release is drawn. A resumed fit takes stored releases and weights, and repeats the rest.
        """
        self._check(fitting.terms)
        self._require_torch()
        self._fit(Fit(fitting, Plan(self._draws(fitting.terms), fitting.terms)))

    def _require_torch(self) -> None:
        if self.needs_torch:
            require_torch("trained", "Fitting a generator")


class TrainedMethod(FittedMethod):
    """A method whose last draw is a training by DP-SGD; it also forecasts its trainings.

    Attributes:
        training: settings of the last training.
        device: auto, cpu, cuda, cuda:1, or a list of GPUs, which share each step.
    """

    training: FineTuning
    device: str | list[str]

    def __post_init__(self) -> None:
        check_arithmetic(self.device, "fp32")

    def _draws(self, terms: FitTerms) -> Draws:
        return [Steps(self.training)]

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    @abstractmethod
    def _start(self, terms: FitTerms) -> tuple[nn.Module, Loss]:
        """Return the model that DP-SGD trains, but without the training on public images before, and its loss."""

    def _other_dry_runs(self, terms: FitTerms, plan: Plan) -> list[DryRun]:
        """Return measured forecasts of the trainings before the last one."""
        return []

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """See `Rehearsing.dry_run`; a network that learns between two blocks of DP-SGD steps is not measured."""
        self._require_torch()
        from adapters.trained.dp_sgd.training import dry_run

        plan = Plan(self._draws(terms), terms)
        others, (model, loss) = self._other_dry_runs(terms, plan), self._start(terms)
        last = dry_run(model, loss, terms.image_shape, plan.settings[TRAINING], self._places(), TRAINING)
        return [*others, last]

    def _place(self) -> torch.device:
        """Return the first device."""
        return self._places()[0]

    def _places(self) -> list[torch.device]:
        """Return the devices that share each step; the CPU in place of MPS, as DP-SGD needs float64."""
        import torch

        devices = choose_devices(self.device)
        return devices if devices[0].type == "cuda" else [torch.device("cpu")]


# Fitted models on disk, and the labels they know.


def label_numbers(labels: Sequence[str], classes: Sequence[str]) -> Int64Array:
    """Return the number of each label, int64 (n,); raise RecipeError for a label that the model was not fitted for."""
    if unknown := sorted(set(labels) - set(classes)):
        names = ", ".join(f"'{name}'" for name in sorted(set(classes)))
        raise RecipeError(
            f"The model was fitted for the labels {names}, and '{unknown[0]}' is none of them: sample it with the "
            "private.classes that it was fitted with."
        )
    return np.array([list(classes).index(label) for label in labels], dtype=np.int64)


def not_fitted(kind: str) -> APIError:
    """Return the error for a generator that is asked before it is fitted; `kind`: its name in the message."""
    return APIError(f"{kind} answers once it is fitted: `pe run` does that first.")


@contextmanager
def reading(folder: Path, model: str) -> Iterator[None]:
    """Raise RecipeError if a fitted model's files, read within the block, are missing or damaged; `model`: its kind."""
    try:
        yield
    except PEError:
        raise
    except Exception as error:  # whatever a reader makes of a broken or foreign file
        check_whole(folder)
        raise RecipeError(f"{folder} holds no {model}: fit it in a new run.") from error


def rng_of(seed: int) -> np.random.Generator:
    """Return a generator of the randomness of one sample, by its seed of 64 bits."""
    return np.random.Generator(np.random.Philox(key=seed))


def read_json(file: Path) -> Any:
    """Return what a JSON file holds; raise OSError or ValueError if it is missing or damaged."""
    return json.loads(read_bytes(file))


def write_json(content: object, file: Path) -> None:
    """Write a JSON file of one line."""
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def write_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write a .safetensors file."""
    from safetensors.torch import save_file

    # Tensors may share memory, and the file holds each by itself.
    save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, file)
