"""Generators and embeddings that tests drive the engine with: small, real, deterministic."""

from __future__ import annotations

import threading

import numpy as np

from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    PluginInfo,
    RandomRequest,
    Refused,
    VariationRequest,
)


class Shades:
    """4×4 grey images of one shade each; a variation moves the shade by at most 255·degree.

    Conditions: `tint`, drawn with the random sample and carried on.
    """

    info: PluginInfo = PluginInfo(hosts=())

    def __init__(
        self, *, max_chunk: int = 7, concurrency: int = 1, shares: str = "nothing"
    ) -> None:
        self.capabilities = Capabilities(
            max_chunk=max_chunk, concurrency=concurrency, shares=shares
        )
        self.random_requests: list[RandomRequest] = []
        self.variation_requests: list[VariationRequest] = []
        self._lock = threading.Lock()

    def random_api(self, request: RandomRequest) -> Answer:
        with self._lock:
            self.random_requests.append(request)
        shades = (request.seeds % np.uint64(256)).astype(np.uint8)
        tints = (request.seeds % np.uint64(3)).astype(np.int64)
        return Answer(
            images_of(shades),
            Conditions({"tint": tints, "name": np.array([f"t{t}" for t in tints])}),
        )

    def variation_api(self, request: VariationRequest) -> Answer:
        with self._lock:
            self.variation_requests.append(request)
        parents = request.samples.array[:, 0, 0, 0].astype(float)
        moves = (request.seeds % np.uint64(511)).astype(float) - 255
        return Answer(images_of(np.clip(parents + request.degree * moves, 0, 255).astype(np.uint8)))

    @property
    def asked(self) -> int:
        return sum(map(len, self.random_requests)) + sum(map(len, self.variation_requests))


class Moody(Shades):
    """Refuses or fails items whose seed a rule names, on the attempts that the rule names."""

    def __init__(
        self, *, refuse: int = 0, fail: int = 0, retryable: bool = True, **settings: int
    ) -> None:
        super().__init__(**settings)
        self._refuse, self._fail, self._retryable = refuse, fail, retryable

    def random_api(self, request: RandomRequest) -> Answer:
        return self._drop(super().random_api(request), request.seeds)

    def variation_api(self, request: VariationRequest) -> Answer:
        answer = super().variation_api(request)
        return self._drop(Answer(answer.samples, request.conditions), request.seeds)

    def _drop(self, answer: Answer, seeds: np.ndarray) -> Answer:
        missing: dict[int, Refused | Failed] = {}
        for i, seed in enumerate(seeds):
            if self._refuse and seed % np.uint64(self._refuse) == 0:
                missing[i] = Refused("not this one")
            elif self._fail and seed % np.uint64(self._fail) == 0:
                missing[i] = Failed("busy", self._retryable)
        kept = [i for i in range(len(seeds)) if i not in missing]
        return Answer(answer.samples.take(kept), answer.conditions.take(kept), missing)


class Mean:
    """Embeds an image as its mean shade."""

    batch_size = 16

    def embed(self, samples: Images) -> np.ndarray:
        return (
            samples.pixels.reshape(len(samples), -1).mean(axis=1, keepdims=True).astype(np.float32)
        )


def images_of(shades: np.ndarray) -> Images:
    return Images(
        np.broadcast_to(
            np.asarray(shades, np.uint8)[:, None, None, None], (len(shades), 4, 4, 1)
        ).copy()
    )
