"""DP-SGD (Abadi et al. 2016, Algorithm 1): Poisson sampling, clipping, noise.

A state goes in, a noised state comes out. Losses, norms, clip rates and the real sizes of batches
are seen by nobody and steer nothing: not the learning rate, the clip, the number of steps or the
choice of a state. Nothing is written to disk, so a block that is cut off leaves no trace except
what the operating system swaps out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from adapters.diffusion.items import tensors
from adapters.trained.dp_sgd.gradients import (
    Loss,
    Randomness,
    clipped_sum,
    record_gradients,
    stack,
    trained_parameters,
)
from adapters.trained.settings import DPSGD, GRID, Optimiser
from pe.data.arrays import Float32Array, ImageShape, UInt8Array, UInt64Array
from pe.data.samples import slices
from pe.errors import PrivateDataError, RecipeError, RunError
from pe.fit.trainer import DryRun
from pe.plugins.devices import STATUS, free_memory, memory_refused, raising_for_memory, told_bytes
from pe.privacy.noise import SystemNoise

if TYPE_CHECKING:
    from pe.privacy.noise import Noise

Images = UInt8Array
Labels = npt.NDArray[np.integer]


@dataclass(frozen=True)
class State:
    """All that the next step builds upon. As one flat array (`to_array`) it can be a release."""

    step: int  # number of steps done
    parameters: Tensor  # the trained ones, float32 (p,)
    average: Tensor  # the exponential moving average of `parameters`, float32 (p,)
    moments: tuple[Tensor, ...]  # the optimiser's averages of earlier gradients, each float32 (p,)

    def to_array(self) -> Float32Array:
        """Return float32 (1 + (2 + moments)·p,): step, parameters, average, moments.

        Nothing is rounded.
        """
        step = torch.tensor([float(self.step)])
        parts = [step, *(part.cpu() for part in (self.parameters, self.average, *self.moments))]
        return torch.cat(parts).numpy()

    @classmethod
    def from_array(
        cls,
        array: npt.NDArray[np.generic],
        count: int,
        moments: int,
        device: torch.device,
    ) -> State:
        """Return the state that `to_array` flattened.

        It has `count` parameters and `moments` vectors of moments.

        Raises:
            RunError: the array belongs to another training.
        """
        length = 1 + (2 + moments) * count
        if array.dtype != np.float32 or array.shape != (length,):
            raise RunError(
                f"The kept state is {array.dtype} {array.shape}, but this model and optimiser "
                f"need float32 ({length},). It belongs to another training. Start a new one."
            )
        parts = torch.from_numpy(np.array(array[1:])).to(device).view(2 + moments, count)
        return cls(int(array[0]), parts[0], parts[1], tuple(parts[2:].unbind()))


# A step is post-processing of a noised gradient, by public rules.

# Optimiser → number of vectors that it keeps beside the parameters.
MOMENTS: dict[Optimiser, int] = {"adam": 2, "sgd": 0}

_BETAS = (0.9, 0.999)
_TINY = 1e-8


def advance(state: State, gradient: Tensor, settings: DPSGD) -> State:
    """Return the state after one step, by a noised gradient, float32 (p,)."""
    rate = settings.rate_at(state.step)
    if settings.optimiser == "adam":
        parameters, moments = _adam(state, gradient, rate)
    else:
        parameters = state.parameters - rate * gradient
        moments = ()
    average = torch.lerp(state.average, parameters, 1 - settings.decay_at(state.step))
    return State(state.step + 1, parameters, average, moments)


def _adam(
    state: State,
    gradient: Tensor,
    rate: float,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return parameters and moments after a step of Adam (Algorithm 1 of Kingma and Ba 2015)."""
    step = state.step + 1
    first = torch.lerp(state.moments[0], gradient, 1 - _BETAS[0])
    second = (_BETAS[1] * state.moments[1]).addcmul(gradient, gradient, value=1 - _BETAS[1])
    spread = (second / (1 - _BETAS[1] ** step)).sqrt() + _TINY
    value = -rate / (1 - _BETAS[0] ** step)
    return state.parameters.addcdiv(first, spread, value=value), (first, second)


# The most records of a micro-batch that nobody has set.
_ON_CPU = 32
_ON_GPU = 512


class MicroBatch(NamedTuple):
    """CONFIDENTIAL: the records of one micro-batch, and the seeds of the loss's randomness.

    Attributes:
        images: uint8 n×h×w×c.
        labels: integers (n,).
        seeds: uint64, one for each place of a micro-batch, places without a record included.
    """

    images: Images
    labels: Labels
    seeds: UInt64Array


class Training:
    """DP-SGD for one model and one loss.

    Args:
        model: public; its parameters with `requires_grad` are trained, neither clipping nor noise
            touches the others. It is moved to the device, and not changed otherwise until `load`.
        loss: of one record; see `Loss`.
        settings: of the training, all public.
        device: cpu, or a CUDA device. On a CPU, state, noise and data determine every bit of the
            next state.
        others: further devices that share every step, each in a thread of its own. With the same
            `micro_batch` they change no bit of a state on a CPU.

    Raises:
        PluginError: a model that DP-SGD cannot train (BatchNorm, active dropout, nothing to train).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: DPSGD,
        device: str | torch.device = "cpu",
        *others: torch.device,
    ) -> None:
        self.settings = settings
        self._device = torch.device(device)
        self._model = model.to(self._device)
        self._loss = loss
        parameters = trained_parameters(self._model)
        self._shapes = {name: value.shape for name, value in parameters.items()}
        self.count = sum(value.numel() for value in parameters.values())  # of trained parameters: p
        # Records whose gradients are held at once; 0 until it is found.
        self._size = settings.micro_batch or 0
        self._others = others
        self._replicas: list[Training] = []

    def micro_batch(self, shape: tuple[int, ...], noise: Noise) -> int:
        """Return how many records' gradients are held at once, for images of h×w×c.

        The number is the one in the settings, or it is found by trying blank images.

        Raises:
            RecipeError: there is no memory for the gradient of one record.
        """
        if not self._size:
            batch = self.settings.expected_batch
            # Nearly every step is to be one micro-batch of each device.
            whole = (batch + 4 * sqrt(batch)) / (1 + len(self._others))
            most = _ON_CPU if self._device.type == "cpu" else _ON_GPU
            self._size = min(most, ceil(whole))
            while not self._fits(shape, noise):
                free_memory(self._device)
                self._size //= 2
        return self._size

    def start(self) -> Float32Array:
        """Return the state before the first step, from the model's present parameters.

        See `State.to_array`.
        """
        flat = torch.cat([value.flatten() for value in trained_parameters(self._model).values()])
        moments = tuple(torch.zeros_like(flat) for _ in range(MOMENTS[self.settings.optimiser]))
        return State(0, flat, flat, moments).to_array()

    def step_of(self, state: Float32Array) -> int:
        """Return how many steps led to `state`."""
        return self._state(state).step

    def block(
        self, state: Float32Array, images: Images, labels: Labels, noise: Noise
    ) -> Float32Array:
        """Return the state after the next block of steps: the only value that leaves the block.

        Guarantee: `settings.steps_from(step)` Poisson-sampled Gaussian releases of the records, at
        rate q, with sensitivity C under add/remove and zero-out, 2C under replace-one, and noise of
        standard deviation σ·C, as `block_releases` declares them: integers, with discrete noise.
        The rest of a block is post-processing, however many steps it has. There may be any number
        of records, none included.

        The loss's own randomness comes from seeds that `noise` gives, one for every record and
        step. So the draws of two records are independent and identically distributed, however poor
        PyTorch's generators are (on a CPU they use 32 bits of a seed): if a record is removed, the
        records behind it move up, with draws of an unchanged distribution. The guarantee holds
        given any draws, hence on average over them. With one seed per micro-batch, removing a
        record would, given that seed, shift the draws, and so the gradients, of all records behind
        it.

        Args:
            state: from `start`, or from the last block; left as it is.
            images: private, uint8 n×h×w×c.
            labels: private, integers (n,).
            noise: the source of noise, coins and seeds.

        Raises:
            RecipeError: the training is over, its noise is not calibrated, or memory does not
                suffice.
            RunError: the state belongs to another training.
            PrivateDataError: images or labels have another shape or type.
        """
        _check_records(images, labels)
        now = self._state(state)
        steps = self.settings.steps_from(now.step)
        if not steps:
            raise RecipeError(
                f"All {self.settings.steps} steps are done. Raise `steps` to train on."
            )
        self._replicas = [self._replica(device) for device in self._others]
        for _ in range(steps):
            now = self._step(now, images, labels, noise)
        return now.to_array()

    def load(self, state: Float32Array, average: bool = True) -> nn.Module:
        """Return the model with the moving average in `state`, or with the last parameters."""
        now = self._state(state)
        parameters = self._by_name(now.average if average else now.parameters)
        with torch.no_grad():
            for name, value in self._model.named_parameters():
                if name in parameters:
                    value.copy_(parameters[name])
        return self._model

    def share(self, parameters: Tensor, parts: Iterable[MicroBatch]) -> Tensor:
        """CONFIDENTIAL: return the sum of the clipped gradients of `parts`, int64 (p,).

        It counts in steps of C/GRID.

        The sum is exact: the sums of several shares add up to the sum of all their parts, in any
        order.

        Raises:
            RecipeError: memory does not suffice.
        """
        parameters_by_name = self._by_name(parameters)
        total = torch.zeros(self.count, dtype=torch.int64, device=self._device)
        for part in parts:
            with raising_for_memory(self._too_large()):
                total += self._micro_batch(parameters_by_name, part)
        return total

    def _step(
        self,
        state: State,
        images: Images,
        labels: Labels,
        noise: Noise,
    ) -> State:
        """Return the state after one step (Algorithm 1, lines 3 to 11).

        Noise is added once, even to an empty batch.
        """
        sample = self._sample(len(images), noise)
        total = self._sum_over(sample, state, images, labels, noise)
        gradient = self._mean(self._add_noise(total, noise))
        return advance(state, gradient.float(), self.settings)

    def _sample(self, records: int, noise: Noise) -> npt.NDArray[np.intp]:
        """Return the places of a Poisson sample: a coin for every record, of whatever label."""
        return np.flatnonzero(noise.coins(records, self.settings.rate))

    def _sum_over(
        self,
        sample: npt.NDArray[np.intp],
        state: State,
        images: Images,
        labels: Labels,
        noise: Noise,
    ) -> Tensor:
        size = self.micro_batch(images.shape[1:], noise)
        all_devices = [self, *self._replicas]
        work = [(sample[part], self._seeds(noise)) for part in slices(len(sample), size)]

        def share(rank: int) -> Tensor:
            one = all_devices[rank]
            mine = work[rank :: len(all_devices)]
            one._size = size
            parts = (MicroBatch(images[places], labels[places], seeds) for places, seeds in mine)
            return one.share(state.parameters.to(one._device), parts).to(self._device)

        if not self._replicas:
            return share(0)
        # The choice of attention's arithmetic holds for all threads: none may take it back while
        # another computes.
        with sdpa_kernel(SDPBackend.MATH), ThreadPoolExecutor(len(all_devices)) as pool:
            return torch.stack(list(pool.map(share, range(len(all_devices))))).sum(dim=0)

    def _replica(self, device: torch.device) -> Training:
        """Return a training on another device, with copies of model and loss as they are now."""
        stream = BytesIO()
        torch.save((self._model, self._loss), stream)
        own = self._device
        place = f"cuda:{own.index or 0}" if own.type == "cuda" else str(own)
        stream.seek(0)
        # Whole objects are loaded, which is safe here: they were saved a moment ago, and not to a
        # file.
        model, loss = torch.load(stream, map_location={place: str(device)}, weights_only=False)
        return type(self)(model, loss, self.settings, device)

    def _fits(self, shape: tuple[int, ...], noise: Noise) -> bool:
        """Return whether memory suffices for a micro-batch of blank records."""
        blank = MicroBatch(
            np.zeros((0, *shape), dtype=np.uint8),
            np.zeros(0, dtype=np.int64),
            self._seeds(noise),
        )
        try:
            self._micro_batch(trained_parameters(self._model), blank)
        except (RuntimeError, MemoryError) as error:
            if not memory_refused(error):
                raise
            if self._size == 1:
                raise self._too_large() from error
            return False
        return True

    def _micro_batch(self, parameters: dict[str, Tensor], part: MicroBatch) -> Tensor:
        """Return the sum of the clipped gradients of up to `micro_batch` records, int64 (p,)."""
        # Blank records, which do not count, fill up the batch: the shape of the arithmetic and its
        # memory are always the same. A record's gradient may still be rounded otherwise in another
        # place of a batch (by a GPU's libraries, and on a processor by wide matrix products; not in
        # the networks that we ship), which no clip sees.
        size = self._size
        records = len(part.images)
        pixels = np.zeros((size, *part.images.shape[1:]), dtype=np.uint8)
        classes = np.zeros(size, dtype=np.int64)
        pixels[:records] = part.images
        classes[:records] = part.labels
        x = tensors(pixels, self._device)
        y = torch.from_numpy(classes).to(self._device)
        channels, height, width = x.shape[1:]
        randomness = self._randomness((channels, height, width), part.seeds)
        gradients = record_gradients(self._model, self._loss, parameters, x, y, randomness)
        return self._clip(gradients, torch.arange(size, device=self._device) < records)

    def _clip(self, gradients: list[Tensor], is_record: Tensor) -> Tensor:
        return clipped_sum(gradients, is_record, self.settings.clip)

    def _add_noise(self, total: Tensor, noise: Noise) -> Tensor:
        """Return `total` plus discrete Gaussian noise of scale σ·GRID in each coordinate.

        With σ = 0 it is unsafe.
        """
        if not self.settings.sigma:
            return total
        drawn = noise.discrete_gaussian(self.count, self.settings.scale)
        return total + torch.from_numpy(drawn).to(self._device)

    def _mean(self, noisy: Tensor) -> Tensor:
        """Return the noisy sum divided by the EXPECTED size of a batch, float64 (p,).

        The real size is private.
        """
        return noisy.double() * (self.settings.clip / GRID / self.settings.expected_batch)

    def _seeds(self, noise: Noise) -> UInt64Array:
        """Draw a seed, of 64 fair coins, for every place of a micro-batch: uint64."""
        return np.packbits(noise.coins(64 * self._size, 0.5)).view(np.uint64)

    def _randomness(self, shape: ImageShape, seeds: UInt64Array) -> Randomness:
        """Draw the loss's randomness for every place of a micro-batch, each from its own seed."""
        # On the processor, as on a GPU each record's draws would be kernels of their own.
        generator = torch.Generator()
        per_record = [
            self._loss.draw(self.settings.draws, shape, generator.manual_seed(int(seed)))
            for seed in seeds
        ]
        return stack(per_record, self._device)

    def _state(self, array: Float32Array) -> State:
        return State.from_array(array, self.count, MOMENTS[self.settings.optimiser], self._device)

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a flat vector by parameter name, each in its parameter's shape."""
        parts = torch.split_with_sizes(flat, [shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def _too_large(self) -> RecipeError:
        return RecipeError(
            f"`micro_batch` is {self._size}, for which {self._device} has no memory. Set it to "
            f"{max(1, self._size // 2)}, or take fewer draws or a smaller model."
        )


def _check_records(images: Images, labels: Labels) -> None:
    """Raise PrivateDataError unless images are uint8 n×h×w×c and labels n integers.

    No message tells n.
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise PrivateDataError("Private images to train on must be uint8, n×h×w×c.")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise PrivateDataError("Private labels to train on must be integers, one for each image.")


# Time and memory of a training, measured on random public images before it begins.


def dry_run(
    model: nn.Module,
    loss: Loss,
    image_shape: ImageShape,
    settings: DPSGD,
    devices: Sequence[torch.device] = (torch.device("cpu"),),
    part: str = "training",
) -> DryRun:
    """Return a forecast, measured by two full micro-batches and an empty step.

    The model stays as it is.

    Args:
        model: to be trained.
        loss: of one record.
        image_shape: h, w, c.
        settings: of the training; the noise multiplier may be None.
        devices: where the training will run; the first is tried.
        part: prefix of the names of the training's releases.

    Raises:
        PluginError: a model that DP-SGD cannot train.
        RecipeError: memory does not suffice; the message says which micro_batch to take.
    """
    noise = SystemNoise()
    device = devices[0]
    size = Training(model, loss, settings, *devices).micro_batch(image_shape, noise)
    few = {
        "steps": 1,
        "micro_batch": size,
        "block": 1,
        "expected_batch": size,
        "declared_size": size,
        "noise_multiplier": 0.0,
    }
    training = Training(model, loss, settings.model_copy(update=few), device)
    state = training.start()
    images = np.random.default_rng(0).integers(0, 256, (size, *image_shape), dtype=np.uint8)

    def step(images: Images) -> float:
        start = time.perf_counter()
        training.block(state, images, np.zeros(len(images), dtype=np.int64), noise)
        return time.perf_counter() - start

    memory = peak_memory(device, lambda: step(images))  # the first time, when libraries load, too
    full = step(images)
    empty = step(images[:0])
    return DryRun(
        part=part,
        steps=settings.steps,
        seconds_per_step=empty + settings.rounds(size, len(devices)) * max(0.0, full - empty),
        parameters=training.count,
        memory=memory,
        blocks=settings.blocks,
        state_bytes=state.nbytes,
        noise_multiplier=settings.noise_multiplier,
    )


def peak_memory(device: torch.device, work: Callable[[], object]) -> int | None:
    """Do `work`, and return its peak of memory above what was held before, in bytes.

    None: the system does not tell.

    For a CUDA device: the device's memory, as PyTorch counts it; for a CPU: the process's, as Linux
    counts it.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    free_memory(device)  # else the work would reuse it, uncounted
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    except OSError:
        work()
        return None
    held = told_bytes(STATUS, "VmRSS:")
    work()
    return max(0, int(told_bytes(STATUS, "VmHWM:") - held))
