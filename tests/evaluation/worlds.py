"""Small runs over images and over texts in two worlds of private records, and all that each shows on the way."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

import pe
from adapters.pools import PublicTexts
from adapters.portfolio import Portfolio
from embeddings.tfidf import TfIdf
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.ledger import Ledger
from pe.privacy.noise import Noise
from pe.privacy.release import Release
from pe.progress import Progress, Task
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 2.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 2}
UNREADABLE = 77
"""The shade of a record over which the embedding raises, if a run is to have such a one."""
Shown = tuple[pe.Run, dict[str, object]]


@pytest.fixture
def held_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release is drawn as shipped, clean votes and all, and then replaced by public numbers."""
    release_as_shipped = Ledger.release

    def release(ledger: Ledger, what: Release, draw: Callable[[Noise], np.ndarray]) -> np.ndarray:
        def held(noise: Noise) -> np.ndarray:
            drawn = draw(noise)
            rng = np.random.default_rng(zlib.crc32(what.name.encode()))
            return rng.integers(0, 20 * what.grid, drawn.shape, dtype=drawn.dtype)

        return release_as_shipped(ledger, what, held)

    monkeypatch.setattr(Ledger, "release", release)


class Listener(Progress):
    """Writes down all that a run tells; a phase's advances sorted, since threads commit in any order."""

    def __init__(self) -> None:
        self.told: list[object] = []

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        advances: list[tuple[int, str]] = []

        class Counted(Task):
            def advance(self, count: int, spent: str = "") -> None:
                advances.append((count, spent))

        yield Counted()
        self.told.append((description, total, sorted(advances)))

    def warn(self, message: str) -> None:
        self.told.append(message)


def asked(request: RandomRequest | VariationRequest) -> list[object]:
    """All that a request holds, to the byte."""
    held = [request.labels, request.seeds.tobytes()]
    if isinstance(request, RandomRequest):
        return held
    conditions = [(name, request.conditions[name].tobytes()) for name in request.conditions]
    return [*held, request.degree, request.samples.array.tobytes(), conditions]


class Evolved(Protocol):
    """Evolve over these private records, which always lie in the same file; the run, and all that it showed."""

    def __call__(
        self,
        folder: Path,
        shades: list[int],
        labels: list[str],
        listener: Progress | None = None,
        fails: bool = False,
        **changes: object,
    ) -> Shown: ...


class FailsOnImages(Mean):
    """Raises over an image of that shade, in words on it."""

    def embed(self, samples: pe.Images) -> np.ndarray:
        if (samples.pixels == UNREADABLE).any():
            raise ValueError("the patient's name is burned in: Doe^Jane")
        return super().embed(samples)


class FailsOnTexts(TfIdf):
    """Raises over a text of that shade, in words on it."""

    def embed(self, samples: pe.Texts) -> np.ndarray:
        if any(f"shade of {UNREADABLE:b}" in text for text in samples.strings):
            raise ValueError("the patient's name stands in it: Doe^Jane")
        return super().embed(samples)


class Several(Portfolio):
    """Two generators of digits in one, which keep what both are asked."""

    def __init__(self) -> None:
        digits = {"kind": "glyphs", "size": 8, "texts": {"dark": ["1"], "light": ["8"]}}
        super().__init__(of=[digits, digits | {"stroke": [0.2, 0.25]}], explore=0.3)
        self.random_requests: list[RandomRequest] = []
        self.variation_requests: list[VariationRequest] = []

    def random_api(self, request: RandomRequest) -> pe.Answer:
        self.random_requests.append(request)
        return super().random_api(request)

    def variation_api(self, request: VariationRequest) -> pe.Answer:
        self.variation_requests.append(request)
        return super().variation_api(request)


def evolved_images(
    folder: Path,
    shades: list[int],
    labels: list[str],
    listener: Progress | None = None,
    fails: bool = False,
    generator: type[Shades | Several] = Shades,
    **changes: object,
) -> Shown:
    """Over an image of each shade."""
    path = alone(folder.parent.parent / "private.npz")
    np.savez(
        path, images=np.array(shades, np.uint8)[:, None, None, None].repeat(16, 1).reshape(-1, 4, 4, 1), labels=labels
    )
    source = pe.ImageNpz(path, size=4, channels=1, classes=["dark", "light"], declared_size=10)
    api, listener = generator(), listener or Listener()
    settings = SETTINGS | {"embedding": FailsOnImages() if fails else Mean()} | changes
    run = pe.evolve(source, api, out=folder, progress=listener, **settings)
    return run, shown(run, [*api.random_requests, *api.variation_requests], listener)


class Asked(PublicTexts):
    """Keeps what it is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path=path)
        self.requests: list[RandomRequest | VariationRequest] = []

    def random_api(self, request: RandomRequest) -> pe.Answer:
        self.requests.append(request)
        return super().random_api(request)

    def variation_api(self, request: VariationRequest) -> pe.Answer:
        self.requests.append(request)
        return super().variation_api(request)


def evolved_texts(
    folder: Path,
    shades: list[int],
    labels: list[str],
    listener: Progress | None = None,
    fails: bool = False,
    **changes: object,
) -> Shown:
    """Over a text for each shade."""
    path, public = alone(folder.parent.parent / "private.csv"), folder.parent.parent / "public.txt"
    rows = [f"a shade of {shade:b},{label}" for shade, label in zip(shades, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]))
    public.write_text("\n".join(f"the shade {i:b} of number {i % 7}" for i in range(40)))
    source = pe.TextTable(path, label_column="label", classes=["dark", "light"], declared_size=10, longest=60)
    api, listener = Asked(public), listener or Listener()
    settings = SETTINGS | {"embedding": FailsOnTexts() if fails else TfIdf()} | changes
    run = pe.evolve(source, api, out=folder, progress=listener, **settings)
    return run, shown(run, api.requests, listener)


EVOLVED: dict[str, Evolved] = {"images": evolved_images, "texts": evolved_texts}


def alone(path: Path) -> Path:
    """The file, of which no run is recorded: each world has its own ledger."""
    path.with_name(f"{path.name}.ledger.json").unlink(missing_ok=True)
    return path


def shown(run: pe.Run, requests: list[RandomRequest | VariationRequest], listener: Progress) -> dict[str, object]:
    """All that a run showed on the way; requests sorted, since threads ask in any order."""
    return {
        "asked": sorted(map(str, map(asked, requests))),
        "told": getattr(listener, "told", None),
        "certificate": run.guarantee | {"run": ""},
    }


HERE = ([10, 20, 30, 200, 210], ["dark", "dark", "dark", "light", "light"])
NEIGHBOURS = {
    "one record less": ([10, 20, 30, 200], ["dark", "dark", "dark", "light"]),
    "one record replaced": ([10, 20, 250, 200, 210], ["dark", "dark", "light", "light", "light"]),
    "a label emptied": ([200, 210], ["light", "light"]),
    "ten times the size": (HERE[0] * 10, HERE[1] * 10),
}


def pair(tmp_path: Path, other: tuple[list[int], list[str]], evolved: Evolved, **changes: object) -> list[Shown]:
    """The run over HERE and that over other records."""
    return [evolved(tmp_path / side / "run", *data, **changes) for side, data in (("a", HERE), ("b", other))]
