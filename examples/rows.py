"""A modality of its own, as a package would bring it: samples, a private source, a generator and an
embedding of rows of numbers (docs/write-your-own.md).
"""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image

import pe
from pe.data.samples import Samples
from pe.private.source import PrivateSource, source


@dataclass(frozen=True, eq=False)
class Rows(Samples):
    """n rows of d numbers, float64 (n, d)."""

    numbers: np.ndarray

    kind, noun, axes, suffix = "rows", "rows", "columns", ".csv"
    feature: ClassVar = {"dtype": "string", "_type": "Value"}  # of Hugging Face's data sets
    embedding, unit = "numbers", "distance"  # of a recipe that names none; what `distances` counts

    @classmethod
    def stack(cls, rows, shape):  # None becomes a blank sample
        return cls(
            np.array([np.zeros(shape) if row is None else row for row in rows]).reshape(-1, *shape)
        )

    @classmethod
    def examples(cls, count, shape):  # made-up samples, always the same
        return cls(np.array([np.random.default_rng(i).normal(size=shape) for i in range(count)]))

    @classmethod
    def misfit(cls, row, shape):
        return (
            ""
            if row.shape == shape
            else f"has {len(row)} numbers, not the {shape[0]} that are declared"
        )

    @classmethod
    def check(cls, array):
        return array.ndim == 2 and array.dtype == np.float64

    @classmethod
    def pack(cls, array):
        return {"rows": array}

    @classmethod
    def unpack(cls, parts):
        return parts["rows"]

    @property
    def array(self):
        return self.numbers

    @property
    def shape(self):
        return self.numbers.shape[1:]

    def distances(self, others):
        return np.linalg.norm(self.array - others.array, axis=1)

    def pictures(self):  # as a person sees them: a grey stripe for each number
        shades = (255 / (1 + np.exp(-self.array))).astype(np.uint8)
        return [Image.fromarray(row[None]).convert("RGB").resize((64, 16)) for row in shades]

    def files(self):
        return (",".join(map(str, row)).encode() for row in self.array)


@source
class RowFile(PrivateSource):
    """A .npy file with a row for each record.

    Attributes:
        path: the file.
        columns: numbers in a row.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["row_file"] = "row_file"
    columns: int = 2

    modality: ClassVar = Rows

    @property
    def shape(self):
        return (self.columns,)

    @property
    def place(self):
        return self.path

    def open(self):
        rows = np.load(self.path)
        no_keys = [(None, None)] * len(rows)  # a label and a privacy unit of each row
        return self.bind(rows, no_keys, lambda index: f"Row {index} of {self.path}")

    def decoding(self):  # as much work as one record is
        return lambda: np.zeros(self.columns)


class Normal:
    """New rows are normal draws; a variation moves its parent by normal draws times the degree."""

    info = pe.PluginInfo(modality="rows", hosts=())
    capabilities = pe.Capabilities()
    columns = 2

    def random_api(self, request):
        return pe.Answer(Rows(3 * self._draws(request)))

    def variation_api(self, request):
        return pe.Answer(Rows(request.samples.array + request.degree * self._draws(request)))

    def _draws(self, request):
        return np.array(
            [np.random.default_rng(seed).normal(size=self.columns) for seed in request.seeds]
        )


class Numbers:
    info = pe.PluginInfo(modality="rows", hosts=())
    batch_size = 64

    def embed(self, samples):
        return samples.array.astype(np.float32)
