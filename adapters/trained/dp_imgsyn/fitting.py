"""The fit of DP-ImgSyn: a teacher by DP-SGD, the private images' moments as one noisy sum, the companions' way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from adapters.trained.blocks import blocks_of, train_blocks
from adapters.trained.dp_imgsyn.model import Model
from adapters.trained.dp_imgsyn.moments import Moments, Scale, Vector, noisy_sum
from adapters.trained.dp_imgsyn.reader import Reader
from adapters.trained.dp_imgsyn.sections import Alignment
from adapters.trained.dp_imgsyn.teacher import CrossEntropy
from adapters.trained.dp_sgd import DPSGD
from adapters.trained.dp_sgd.training import Training
from adapters.trained.public import PublicSet
from pe.errors import RecipeError
from pe.fit.trainer import Fitting
from pe.plugins.devices import memory_refused
from pe.privacy.release import Release


def fit_model(
    fitting: Fitting,
    *,
    teacher: nn.Module,
    loss: CrossEntropy,
    training: DPSGD,
    moments: Release,
    public: PublicSet,
    alignment: Alignment,
    batch_size: int,
    devices: list[torch.device],
) -> Model:
    """Train `teacher`, release the moments, and align the companions.

    Guarantee: that of `training`'s blocks and of `moments`; all else is post-processing of them, or public. The private
    records are read only while one of them is drawn.

    Args:
        fitting: terms, ledger and records.
        teacher: new.
        loss: of its training on the private records.
        training: how.
        moments: their release.
        public: the images to begin with.
        alignment: how they are aligned.
        batch_size: public images read at once.
        devices: where each process of the training computes; the first of them does all else.

    Raises:
        Interrupted: it was told to stop.
        RecipeError: memory does not suffice.
    """
    terms, private, device = fitting.terms, cache(fitting.private), devices[0]
    steps = Training(teacher, loss, training, *devices)
    reader = Reader(steps.load(train_blocks(steps, blocks_of(training, terms), fitting, private)))
    with _enough_memory(f"batch_size is {batch_size}"):
        starts = range(0, len(public.images), batch_size)
        parts = [reader.moments(public.images[start : start + batch_size], device) for start in starts]
        means, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
        scale = Scale.of(means, squares, reader.widths)

    def vector(image: npt.NDArray[np.uint8]) -> Vector:
        found: Vector = np.hstack(reader.moments(image[None], device))[0] * scale.factors
        return found

    noisy = fitting.ledger.release(
        moments, lambda noise: noisy_sum(private(), vector, len(scale.factors), moments, noise)
    )
    found = Moments.of_sum(noisy, scale, moments.grid, terms.declared_size)
    with _enough_memory(f"alignment.companions is {alignment.companions}"):
        return Model.fitted(reader, found, public, terms.classes, alignment, device)


@contextmanager
def _enough_memory(said: str) -> Iterator[None]:
    """What needs memory by a setting; `said` names it and its value."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if memory_refused(error):
            raise RecipeError(f"{said}, and for so many images at once memory does not suffice: take less.") from error
        raise
