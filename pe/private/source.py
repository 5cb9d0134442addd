"""Sources of private records: settings that are public and stand in the recipe.

A source is a subclass of `PrivateSource`, decorated with `source`, that has a `kind` and a
`modality` and defines the abstract members. An entry point of the group `pe.sources` names it. Its
settings are its fields; `withheld` names the settings that tell where the records lie.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from pe.data.remote import RemotePath
from pe.data.samples import Array, Samples, Shape
from pe.errors import PrivateDataError, RecipeError
from pe.plugins.registry import load
from pe.plugins.settings import sentence
from pe.plugins.specs import checked
from pe.private.dataset import OnBadRecord, PrivateDataset, Records, Remark, Where, class_fault
from pe.private.naming import ONE_LABEL, Keys

Class = TypeVar("Class", bound=type[Any])
RECORD = "record"
SUBFOLDER = "subfolder"


def _class_names(value: Any) -> Any:
    """Check a class list. Whole numbers become text."""
    if not isinstance(value, list | tuple | range):
        raise ValueError("give a list of names or whole numbers")
    names: dict[str, None] = {}  # of which a hundred thousand are looked up in no long time
    for name in value:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(
                f"{name!r} is neither a name nor a whole number; put names like yes, no, on in "
                "quotes"
            )
        text = unicodedata.normalize("NFC", str(name))
        fault = class_fault(text)
        if fault:
            raise ValueError(f"the class name {text!r} {fault}")
        if text in names:
            raise ValueError(f"{text!r} is listed twice")
        names[text] = None
    return tuple(names)


ClassList = Annotated[Sequence[str | int], BeforeValidator(_class_names)]
Text = Annotated[str, Field(min_length=1)]


@dataclass_transform(frozen_default=True)
def source(cls: Class) -> Class:
    """Make the annotated attributes of a source's class its settings, as `plugin` does."""
    return checked(cls, frozen=True)


@source
class PrivateSource(ABC):
    """The settings that every source of private records has.

    Attributes:
        classes: the public class list: names or whole numbers; never derived from the data. Empty:
            labels are ignored. None: the records have no labels, and it is an error if they do.
        privacy_unit: what one unit of protection is: "record", "subfolder", or the name of a
            column.
        declared_size: the public number of records.
        declared_units: the public number of privacy units, where a unit has several records.
        ledger_file: where the data set's ledger is kept; None: beside the data.
        on_bad_record: "fail": an unreadable record is an error before the run; "skip": it casts no
            vote.
    """

    _: KW_ONLY
    kind: str
    classes: ClassList | None = None
    privacy_unit: Text = RECORD
    declared_size: Annotated[int, Field(strict=True, ge=1)] | None = None
    declared_units: Annotated[int, Field(strict=True, ge=1)] | None = None
    on_bad_record: OnBadRecord = "fail"
    ledger_file: Path | None = None

    modality: ClassVar[type[Samples]]
    withheld: ClassVar[tuple[str, ...]] = ("path", "ledger_file")
    """Settings that tell where the records lie: a run's shareable recipe withholds their values."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Settings that a generator or an embedding with a setting of the same name gets, too, if it
    does not give it."""
    binding: ClassVar[tuple[str, ...]] = ()
    """Those of them, where they are not empty, without which no generator may be asked."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The shape of each sample, as the modality has it."""

    @property
    def rule(self) -> str | None:
        """The rule that gives records of other shapes this `shape`, such as `crop`, or None."""
        return None

    @property
    def place(self) -> Path | RemotePath | None:
        """The records' file or folder, the setting `path`.

        It is None for built-in samples, beside which no ledger file can lie.
        """
        place: Path | RemotePath | None = getattr(self, "path", None)
        return place

    @abstractmethod
    def open(self) -> PrivateDataset:
        """List the records. Samples are read later, by `check` and `blocks`.

        Raises:
            PrivateDataError: they are not there, or not as declared.
        """

    def read(self, value: Any, name: str) -> Array:
        """Return the sample that a file, a cell or an object holds.

        Sources of folders, tables and memory call it for each record. A source that lists samples
        itself needs none.

        Raises:
            BadSample: there is none; the message calls it `name`.
        """
        raise NotImplementedError

    @abstractmethod
    def decoding(self) -> Callable[[], object]:
        """Return a function that decodes a made-up record that costs as much as any.

        The public clock leaves time for it.
        """

    @property
    def public_facts(self) -> list[str]:
        """Sentences for the certificate on what the recipe declares of the records.

        No noise protects these facts.
        """
        return []

    def remarks(self) -> list[Remark]:
        """Return sentences for the owner on the records read since the last call. Confidential.

        One that is an error says why these records, taken together, look like a mistake.
        """
        return []

    def bind(
        self,
        records: Records,
        keys: Iterable[tuple[object, object]],
        where: Where,
        *,
        is_labelled: bool = False,
        has_units: bool = False,
        declared_size: int | None = None,
    ) -> PrivateDataset:
        """Return the data set of records, for `open` to return.

        Where bad records are skipped, one without a usable label or unit is a bad record.

        Args:
            records: the samples.
            keys: each record's label and unit. An error in the place of one of them says why the
                record is bad.
            where: names a record's place.
            is_labelled: whether the keys hold labels. If they do not, all records are of one class.
            has_units: whether the keys hold units. If they do not, each record is its own unit.
            declared_size: the declared size to take if the recipe declares none.

        Raises:
            PrivateDataError: the records are not as declared.
        """
        # Labels are looked at only where the source has them: without them all are of one class.
        numbers = Keys(
            self.class_names if is_labelled else (),
            self.privacy_unit if has_units else None,
            where,
            self.skips,
        )
        for label, unit in keys:
            numbers.take(label, unit)
        labels, units = numbers.finish()
        if not is_labelled and len(self.labels) > 1 and len(labels):
            raise PrivateDataError(
                "`classes` lists several classes, but the private records have no labels. Give "
                "them labels (docs/data.md says where they stand), or remove `classes`."
            )
        return PrivateDataset(
            records,
            labels,
            units,
            classes=self.labels,
            modality=self.modality,
            shape=self.shape,
            unit_name=self.privacy_unit,
            declared_size=self.declared_size or declared_size,
            on_bad_record=self.on_bad_record,
            where=where,
            remarks=self.remarks,
            faults=numbers.faults,
        )

    @property
    def skips(self) -> bool:
        """True if a bad record casts no vote, and stops nothing."""
        return self.on_bad_record == "skip"

    @property
    def labels(self) -> tuple[str, ...]:
        """The public label names of the opened data set.

        They are the class list, or the one label of records without labels.
        """
        return self.class_names or (ONE_LABEL,)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The class list as text (validation has made it so)."""
        return None if self.classes is None else cast(tuple[str, ...], tuple(self.classes))


def read_source(
    settings: Mapping[str, Any],
    where: str,
    section: str = "",
) -> PrivateSource:
    """Make a source from plain settings. `kind` names its entry point.

    Messages begin with `where`; `section` stands before the keys that they name.

    Raises:
        RecipeError: a setting is missing or wrong.
    """
    if "kind" not in settings:
        raise RecipeError(
            f"{where}: '{'.'.join(filter(None, (section, 'kind')))}' is missing: where the records "
            "are."
        )
    cls = load("pe.sources", str(settings["kind"]))
    try:
        return cast(PrivateSource, TypeAdapter(cls).validate_python(settings))
    except ValidationError as error:
        raise RecipeError(sentence(error, cls, where, section)) from error
