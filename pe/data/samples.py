"""Samples: an ordered batch of one modality; images, say.

The engine counts, takes, saves and loads samples, and asks them for all else. So another modality is a class with
the members of `Samples`, named by an entry point of the group `pe.modalities`, and no change to the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from pe.errors import PluginError

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.integer] | slice | Sequence[int]
Shape = tuple[int, ...]
"""What all samples of a run share, in the modality's own terms: height, width and channels of images."""


class Samples(Protocol):
    """An ordered batch of one modality, held in one array whose first axis counts the samples.

    Attributes:
        kind: the modality's name: of its entry point, and of its column on disk.
        noun: what people call samples: `images`.
        axes: what the numbers of a shape are: `height×width×channels`.
        suffix: of a file that holds one sample: `.png`.
        feature: what Hugging Face's data sets call a column of such files.
        embedding: of a recipe that names none.
        unit: of `distances`, in words.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    axes: ClassVar[str]
    suffix: ClassVar[str]
    feature: ClassVar[Mapping[str, str]]
    embedding: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, array: Any, /) -> None: ...

    @classmethod
    def stack(cls, rows: Sequence[Array | None], shape: Shape) -> Self:
        """The samples `rows` in one batch; None becomes a blank one. How long it takes depends on their number alone.

        Args:
            rows: each as `array[i]` holds it.
            shape: of each of them; of the blank ones, too.
        """
        ...

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Self:
        """Made-up samples, as different from each other as can be, the same at every call; the i-th depends on i alone.

        A run tries its embedding on them before it embeds a private record.
        """
        ...

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        """Why a private record is not of the declared shape, as the end of a sentence on it; empty: it is."""
        ...

    @classmethod
    def check(cls, array: Array) -> bool:
        """Whether an array that was read from a file holds samples."""
        ...

    @classmethod
    def pack(cls, array: Array) -> dict[str, Array]:
        """The array as the journal keeps it, the smaller the better."""
        ...

    @classmethod
    def unpack(cls, parts: Mapping[str, Array]) -> Array:
        """The array that `pack` was given, to the bit; nothing in it is executed."""
        ...

    @property
    def array(self) -> Array:
        """The samples as they are stored; `type(self)(array)` makes them again."""
        ...

    @property
    def shape(self) -> Shape:
        """What all of them share."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> Self:
        """The samples at `indices`, in that order."""
        ...

    def only(self, *indices: int) -> Self:
        """As many samples of the same shape, blank but for those at `indices`."""
        ...

    def distances(self, others: Self) -> npt.NDArray[np.float64]:
        """How far each sample is from its counterpart in `others`, in `unit`s, float64 (n,)."""
        ...

    def pictures(self) -> list[Image]:
        """Each sample as a person sees it: RGB, all of one size."""
        ...

    def files(self) -> Iterator[bytes]:
        """Each sample as a file that other software reads."""
        ...


@runtime_checkable
class Readable(Protocol):
    """Samples that are text: a report shows them as text, and not as pictures."""

    @property
    def strings(self) -> list[str]:
        """Each sample as a person reads it."""
        ...


@runtime_checkable
class Suspected(Protocol):
    """Samples that may look as if their generator had withheld or spoiled them."""

    def suspicion(self) -> str:
        """Say how many do, and how; empty: none."""
        ...


def suspicions(name: str, samples: Samples) -> list[str]:
    """A sentence, if some of the samples that are called `name` look withheld or spoiled."""
    suspicion = samples.suspicion() if isinstance(samples, Suspected) else ""
    return [f"{name}: {suspicion}. They stay: look at them before you use the data."] if suspicion else []


def distinct(samples: Samples) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first of each set of equal samples, and for every sample the place of its like among those."""
    rows = samples.array
    digests = b"".join(blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    _, first, place = np.unique(np.frombuffer(digests, "V16"), return_index=True, return_inverse=True)
    return first, place


_known: dict[str, type[Samples]] = {}


def modality(kind: str) -> type[Samples]:
    """The modality of this name.

    Raises:
        PluginError: none of this name is installed, or it cannot be imported.
    """
    if kind not in _known:
        for point in entry_points(group="pe.modalities", name=kind):
            try:
                _known[kind] = point.load()
            except (ImportError, AttributeError) as error:
                raise PluginError(f"The modality '{kind}' ({point.value}) cannot be loaded: {error}.") from error
    if kind not in _known:
        raise PluginError(f"The modality '{kind}' is not installed: install the package that brings it.")
    return _known[kind]


def kind_among(names: Collection[str]) -> str:
    """The modality's name among those of stored columns.

    Raises:
        PluginError: no installed modality has any of these names.
    """
    installed = {point.name for point in entry_points(group="pe.modalities")} if _known.keys().isdisjoint(names) else ()
    for name in names:
        if name in _known or name in installed:
            return name
    raise PluginError(
        f"No installed modality is named by a column ({', '.join(names)}): restore the file, or install the modality."
    )
