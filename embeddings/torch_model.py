"""A torch network as an embedding: device, precision, batches and resizing.

A record's vector must not depend, to the last bit, on the samples beside it. In a batch of one
fixed shape a network treats its rows alike unless a library gives the rows at the batch's edges
another order of summation. That is tried out, once for each shape, with one sample in every place;
where rows differ, samples are run one at a time. Several GPUs share the batches if they are of one
kind and give that sample the same vector.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from pe.data.arrays import Float32Array, Float64Array
from pe.data.images import Images
from pe.data.samples import Array, Samples, slices
from pe.errors import RecipeError
from pe.plugins.devices import (
    find_cards,
    find_device,
    has_driver,
    memory_refused,
    require_torch,
    with_attributes,
    words_of_error,
)
from pe.plugins.embed import expect
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count, Device
from pe.plugins.specs import plugin
from pe.plugins.weights import cached_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Precision = Literal["fp32", "bf16", "fp16"]
Filter = Literal["bicubic", "bilinear"]
Batch = Array
"""Samples, n×…, as `TorchEmbedding._tensor` takes them: uint8 images n×h×w×c, or int64 tokens."""

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Network:
    """A network, with the functions that make its inputs and read its outputs."""

    module: nn.Module  # with its weights; `embed` copies it to each device
    # the tensor of a batch (of images float32 n×3×h×w in 0…255) → inputs of the module
    prepare: Callable[[Tensor], Any]
    features: Callable[[nn.Module, Any], Tensor]  # (module, inputs) → vectors, n×d


class _Copy(NamedTuple):
    """A network on a device."""

    network: Network
    device: torch.device


@plugin
class TorchEmbedding:
    """An embedding by a network, which is built, and whose weights are read, at the first sample.

    Attributes:
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as
            cuda:1.
        precision: of the network's arithmetic, fp32, bf16 or fp16; inputs and vectors are float32.
        batch_size: samples per batch on each device. Afterwards, samples per call: a batch for each
            device.
        offline: fetch nothing.

    Raises:
        RecipeError: a setting is wrong, or torch sees none of the driver's GPUs.
    """

    kind: ClassVar[str]
    noun: ClassVar[str] = Images.noun
    info = PluginInfo(hosts=(), machine_settings=("device", "batch_size", "offline"))

    device: Device = "auto"
    precision: Precision = "fp32"
    batch_size: Count = 64
    offline: bool = False

    def __post_init__(self) -> None:
        self._each = self.batch_size
        self._alike: dict[tuple[int, ...], bool] = {}
        self._places = self._find_places()
        self.batch_size *= len(self._places)

    def _load(self) -> Network:
        """Return the network with its weights, on the CPU."""
        raise NotImplementedError

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d: one row per image, a function of that image alone.

        D is the network's width.

        An image has the same features, to the last bit, in any place of any call with exactly
        `batch_size` images; with fewer images the last bits may differ.

        Raises:
            ContractError: the samples are not images.
            RecipeError: the weights or the device are not there, or the device lacks memory for the
                network or a batch.
            MissingDependency: torch is not installed.
        """
        pixels = expect(samples, Images, self.kind).pixels
        if not len(pixels):
            return self._run(self._copies[0], np.zeros((1, *samples.shape), np.uint8))[:0]
        return self._share([pixels[part] for part in slices(len(pixels), self._each)])

    def _share(self, batches: Sequence[Batch]) -> Vectors:
        """Return float32, n×d: the rows of all batches, one or more, which the devices share."""
        for shape in {batch.shape for batch in batches if len(batch) == self._each}:
            self._try_places(shape)
        copies = self._copies[: len(batches)]

        def share(i: int) -> list[Vectors]:
            return [self._batch(copies[i], batch) for batch in batches[i :: len(copies)]]

        # the settings are the whole process's: a thread that ends must not take them from the
        # others
        with _arithmetic(copies[0].device), ThreadPoolExecutor(len(copies)) as pool:
            shares = [share(0)] if len(copies) == 1 else list(pool.map(share, range(len(copies))))
        return np.concatenate(
            [shares[i % len(copies)][i // len(copies)] for i in range(len(batches))]
        )

    def _find_places(self) -> list[str]:
        """Return the devices' names. Torch is loaded only where there may be GPUs."""
        if self.device != "auto" or find_spec("torch") is None or not has_driver():
            return [self.device]
        import torch

        kinds = [torch.cuda.get_device_name(i) for i in range(find_cards("device: cpu"))]
        if len(set(kinds)) > 1:
            log.warning(
                "%s: the embedding '%s' uses the first of these GPUs alone.",
                ", ".join(kinds),
                self.kind,
            )
            return ["cuda:0"]
        return [f"cuda:{i}" for i in range(len(kinds))] or ["auto"]

    def _example(self, shape: tuple[int, ...]) -> Batch:
        """Return a batch of one made-up sample, for batches of this shape."""
        return np.random.default_rng(0).integers(0, 256, (1, *shape[1:]), dtype=np.uint8)

    def _tensor(self, batch: Batch, device: torch.device) -> Tensor:
        """Return the batch on the device, as the network's `prepare` takes it."""
        import torch

        images = torch.from_numpy(np.array(np.moveaxis(batch, 3, 1), order="C")).to(device).float()
        return images.expand(-1, 3, -1, -1)

    def _batch(self, on: _Copy, batch: Batch) -> Vectors:
        if len(batch) < self._each or self._alike[batch.shape]:
            return self._run(on, batch)
        return np.concatenate([self._run(on, row[None]) for row in batch])

    def _try_places(self, shape: tuple[int, ...]) -> None:
        """Find out, once for a shape, if a sample's vector depends on its place or its GPU."""
        if shape in self._alike:
            return
        sample = self._example(shape)
        rows = [self._run(each, np.repeat(sample, shape[0], axis=0)) for each in self._copies]
        if any((vectors != rows[0]).any() for vectors in rows[1:]):
            log.warning(
                "Two GPUs give a sample two vectors: the embedding '%s' uses the first alone.",
                self.kind,
            )
            del self._copies[1:]
        self._alike[shape] = bool((rows[0] == rows[0][:1]).all())

    def _run(self, on: _Copy, batch: Batch) -> Vectors:
        """Return float32, n×d, of one batch."""
        import torch

        network, device = on
        with (
            self._memory_for(f"{len(batch)} {self.noun} at once"),
            torch.inference_mode(),
            _arithmetic(device),
        ):
            inputs = network.prepare(self._tensor(batch, device))
            low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
            with torch.autocast(device.type, low, enabled=low is not None):
                features = network.features(network.module, inputs)
            return features.float().cpu().numpy()

    @cached_property
    def _copies(self) -> list[_Copy]:
        """The network on each device."""
        require_torch("embeddings", f"The embedding '{self.kind}'")
        devices = [find_device(place) for place in self._places]
        network = self._load()
        network.module.eval().requires_grad_(False)
        modules = [network.module, *(copy.deepcopy(network.module) for _ in devices[1:])]
        with self._memory_for("the network"):
            return [
                _Copy(replace(network, module=each.to(at)), at)
                for each, at in zip(modules, devices, strict=True)
            ]

    @contextmanager
    def _memory_for(self, purpose: str) -> Iterator[None]:
        """Raise RecipeError, naming `purpose`, if the device runs out of memory."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not memory_refused(error):
                raise
            smaller = (
                f"a smaller embedding.batch_size than {self._each}, or " if self._each > 1 else ""
            )
            raise RecipeError(
                f"The device refused {purpose} in the embedding '{self.kind}', most likely for "
                f"want of memory ({words_of_error(error)}): take {smaller}embedding.device: cpu."
            ) from error


def local_place(model: str, revision: str | None, offline: bool, *files: str) -> str:
    """Return the folder or repository.

    If `offline`, a repository's folder in the cache, or raise FileNotFoundError.
    """
    place = str(Path(model).expanduser()) if model.startswith("~") else model
    if not offline or Path(place).is_dir():
        return place
    file = cached_file(place, files, revision) if REPOSITORY.fullmatch(place) else None
    if file is None:
        raise FileNotFoundError(
            "offline is true, and there is no such folder and none in the cache"
        )
    return str(file.parent)


def _arithmetic(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA compute in full float32 and always sum in one order.

    Afterwards restore the settings as they were.

    The settings are torch's own and hold for the whole process meanwhile.
    """
    if device.type != "cuda":
        return nullcontext()
    from torch import backends

    cudnn: Any = backends.cudnn
    return with_attributes(
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
        (cudnn.conv, "fp32_precision", "ieee"),
        (backends.cuda.matmul, "fp32_precision", "ieee"),
    )


# Resizing: each way is two matrices, one for the rows and one for the columns, so it is the same on
# every device.


def antialias(
    images: Tensor, height: int, width: int, kind: Filter = "bicubic", between: bool = True
) -> Tensor:
    """Resize images as Pillow does, with a wider filter where they shrink: n×c×height×width.

    Grey levels are cut to 0…255 at the end and, if `between`, between the two passes, too, as
    Pillow does with images of 8 bits but not with those of 32. They are not rounded to whole
    numbers, so that a vector is a continuous function of its image.
    """
    rows, columns = images.shape[2:]
    images = _product(images, _filter(width, columns, kind))
    images = images.clamp(0, 255) if between else images
    return _product(images.mT, _filter(height, rows, kind)).mT.clamp(0, 255)


def shortest_side(images: Tensor, size: int, crop: int, kind: Filter = "bicubic") -> Tensor:
    """Return n×c×crop×crop: the shorter side brought to `size` ≥ crop, then the middle cut out."""
    rows, columns = images.shape[2:]
    shorter = min(rows, columns)
    height, width = (size * length // shorter for length in (rows, columns))
    images = antialias(images, height, width, kind)
    top, left = (round((length - crop) / 2) for length in (height, width))
    return images[:, :, top : top + crop, left : left + crop]


def tensorflow_bilinear(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images as TensorFlow 1 did (align_corners off) for FID: n×c×height×width.

    Pixel i is taken at i·(in/out), without the half-pixel offset of today's conventions and without
    antialiasing.
    """
    rows, columns = images.shape[2:]
    return _product(_product(images, _legacy(width, columns)).mT, _legacy(height, rows)).mT


def _product(images: Tensor, matrix: Float32Array) -> Tensor:
    """Return image · matrixᵀ for each image and channel, in float32."""
    import torch

    return images @ torch.from_numpy(matrix).to(images.device).T


def _filter(size: int, length: int, kind: Filter) -> Float32Array:
    """Return size×length: the filter at each new pixel's centre. Rows sum to 1."""
    if size == length:
        return np.eye(size, dtype=np.float32)
    scale = length / size
    spread = max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    distance = np.abs(np.arange(length)[None, :] + 0.5 - centres[:, None]) / spread
    weights = _cubic(distance) if kind == "bicubic" else np.maximum(1 - distance, 0)
    rows: Float32Array = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return rows


def _cubic(x: Float64Array) -> Float64Array:
    """Return Keys' cubic convolution kernel with a = −½, which is Pillow's."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _legacy(size: int, length: int) -> Float32Array:
    """Return size×length: row i weighs the two pixels around i·(length/size) by nearness."""
    places = np.arange(size, dtype=np.float32) * np.float32(length / size)
    low = np.floor(places).astype(np.int64)
    share = places - low.astype(np.float32)
    matrix = np.zeros((size, length), np.float32)
    np.add.at(matrix, (np.arange(size), low), 1 - share)
    np.add.at(matrix, (np.arange(size), np.minimum(low + 1, length - 1)), share)
    return matrix
