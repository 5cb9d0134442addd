"""Private texts for tests, a line for each record, and an embedding of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pytest

from pe.data import samples
from pe.data.samples import Samples, Shape
from pe.data.texts import Texts
from pe.plugins.protocols import PluginInfo
from pe.private.dataset import PrivateDataset
from pe.private.source import PrivateSource, source
from tests.endpoints.chat_server import WORDS

LABELS = ("film", "food")
CANARY = "ward-7f3a9e"
POINTS = """
[pe.sources]
lines = tests.lines:Lines
[pe.embeddings]
words = tests.lines:WordCounts
"""


@source
class Lines(PrivateSource):
    """A file with a line for each record: its label, a tab, its text.

    Attributes:
        path: the file.
        longest: bytes of the longest text that there may be.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["lines"] = "lines"
    longest: int = 2000

    modality: ClassVar[type[Samples]] = Texts

    @property
    def shape(self) -> Shape:
        return (self.longest,)

    @property
    def place(self) -> Path:
        return self.path

    def open(self) -> PrivateDataset:
        labels, texts = zip(*(line.split("\t") for line in self.path.read_text().splitlines()), strict=True)
        records = [np.array(text.encode()) for text in texts]
        return self.bind(records, len(texts), lambda index: f"Line {index + 1} of {self.path}", labels=labels)

    def decoding(self) -> Callable[[], object]:
        return lambda: np.array(b"x" * self.longest)


class WordCounts:
    """Embeds a text as how often it has each word of the scripted server, and the length of the rest."""

    info = PluginInfo(modality="texts", hosts=())
    batch_size = 16

    def embed(self, batch: Texts) -> npt.NDArray[np.float32]:
        split = [text.split() for text in batch.strings]
        rest = [sum(map(len, words)) + 7 * len(words[0] if words else "") for words in split]
        rows = [[*map(words.count, WORDS), more / 9] for words, more in zip(split, rest, strict=True)]
        return np.array(rows, dtype=np.float32)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source `lines` and the embedding `words`, as somebody's package brings them."""
    info = tmp_path / "site" / "lines-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setattr(samples, "_modalities", {})


def content(folder: Path, api: dict[str, Any], count: int = 60, **evolution: Any) -> dict[str, Any]:
    """A recipe over `count` private lines, which this writes."""
    random = np.random.default_rng(0)
    lines = [f"{LABELS[i % 2]}\t{LABELS[i % 2]} {' '.join(random.choice(WORDS, 12))} {CANARY}" for i in range(count)]
    (folder / "private.tsv").write_text("\n".join(lines))
    return {
        "private": {"kind": "lines", "path": str(folder / "private.tsv"), "classes": list(LABELS)},
        "api": api,
        "embedding": {"kind": "words"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 20, "lookahead": 2, "degree": 0.5} | evolution,
    }
