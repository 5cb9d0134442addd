"""Rows of tables as vectors: numbers on one scale, categories one-hot."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from pe.data.columns import Column, Columns
from pe.data.rows import Rows
from pe.data.samples import Samples
from pe.errors import ContractError
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count
from pe.plugins.specs import plugin


@plugin
class Mixed:
    """For rows of tables: numbers, dates and ordinals from 0 to 1, categories one-hot (Tab-PE).

    Everything that it knows of the columns is declared in public; see `Columns.vectors`.

    Attributes:
        columns: each column's kind and values; by default the private table's.
        category_weight: length of a category's one-hot part, beside numbers from 0 to 1.
        batch_size: rows per call.
    """

    info = PluginInfo(modality="table", hosts=())

    columns: dict[str, Column] = Field(min_length=1)
    category_weight: float = Field(1 / 3, gt=0, allow_inf_nan=False)
    batch_size: Count = 4096

    def __post_init__(self) -> None:
        self._columns = Columns(self.columns)

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d, finite: one row for each row, a function of that row alone.

        Raises:
            ContractError: the samples are not rows of a table.
        """
        if not isinstance(samples, Rows):
            raise ContractError(
                f"The embedding 'mixed' takes rows of tables, not {type(samples).__name__}."
            )
        return self._columns.vectors(
            self._columns.codes(samples), 1.0, self.category_weight
        ).astype(np.float32)
