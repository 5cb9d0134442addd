"""Private texts for tests, and an embedding of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pe.data.texts import Texts
from pe.plugins.protocols import PluginInfo
from tests.endpoints.chat_server import WORDS
from tests.rows import site

LABELS = ("film", "food")
CANARY = "ward-7f3a9e"


class WordCounts:
    """Embeds a text as how often it has each word of the scripted server, and the length of the
    rest.
    """

    info = PluginInfo(modality="texts", hosts=())
    batch_size = 16

    def embed(self, batch: Texts) -> npt.NDArray[np.float32]:
        split = [text.split() for text in batch.strings]
        rest = [sum(map(len, words)) + 7 * len(words[0] if words else "") for words in split]
        rows = [
            [*map(words.count, WORDS), more / 9] for words, more in zip(split, rest, strict=True)
        ]
        return np.array(rows, dtype=np.float32)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding `words`, as somebody's package brings it."""
    monkeypatch.syspath_prepend(site(tmp_path, "[pe.embeddings]\nwords = tests.lines:WordCounts\n"))


def content(folder: Path, api: dict[str, Any], count: int = 60, **evolution: Any) -> dict[str, Any]:
    """A recipe over `count` private texts, which this writes."""
    random = np.random.default_rng(0)
    rows = [
        f"{LABELS[i % 2]},{LABELS[i % 2]} {' '.join(random.choice(WORDS, 12))} {CANARY}"
        for i in range(count)
    ]
    (folder / "private.csv").write_text("\n".join(["label,text", *rows]))
    private = {"kind": "text_table", "path": str(folder / "private.csv"), "label_column": "label"}
    return {
        "private": private | {"classes": list(LABELS)},
        "api": api,
        "embedding": {"kind": "words"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 20, "lookahead": 2, "degree": 0.5} | evolution,
    }
