"""Rows of tables as vectors: numbers on one scale, categories one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from pe.data.columns import Column, Columns
from pe.data.rows import Rows
from pe.data.samples import Samples
from pe.errors import ContractError
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count, Settings, read_settings


class MixedSettings(Settings):
    """Settings of `Mixed`.

    Attributes:
        columns: each column's kind and values; by default the private table's.
        category_weight: length of a category's one-hot part, beside numbers from 0 to 1.
        batch_size: rows per call.
    """

    columns: dict[str, Column] = Field(min_length=1)
    category_weight: float = Field(1 / 3, gt=0, allow_inf_nan=False)
    batch_size: Count = 4096


class Mixed:
    """For rows of tables: numbers, dates and ordinals from 0 to 1, categories one-hot; as Tab-PE
    does.

    Everything that it knows of the columns is declared in public; see `Columns.vectors`.
    """

    Settings = MixedSettings
    info = PluginInfo(modality="table", hosts=())

    def __init__(self, **settings: Any) -> None:
        self._config = read_settings(MixedSettings, settings, "embedding 'mixed'")
        self._columns = Columns(self._config.columns)

    @property
    def batch_size(self) -> int:
        """Rows per call."""
        return self._config.batch_size

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
            self._columns.codes(samples), 1.0, self._config.category_weight
        ).astype(np.float32)
