"""A torch network as an embedding: device, precision, batches.

A record's vector must not depend, to the last bit, on the images beside it. In a batch of one fixed
shape a network treats its rows alike unless a library gives the rows at the batch's edges another order of
summation. Whether it does is tried out, once for each shape, with one image in every place; where it
does, images are run one at a time.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import ContractError, RecipeError
from pe.plugins.devices import find_device, require_torch
from pe.plugins.protocols import PluginInfo, Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Precision = Literal["fp32", "bf16", "fp16"]

_DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


@dataclass(frozen=True)
class Network:
    """A network and what goes in and comes out of it.

    Attributes:
        module: with its weights.
        prepare: float32 n×3×h×w in 0…255, on the device → what the module takes.
        features: the module and what it takes → n×d.
    """

    module: nn.Module
    prepare: Callable[[Tensor], Tensor]
    features: Callable[[nn.Module, Tensor], Tensor]


class TorchEmbedding(ABC):
    """An embedding by a network, which is built, and whose weights are read, at the first image.

    Args:
        device: auto, cpu, mps, cuda or one card, such as cuda:1.
        precision: of the network's arithmetic, fp32, bf16 or fp16; what goes in and comes out is float32.
        batch_size: images per batch, ≥ 1.
        offline: fetch nothing.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind: ClassVar[str]
    info: PluginInfo = PluginInfo(hosts=(), machine_settings=("device", "batch_size", "offline"))

    def __init__(self, device: str, precision: Precision, batch_size: int, offline: bool) -> None:
        if not _DEVICES.fullmatch(device):
            raise RecipeError(f"device is '{device}': it must be auto, cpu, mps, cuda, or one card, such as cuda:1.")
        if precision not in get_args(Precision):
            raise RecipeError(f"precision is '{precision}': it must be one of {', '.join(get_args(Precision))}.")
        if batch_size < 1:
            raise RecipeError(f"batch_size is {batch_size}: it must be at least 1.")
        self._wanted, self._precision, self._offline = device, precision, offline
        self.batch_size = batch_size
        self._network: tuple[Network, torch.device] | None = None
        self._alike: dict[tuple[int, ...], bool] = {}

    @abstractmethod
    def _load(self) -> Network:
        """The network with its weights, on the CPU."""

    def embed(self, samples: Samples) -> Vectors:
        """float32, n×d: one row per image, a function of that image alone; d is the network's width.

        Raises:
            ContractError: the samples are not images.
            RecipeError: the weights or the device are not there, or it has not enough memory for a batch.
            MissingDependency: torch is not installed.
        """
        return self._features(samples)

    def _features(self, samples: Samples, head: Callable[[nn.Module, Tensor], Tensor] | None = None) -> Vectors:
        """float32, n×d: the network's features of each image, or what `head` makes of the module and them.

        A batch of exactly `batch_size` gives each image the features that it has in any place of any
        other; with fewer images, or after a head, the last bits may differ.
        """
        if not isinstance(samples, Images):
            raise ContractError(f"The embedding '{self.kind}' takes images, not {type(samples).__name__}.")
        pixels = samples.pixels
        if not len(pixels):
            return self._run(np.zeros((1, *samples.shape), np.uint8), head)[:0]
        batches = (pixels[start : start + self.batch_size] for start in range(0, len(pixels), self.batch_size))
        return np.concatenate([self._batch(batch, head) for batch in batches])

    def _batch(self, pixels: npt.NDArray[np.uint8], head: Callable[[nn.Module, Tensor], Tensor] | None) -> Vectors:
        if len(pixels) < self.batch_size or self._places_are_alike(pixels.shape):
            return self._run(pixels, head)
        return np.concatenate([self._run(image[None], head) for image in pixels])

    def _places_are_alike(self, shape: tuple[int, ...]) -> bool:
        """Whether an image has the same vector in every place of a batch of this shape; tried out once."""
        if shape not in self._alike:
            image = np.random.default_rng(0).integers(0, 256, (1, *shape[1:]), dtype=np.uint8)
            vectors = self._run(np.repeat(image, shape[0], axis=0), None)
            self._alike[shape] = bool((vectors == vectors[:1]).all())
        return self._alike[shape]

    def _run(self, pixels: npt.NDArray[np.uint8], head: Callable[[nn.Module, Tensor], Tensor] | None) -> Vectors:
        """float32, n×d, of one batch."""
        if self._network is None:
            self._network = self._build()
        network, device = self._network
        import torch

        try:
            with torch.inference_mode(), _arithmetic(device):
                given = torch.from_numpy(np.array(np.moveaxis(pixels, 3, 1), order="C")).to(device).float()
                given = network.prepare(given.expand(-1, 3, -1, -1))
                with _precision(device, self._precision):
                    found = network.features(network.module, given)
                found = found.float() if head is None else head(network.module, found.float())
                vectors: Vectors = found.cpu().numpy()
                return vectors
        except torch.OutOfMemoryError as error:
            raise RecipeError(
                f"The device has not enough memory for {len(pixels)} images at once in the embedding "
                f"'{self.kind}': take a smaller embedding.batch_size than {self.batch_size}."
            ) from error

    def _build(self) -> tuple[Network, torch.device]:
        require_torch("embeddings", f"The embedding '{self.kind}'")
        device = find_device(self._wanted)
        network = self._load()
        network.module.eval().requires_grad_(False).to(device)
        return network, device


@contextmanager
def _arithmetic(device: torch.device) -> Iterator[None]:
    """On CUDA full float32, and kernels that always sum in the same order; as it was before, afterwards.

    The settings are torch's own and hold for the whole process meanwhile.
    """
    settings = _settings() if device.type == "cuda" else []
    before = [getattr(place, name) for place, name, _ in settings]
    for place, name, wanted in settings:
        setattr(place, name, wanted)
    try:
        yield
    finally:
        for (place, name, _), was in zip(settings, before, strict=True):
            setattr(place, name, was)


def _settings() -> list[tuple[Any, str, Any]]:
    from torch import backends

    cudnn: Any = backends.cudnn
    return [
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
        (cudnn.conv, "fp32_precision", "ieee"),
        (backends.cuda.matmul, "fp32_precision", "ieee"),
    ]


@contextmanager
def _precision(device: torch.device, precision: Precision) -> Iterator[None]:
    """Arithmetic of this precision where it suffices (torch's autocast)."""
    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    with ExitStack() as stack:
        if precision in dtypes:
            stack.enter_context(torch.autocast(device.type, dtypes[precision]))
        yield
