"""What is fitted: the teacher, the private images' noisy moments, and the way that the companions went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import nn

from adapters.trained.dp_imgsyn.alignment import Aim, Way, align, align_companions
from adapters.trained.dp_imgsyn.moments import Moments
from adapters.trained.dp_imgsyn.reader import Reader
from adapters.trained.dp_imgsyn.sections import Alignment
from adapters.trained.labels import check_labels
from adapters.trained.plain import tensors
from adapters.trained.public import PublicSet
from pe.errors import RecipeError

Pixels = npt.NDArray[np.float32]

_TEACHER, _MOMENTS = "teacher.safetensors", "moments.safetensors"

_LOUDEST = 0.5
"""Standard deviation of a variation's noise at degree 1, where pixels lie in [−1, 1]."""


@dataclass(frozen=True, eq=False)
class Model:
    """Answers, image by image; none depends on another.

    Attributes:
        aim: the teacher and the private images' moments.
        way: the companions'.
        public: what images begin as.
        labels: the label names, in the teacher's order.
        alignment: how they are aligned.
        device: where.
    """

    aim: Aim
    way: Way
    public: PublicSet
    labels: tuple[str, ...]
    alignment: Alignment
    device: torch.device

    @classmethod
    def fitted(
        cls,
        reader: Reader,
        moments: Moments,
        public: PublicSet,
        labels: Sequence[str],
        alignment: Alignment,
        device: torch.device,
    ) -> Model:
        """Align the companions: evenly spread public images, the labels in turn."""
        means, deviations = (torch.from_numpy(each).float().to(device) for each in (moments.means, moments.deviations))
        aim = Aim(reader, means, deviations)
        chosen = np.linspace(0, len(public.images) - 1, alignment.companions).astype(np.int64)
        targets = torch.arange(len(chosen), device=device) % len(labels)
        way = align_companions(tensors(public.images[chosen], device), targets, aim, alignment)
        return cls(aim, way, public, tuple(labels), alignment, device)

    def write(self, folder: Path) -> None:
        """The teacher and the moments, as .safetensors."""
        from safetensors.torch import save_file

        weights = self.aim.reader.teacher.state_dict()  # layers may share some, and a file holds each by itself
        save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, folder / _TEACHER)
        tensors_ = {"means": self.aim.means, "deviations": self.aim.deviations}
        tensors_ |= {"way_means": self.way.means, "way_squares": self.way.squares}
        save_file({name: value.cpu().contiguous() for name, value in tensors_.items()}, folder / _MOMENTS)

    @classmethod
    def read(
        cls,
        folder: Path,
        teacher: nn.Module,
        labels: Sequence[str],
        public: PublicSet,
        alignment: Alignment,
        device: torch.device,
    ) -> Model:
        """The model in `folder`; `teacher` gets its weights. Fewer steps than it was fitted for may be taken.

        Raises:
            RecipeError: a file is missing, damaged, or of another teacher; or more steps are wanted.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            teacher.load_state_dict(load_file(folder / _TEACHER))
            found = load_file(folder / _MOMENTS)
            means, deviations, *way = (
                found[name].to(device) for name in ("means", "deviations", "way_means", "way_squares")
            )
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise RecipeError(f"{folder} holds no DP-ImgSyn of this teacher: fit it in a new run.") from error
        if alignment.steps > len(way[0]):
            raise RecipeError(
                f"alignment.steps is {alignment.steps}, and the model was fitted for {len(way[0])}: take at most those."
            )
        way = [each[: alignment.steps] for each in way]
        return cls(
            Aim(Reader(teacher.to(device)), means, deviations), Way(*way), public, tuple(labels), alignment, device
        )

    def numbers(self, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        """The teacher's number of each label, int64 (n,).

        Raises:
            RecipeError: it knows none of that name.
        """
        check_labels(labels, self.labels)
        known = {name: i for i, name in enumerate(self.labels)}
        return np.array([known[label] for label in labels], dtype=np.int64)

    def losses(self, images: npt.NDArray[np.uint8], labels: Sequence[str]) -> npt.NDArray[np.float64]:
        """The teacher's cross-entropy on each image, float64 (n,), which it sees alone."""
        found = np.empty(len(images))
        with torch.no_grad():
            for i, (image, number) in enumerate(zip(images, self.numbers(labels), strict=True)):
                logits, *_ = self.aim.reader(tensors(image[None], self.device))
                found[i] = -float(logits[0].log_softmax(dim=0)[number])
        return found

    def anew(self, seed: int) -> tuple[Pixels, int]:
        """A public image drawn by `seed`, float32 h×w×c in [−1, 1], and its place."""
        place = int(_rng(seed).integers(len(self.public.images)))
        return _levels(self.public.images[place]), place

    def moved(
        self, parent: npt.NDArray[np.uint8], place: int, degree: float, seed: int
    ) -> tuple[Pixels, np.int64, np.int64]:
        """What a variation begins with, the step from which it is aligned, and the public image's place."""
        rng, steps = _rng(seed), len(self.way.means)
        other = int(rng.integers(len(self.public.images)))
        if rng.random() < degree**2:
            return _levels(self.public.images[other]), np.int64(0), np.int64(other)
        noise = ndimage.gaussian_filter(rng.standard_normal(parent.shape), (1, 1, 0))
        start = np.clip(_levels(parent) + _LOUDEST * degree * noise / noise.std(), -1, 1) if degree else _levels(parent)
        return start.astype(np.float32), np.int64(steps - ceil(degree * steps)), np.int64(place)

    def aligned(
        self, images: Pixels, labels: npt.NDArray[np.int64], begin: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], Pixels]:
        """The aligned images, uint8 n×h×w×c, and the teacher's probabilities for them, float32 (n, classes)."""
        pixels = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2)
        targets, first = (torch.from_numpy(each).to(self.device) for each in (labels, begin))
        moved = align(pixels, targets, self.aim, self.way, first, self.alignment)
        levels = ((moved.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu().numpy()
        with torch.no_grad():
            logits, *_ = self.aim.reader(tensors(levels, self.device))
        return levels, logits.softmax(dim=1).cpu().numpy()


def _levels(image: npt.NDArray[np.uint8]) -> Pixels:
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))
