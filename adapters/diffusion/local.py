"""What the adapters on the engine share: settings, and the way from the engine's outcomes to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adapters.diffusion.device import Devices, Precision, check_arithmetic, describe_precision
from adapters.diffusion.items import Outcome, Pixels, describe_steps, numbers_of, of_iteration
from pe.data.conditions import DRAWN, Conditions
from pe.data.decoding import convert_pixels
from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Capabilities, Failed, PluginInfo, Refused, Usage, VariationRequest


@dataclass(kw_only=True, eq=False, repr=False)
class LocalDiffusion:
    """A diffusion model on this machine.

    Args:
        steps: of sampling an image from pure noise; or a list with one number for each iteration, of which new samples
            take the first.
        device: auto (all cards, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of cards.
        precision: of all arithmetic of the network: fp32, bf16 or fp16; auto: bf16 on a GPU that computes in it, else
            fp32. The plan and the run's log name the choice.
        batch_size: images per forward pass; None: as many as memory takes, found by trying.
        chunk: most images of one request; what a run loses at most when it is killed.
        compile: the network by torch.compile.
        offline: fetch nothing.
    """

    info = PluginInfo(hosts=(), machine_settings=("device", "batch_size", "compile", "offline"), schedules=("steps",))

    steps: int | list[int] = 50
    device: Devices = "auto"
    precision: Precision = "auto"
    batch_size: int | None = None
    chunk: int = 1024
    compile: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        steps = (("steps", number) for number in numbers_of(self.steps))
        for name, value in (*steps, ("batch_size", self.batch_size), ("chunk", self.chunk)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        check_arithmetic(self.device, self.precision)

    @property
    def capabilities(self) -> Capabilities:
        """Any items in a request; a second request waits while one is made, so that no device does."""
        return Capabilities(self.chunk, 2, "nothing", "exact")

    def describe_precision(self) -> str:
        """The precision of the arithmetic on this machine.

        Raises:
            RecipeError: this machine lacks a device.
        """
        return describe_precision(self.device, self.precision)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(of_iteration("steps", self.steps, iteration), degree)


def answer_of(outcomes: Sequence[Outcome], shape: tuple[int, int, int], conditions: Conditions) -> Answer:
    """The answer that these outcomes are.

    Args:
        outcomes: one per item of the request.
        shape: h, w, c of a sample.
        conditions: one row per item of the request; those of items without an image are left out.
    """
    images = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, Refused | Failed)}
    pixels = np.stack(list(images.values())) if images else np.empty((0, *shape), dtype=np.uint8)
    return Answer(Images(pixels), conditions.take(list(images)), missing, Usage(1, len(images)))


def parents_of(samples: Samples) -> list[Pixels]:
    """The pixels of each parent.

    Raises:
        APIError: they are no images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"A diffusion model varies images, not {samples.kind}.")
    return list(samples.pixels)


def reduced(answer: Answer, size: int) -> Answer:
    """The answer with its images resized to size×size; as they were drawn they are kept beside (condition `drawn`)."""
    drawn = answer.samples.array
    small = np.empty((len(drawn), size, size, drawn.shape[3]), dtype=np.uint8)
    for place, pixels in enumerate(drawn):
        small[place] = convert_pixels(pixels, size=(size, size), resize="stretch", channels=3, name="The image")
    return replace(answer, samples=Images(small), conditions=Conditions({**answer.conditions, DRAWN: drawn}))


def as_drawn(request: VariationRequest) -> Samples:
    """The parents as they were drawn, where that was kept."""
    drawn = request.conditions.get(DRAWN)
    return request.samples if drawn is None else Images(drawn)
