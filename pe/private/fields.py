"""The settings that all sources share. Every one is public: it stands in the recipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from pe.data.images import Channels, Resize
from pe.errors import RecipeError
from pe.plugins.validation import sentence
from pe.private.dataset import OnBadImage
from pe.private.naming import ONE_LABEL

Class = TypeVar("Class", bound=type[Any])
RECORD, SUBFOLDER = "record", "subfolder"

Side = Annotated[int, Field(strict=True, ge=1, le=8192)]


def _class_names(value: Any) -> Any:
    """Names stay, whole numbers become text; pydantic refuses the rest."""
    if not isinstance(value, list | tuple):
        return value
    names: list[Any] = []
    for name in value:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(f"{name!r} is neither a name nor a whole number; put names like yes, no, on in quotes")
        names.append(unicodedata.normalize("NFC", str(name)).strip())
    if "" in names:
        raise ValueError("a class name is empty")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return tuple(names)


ClassList = Annotated[Sequence[str | int], BeforeValidator(_class_names)]
Text = Annotated[str, Field(min_length=1)]


@dataclass_transform(frozen_default=True)
def source(cls: Class) -> Class:
    """A frozen class whose fields pydantic checks; a wrong setting is a RecipeError, one sentence."""
    made = cast(Class, dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls))
    check = made.__init__

    @wraps(check)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            check(self, *args, **kwargs)
        except ValidationError as error:
            raise RecipeError(sentence(error, made, f"pe.{made.__name__}")) from error

    made.__init__ = checked
    return made


@source
class SourceFields:
    """What every source declares.

    Attributes:
        size: the images' height and width: one number for square images, or (height, width).
        classes: the public class list: names or whole numbers; never derived from the data. Empty:
            labels are ignored. None: the records have no labels, and it is an error if they do.
        privacy_unit: what one unit of protection is: "record", "subfolder", or the name of a column.
        declared_size: the public number of records.
        resize: how images of other sizes get the size: crop, fit or stretch; None: they are an error.
        channels: 3 (colour) or 1 (grey).
        largest_side: the largest height or width that an image has on disk, in pixels, where that is not `size`: the
            public clock leaves time to decode it.
        ledger_file: where the data set's ledger is kept; None: beside the data.
        on_bad_image: "fail": an unreadable image is an error before the run; "skip": it casts no vote.
    """

    _: KW_ONLY
    size: Side | tuple[Side, Side]
    classes: ClassList | None = None
    privacy_unit: Text = RECORD
    declared_size: Annotated[int, Field(strict=True, ge=1)] | None = None
    largest_side: Annotated[int, Field(strict=True, ge=1, le=2**15)] | None = None
    resize: Resize | None = None
    channels: Channels = 3
    on_bad_image: OnBadImage = "fail"
    ledger_file: Path | None = None

    @property
    def height_width(self) -> tuple[int, int]:
        """The size as (height, width)."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return *self.height_width, self.channels

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names of the opened data set, public: the class list, or the one label of unlabelled records."""
        return self.class_names or (ONE_LABEL,)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The class list as text (validation has made it so)."""
        return None if self.classes is None else cast(tuple[str, ...], tuple(self.classes))
