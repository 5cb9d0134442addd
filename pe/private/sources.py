"""All sources of private records, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pe.private.folder import ImageFolder
from pe.private.medical import Dicom
from pe.private.mnist import MnistSample
from pe.private.npz import ImageNpz
from pe.private.parquet import ImageParquet

PrivateSource = Annotated[ImageFolder | ImageNpz | ImageParquet | MnistSample | Dicom, Field(discriminator="kind")]
"""What the recipe's `private` section holds."""
