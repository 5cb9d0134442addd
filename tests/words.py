"""A second modality, as a package of somebody else's would bring it: words of letters a to z, in a text file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from pe.data.samples import Array, Conditions, Indices, Samples, Shape
from pe.errors import BadSample
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.private.dataset import PrivateDataset
from pe.private.source import PrivateSource, source

LETTERS = 8


@dataclass(frozen=True, eq=False)
class Words:
    """n words as text of a fixed width, the longest that there may be."""

    text: npt.NDArray[np.str_]

    kind: ClassVar[str] = "words"
    noun: ClassVar[str] = "words"
    axes: ClassVar[str] = "letters"
    suffix: ClassVar[str] = ".txt"
    feature: ClassVar[Mapping[str, str]] = {"dtype": "string", "_type": "Value"}
    embedding: ClassVar[str] = "letters"
    unit: ClassVar[str] = "letters that differ"

    @classmethod
    def stack(cls, rows: Sequence[Array | None], shape: Shape) -> Words:
        return cls(np.array(["" if row is None else str(row) for row in rows], dtype=f"<U{shape[0]}"))

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Words:
        drawn = [np.random.default_rng(i).integers(97, 123, shape[0]) for i in range(count)]
        return cls(np.array(["".join(map(chr, word)) for word in drawn], dtype=f"<U{shape[0]}"))

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        longer = len(str(row)) > shape[0]
        return f"has more than the {shape[0]} letters that are declared: raise private.longest" if longer else ""

    @classmethod
    def check(cls, array: Array) -> bool:
        return array.ndim == 1 and array.dtype.kind == "U" and array.size > 0

    @classmethod
    def pack(cls, array: Array) -> dict[str, Array]:
        return {"utf8": np.frombuffer("\n".join(array.tolist()).encode(), np.uint8), "width": np.array(array.itemsize)}

    @classmethod
    def unpack(cls, parts: Mapping[str, Array]) -> Array:
        return np.array(parts["utf8"].tobytes().decode().split("\n"), dtype=f"<U{int(parts['width']) // 4}")

    @property
    def array(self) -> Array:
        return self.text

    @property
    def shape(self) -> Shape:
        return (self.text.itemsize // 4,)

    def __len__(self) -> int:
        return len(self.text)

    def take(self, indices: Indices) -> Words:
        return Words(self.text[indices])

    def only(self, *indices: int) -> Words:
        text = np.zeros_like(self.text)
        text[list(indices)] = self.text[list(indices)]
        return Words(text)

    def distances(self, others: Words) -> npt.NDArray[np.float64]:
        pairs = zip(self.text, others.text, strict=True)
        return np.array([sum(a != b for a, b in zip(one, other, strict=False)) for one, other in pairs], np.float64)

    def pictures(self) -> list[Image.Image]:
        found = []
        for word in self.text:
            found.append(Image.new("RGB", (64, 16), "white"))
            ImageDraw.Draw(found[-1]).text((2, 2), str(word), fill="black")
        return found

    def files(self) -> Iterator[bytes]:
        return (str(word).encode() for word in self.text)


@source
class WordList(PrivateSource):
    """A file with a line for each record: its label, a space, its word.

    Attributes:
        path: the file.
        longest: letters of the longest word that there may be.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["word_list"] = "word_list"
    longest: int = LETTERS

    modality: ClassVar[type[Samples]] = Words

    @property
    def shape(self) -> Shape:
        return (self.longest,)

    @property
    def place(self) -> Path:
        return self.path

    def open(self) -> PrivateDataset:
        labels, words = zip(*(line.split(" ") for line in self.path.read_text().splitlines()), strict=True)
        records = [np.array(word) if word.isalpha() else BadSample(f"'{word}' is no word.") for word in words]
        return self.bind(records, len(words), lambda index: f"Line {index + 1} of {self.path}", labels=labels)

    def decoding(self) -> Callable[[], object]:
        return lambda: np.array("x" * self.longest)


class Babble:
    """Makes words of five letters; a variation draws about `degree` of them anew."""

    info = PluginInfo(modality="words", hosts=())
    capabilities = Capabilities(max_chunk=16)

    def random_api(self, request: RandomRequest) -> Answer:
        drawn = [np.random.default_rng(int(seed)).integers(97, 123, 5) for seed in request.seeds]
        return Answer(Words(np.array(["".join(map(chr, word)) for word in drawn], dtype=f"<U{LETTERS}")), Conditions())

    def variation_api(self, request: VariationRequest) -> Answer:
        varied = []
        for word, seed in zip(request.samples.array, request.seeds, strict=True):
            rng = np.random.default_rng(int(seed))
            varied.append(
                "".join(chr(rng.integers(97, 123)) if rng.random() < request.degree else a for a in str(word))
            )
        return Answer(Words(np.array(varied, dtype=f"<U{LETTERS}")))


class Letters:
    """Embeds a word as how often it has each letter."""

    info = PluginInfo(modality="words", hosts=())
    batch_size = 32

    def embed(self, samples: Words) -> npt.NDArray[np.float32]:
        return np.array([[str(word).count(chr(97 + i)) for i in range(26)] for word in samples.text], dtype=np.float32)
