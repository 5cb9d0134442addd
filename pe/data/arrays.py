"""Types of NumPy arrays that many modules share.

Arrays may have any shape; the names say what their entries are. `ImageShape` is the shape of one
image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
FloatArray = npt.NDArray[np.floating]
"""Of any precision."""

ImageShape = tuple[int, int, int]
"""Height, width and channels of an image. In torch's arrays the channels come first."""
