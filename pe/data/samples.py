"""Samples: an ordered batch of one modality, such as images. Also conditions and public randomness.

The engine counts, takes, saves and loads samples. For all other work it calls their methods.
Another modality is therefore a class with the members of `Samples`, named by an entry point of the
group `pe.modalities`; the loop does not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from pe.data.arrays import Float64Array, Int64Array, UInt64Array
from pe.errors import ContractError, PluginError

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.integer] | slice | Sequence[int]
Shape = tuple[int, ...]
"""The shape of all samples of a run, in the modality's own terms: height, width and channels of
images."""


class Samples(Protocol):
    """An ordered batch of one modality, held in one array whose first axis counts the samples.

    A class that inherits from this one need not define the members that have a body here.

    Attributes:
        kind: the modality's name, by which its entry point and its column on disk are called.
        noun: the word for samples: `images`.
        axes: the numbers of a shape, in words: `height×width×channels`.
        suffix: the suffix of a file that holds one sample: `.png`.
        feature: the type of a column of such files in Hugging Face's data sets.
        embedding: the kind of embedding for a recipe that names none; for images a network at hand
            is preferred.
        unit: the unit of `distances`, in words.
        counts_labels: whether `evolution: auto` has the labels counted, under DP, in place of equal
            numbers of each.
        largest: the most samples at the end that `evolution: auto` chooses.
        is_text: whether the samples are text, which a report shows as such, and not as pictures.
        columns: of rows, where the class of their declared columns is, `module:name`; it works as
            `pe.data.columns.Columns`. Empty for other samples. Exports and reports have a column
            for each of theirs.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    axes: ClassVar[str]
    suffix: ClassVar[str]
    feature: ClassVar[Mapping[str, str]]
    embedding: ClassVar[str]
    unit: ClassVar[str]
    counts_labels: ClassVar[bool] = False
    largest: ClassVar[int] = 10_000
    is_text: ClassVar[bool] = False
    columns: ClassVar[str] = ""

    def __init__(self, array: Any, /) -> None: ...

    @classmethod
    def stack(cls, rows: Sequence[Array | None], shape: Shape) -> Self:
        """Return a batch of `rows`, each as in `array[i]`, or None for a blank.

        The time that it takes follows from their number alone.
        """

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Self:
        """Make up samples that differ as much as can be, sample i from i alone.

        A run tries its embedding on them first.
        """

    @classmethod
    def costliest(cls, count: int, shape: Shape) -> Self:
        """Make up samples that take an embedding as long as any do.

        The public clock leaves time for them.
        """
        return cls.examples(count, shape)

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        """Return how a record differs from the declared shape, to end a sentence, or ''."""

    @classmethod
    def is_unique(cls, row: Array) -> bool:
        """Return True if a sample that equals `row` is certainly a copy of it.

        By default two samples may be equal by chance.
        """
        return False

    @classmethod
    def check(cls, array: Array) -> bool:
        """Return True if an array that was read from a file holds samples, and one at least."""
        try:
            cls(array)
        except ContractError:
            return False
        return array.size > 0

    @classmethod
    def pack(cls, array: Array) -> dict[str, Array]:
        """Return the array as named parts, to be stored until the population is made.

        The parts should be small.
        """

    @classmethod
    def unpack(cls, parts: Mapping[str, Array]) -> Array:
        """Return the array that `pack` was given, to the bit. No code in `parts` is executed."""

    @property
    def array(self) -> Array:
        """The samples as they are stored. `type(self)(array)` makes them again."""

    @property
    def shape(self) -> Shape:
        """The shape that all the samples share."""

    def __len__(self) -> int:
        return len(self.array)

    def take(self, indices: Indices) -> Self:
        """Return the samples at `indices`, in that order."""
        return type(self)(self.array[indices])

    def only(self, *indices: int) -> Self:
        """Return a batch of equal length and shape that keeps the samples at `indices`.

        All others are blank.
        """
        array = np.zeros_like(self.array)
        array[list(indices)] = self.array[list(indices)]
        return type(self)(array)

    def distances(self, others: Self) -> Float64Array:
        """Return each sample's distance from its counterpart in `others`, float64 (n,).

        Distances are in `unit`s.
        """

    @property
    def strings(self) -> list[str]:
        """Each sample as a person reads it if `is_text`, else no strings."""
        return []

    def suspicion(self) -> str:
        """Return a clause on how many samples look withheld or spoiled, and in what way.

        The clause is empty if none do.
        """
        return ""

    def pictures(self) -> list[Image]:
        """Draw each sample as a person sees it: RGB, all of one size."""

    def files(self) -> Iterator[bytes]:
        """Yield each sample as a file that other software reads."""


def columns_of(samples: Samples, private: Mapping[str, Any]) -> Any:
    """Return the columns of rows, as a recipe's section `private` declares them.

    Other samples have none: None.
    """
    return resolve_name(samples.columns)(private["columns"]) if samples.columns else None


def suspicions(name: str, samples: Samples) -> list[str]:
    """Return one sentence if some samples look withheld or spoiled, else an empty list.

    The sentence calls the samples `name`.
    """
    suspicion = samples.suspicion()
    return (
        [f"{name}: {suspicion}. They stay: look at them before you use the data."]
        if suspicion
        else []
    )


def distinct(samples: Samples) -> tuple[Int64Array, Int64Array]:
    """Return (first, place): the first index and the number of each sample's group of equals.

    Sample i equals sample first[place[i]].
    """
    return distinct_rows(samples.array)


def distinct_rows(rows: Array) -> tuple[Int64Array, Int64Array]:
    """Return what `distinct` returns, for rows of an array that are equal to the last bit."""
    digests = b"".join(blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    _, first, place = np.unique(
        np.frombuffer(digests, "V16"),
        return_index=True,
        return_inverse=True,
    )
    return first, place


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` places that cover the places 0 … count − 1 in order.

    The last one may reach beyond them.
    """
    for start in range(0, count, size):
        yield slice(start, start + size)


_modalities: dict[str, type[Samples]] = {}


def modality(kind: str) -> type[Samples]:
    """Return the modality of this name.

    Raises:
        PluginError: none is installed, or it cannot be imported.
    """
    if kind not in _modalities:
        points = entry_points(group="pe.modalities", name=kind)
        if not points:
            raise PluginError(
                f"The modality '{kind}' is not installed: install the package that brings it."
            )
        (point,) = tuple(points)[-1:]
        try:
            _modalities[kind] = point.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"The modality '{kind}' ({point.value}) cannot be loaded: {error}."
            ) from error
    return _modalities[kind]


def kind_among(names: Collection[str]) -> str:
    """Return the name of the modality among the `names` of stored columns.

    Raises:
        PluginError: there is none.
    """
    installed_names = set(names) & _modalities.keys() or {
        point.name for point in entry_points(group="pe.modalities")
    }
    for name in names:
        if name in installed_names:
            return name
    raise PluginError(
        f"No installed modality is named by a column ({', '.join(names)}): restore the file, or "
        "install the modality."
    )


# Public randomness: every draw but the noise comes from the recipe's seed, a phase and an index.
# Noise and sampling coins never come from here; they are the operating system's
# (pe/privacy/noise.py).

Seeds = UInt64Array
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def item_seeds(
    seed: int,
    phase: str,
    items: Int64Array,
    attempts: Int64Array,
) -> Seeds:
    """Return a seed for each item of a phase and each attempt at it, uint64 (n,).

    Seeds do not depend on how items are cut into chunks.
    """
    keys = np.uint64(_key(seed, phase)) + items.astype(np.uint64) * _GOLDEN
    return mix(mix(keys) + attempts.astype(np.uint64) * _GOLDEN)


def uniforms(seeds: Seeds, purpose: str) -> Float64Array:
    """Return a number in [0, 1) for each seed, float64 (n,).

    Numbers for different purposes are independent of each other.
    """
    bits = mix(seeds ^ np.uint64(_key(0, purpose))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def generator(seed: int, phase: str) -> np.random.Generator:
    """Return a random generator for one phase of the run. Its draws are equal on every machine."""
    return np.random.Generator(np.random.Philox(key=_key(seed, phase)))


def _key(seed: int, phase: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"{seed}/{phase}".encode(), digest_size=8).digest(),
        "little",
    )


def mix(x: Seeds) -> Seeds:
    """Apply the finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection on 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# Conditions: columns of arrays that a generator needs to know of each sample. A condition is
# public: a prompt, an API class, a simulator's parameters. It belongs to its sample and is carried
# to all its descendants (App. I of the paper), independent of the private label.

Column = npt.NDArray[Any]
CONDITION = "condition."
"""Prefix of a condition's name in the name of its stored column."""
SOFT_LABEL = "soft_label"
"""Column of each sample's probabilities of the labels, if the generator gives them: float32 (n,
labels)."""
CAPTION = "caption"
"""Column of the text that each sample was drawn from, if the generator keeps it."""
DRAWN = "drawn"
"""Column of the samples as drawn, uint8 (n, height, width, 3), if the generator varies these and
not the resized ones. Unlike other conditions it does not decide which samples a request asks for
together."""
GENERATOR = "generator"
"""Column of the name of the generator that made each sample, if there are several."""
EXAMPLES = "examples"
BETWEEN = "\n\n---\n\n"
"""Column of texts of the label, for `pe extend --examples` to show to a language model, and what
stands between two of them; no sample keeps it."""
PART = "."
"""Mark in the name of a column that only the samples of one of several generators have:
`hand.font`. In the rows of all other samples the column is 0, or empty."""


class Conditions(Mapping[str, Column]):
    """A table with one row per sample. Columns cannot be added or removed.

    Args:
        columns: name → array whose first axis counts the samples: numbers of any shape, or text
            (dtype `U`), but no objects. Empty for generators without conditions.

    Raises:
        ContractError: columns of different lengths, or of objects.
    """

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self._columns = dict(columns or {})
        lengths = {name: len(column) for name, column in self.items()}
        if len(set(lengths.values())) > 1:
            raise ContractError(f"Condition columns differ in length: {lengths}.")
        for name, column in self.items():
            if column.dtype.hasobject:
                raise ContractError(
                    f"Condition column '{name}' holds Python objects: use numbers or text."
                )

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._columns)

    @property
    def rows(self) -> int | None:
        """The number of samples, or None without columns."""
        return next(map(len, self.values()), None)

    def take(self, indices: Indices) -> Conditions:
        """Return the rows at `indices`, in that order."""
        return Conditions({name: column[indices] for name, column in self.items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Conditions]) -> Conditions:
        """Return all parts, one after another.

        Raises:
            ContractError: the parts' columns differ, not counting columns that only some samples
                have (`PART`).
        """
        names = {tuple(sorted(name for name in part if PART not in name)) for part in parts}
        if len(names) > 1:
            raise ContractError(f"Condition columns differ between answers: {sorted(names)}.")
        like = {name: column for part in parts for name, column in part.items()}

        def column(part: Conditions, name: str) -> Column:
            shape = (part.rows or 0, *like[name].shape[1:])
            return part[name] if name in part else np.zeros(shape, like[name].dtype)

        return cls({name: np.concatenate([column(part, name) for part in parts]) for name in like})

    # As of all batches, there is no equality but identity: arrays have none.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
