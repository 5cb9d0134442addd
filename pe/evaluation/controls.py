"""Controls: what synthetic data must be compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pe.data.population import NO_PARENT
from pe.data.samples import Images
from pe.errors import ContractError
from pe.protocols import GenerationAPI
from pe.run.answers import Standing
from pe.run.work import Work


def unevolved(api: GenerationAPI, labels: npt.NDArray[np.int32], classes: tuple[str, ...], seed: int) -> Images:
    """One image straight from RANDOM_API for each of `labels`, int32 (n,): what the generator gives without votes."""
    work = Work("control/unevolved", labels, classes, seed, np.full(len(labels), NO_PARENT, np.int64))
    standing = Standing.untouched(len(labels))
    parts = []
    for chunk in work.chunks(np.arange(len(labels)), standing, api):
        answer = work.ask(api, chunk, standing)
        if answer.missing or not isinstance(answer.samples, Images):
            raise ContractError(f"{type(api).__name__} left {len(answer.missing)} of {len(chunk)} control images out.")
        parts.append((chunk, answer.samples.pixels))
    pixels = np.concatenate([part for _, part in parts])
    return Images(pixels[np.argsort(np.concatenate([chunk for chunk, _ in parts]))])
