"""Settings as pydantic models, and their faults in one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pe.errors import RecipeError, nearest_name


def _check_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise RecipeError(
            f"device is '{name}': it must be auto, cpu, mps, cuda, or a GPU such as cuda:1."
        )
    return name


Device = Annotated[str, AfterValidator(_check_device)]
Devices = Device | Annotated[list[Device], Field(min_length=1)]
"""The setting `device` of a model that runs on one device, or of one that several GPUs share."""


Count = Annotated[int, Field(ge=1)]
Model = TypeVar("Model")

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_KINDS = {
    "bool": "true or false",
    "dataclass": "a mapping of keys to values",
    "dict": "a mapping of keys to values",
    "enum": "{expected}",
    "float": "a number",
    "int": "a whole number",
    "is_instance": "a mapping of keys to values, or of the class {class}",
    "list": "a list",
    "literal_error": "{expected}",
    "model": "a mapping of keys to values",
    "model_attributes": "a mapping of keys to values",
    "path": "a path",
    "string": "text (put a number, a date, yes or no in quotes)",
    "tuple": "a list",
}
"""The right kind of value in words, by pydantic's type of fault without its ending (`_ENDINGS`)."""
_ENDINGS = re.compile(r"_(type|parsing|from_float|of)$")
_RANGES = {
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "text of {min_length} or more characters",
    "too_long": "a list of at most {max_length} entries",
    "too_short": "a list of at least {min_length} entries",
}
"""The allowed values in words, by pydantic's type of fault, where a value is of the right kind but
out of range."""
_SHOWN = 80


class Settings(BaseModel):
    """A section of the recipe, or a plug-in's settings.

    Unknown keys are refused, and values cannot be changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_settings(model: type[Model], settings: object, where: str) -> Model:
    """Return the settings, a mapping, as a model or a pydantic dataclass.

    RecipeError says what is wrong with them, and begins with `where`.
    """
    try:
        return TypeAdapter(model).validate_python(settings)
    except ValidationError as error:
        raise RecipeError(sentence(error, model, where)) from error


def sentence(error: ValidationError, model: type[Any], where: str, section: str = "") -> str:
    """Return one sentence on the first fault: where, what, and the nearest valid key.

    An unknown key comes first.

    `section` is the name to put before the keys if the model describes a section; empty if it
    describes the whole.
    """
    faults = error.errors()
    # A misspelt key is the cause where a key is missing, too.
    unknown = next((fault for fault in faults if fault["type"] in _UNKNOWN), None)
    fault = unknown or _innermost(faults)
    before = [section] if section else []
    keys, holder = _walk(model, fault["loc"])
    if fault["type"] in _UNKNOWN:
        name = str(fault["loc"][-1])
        return (
            f"{where}: unknown key '{'.'.join([*before, *keys, name])}'; "
            f"{nearest_name(name, fields_of(holder))}"
        )
    key = ".".join([*before, *keys])
    if fault["type"].startswith("missing"):
        field = fields_of(holder).get(keys[-1])
        meaning = f": {field.description}" if field and field.description else ""
        return f"{where}: '{key}' is missing{meaning}."
    if fault["type"] == "union_tag_not_found":
        return f"{where}: '{key}.kind' is missing."
    if fault["type"] == "union_tag_invalid":
        tag = fault["ctx"]["tag"]
        tags = re.findall("'([^']+)'", fault["ctx"]["expected_tags"])
        return f"{where}: {key}.kind '{tag}' is unknown; {nearest_name(tag, tags)}"
    right = _right([other for other in faults if _walk(model, other["loc"])[0] == keys])
    if right:
        value = "empty: declare it" if fault["input"] is None else _plain(fault["input"])
        return f"{where}: {key or 'it'} must be {right}, not {value}."
    message = fault["msg"].removeprefix("Value error, ")
    value = "" if isinstance(fault["input"], dict) else f" (it is {_plain(fault['input'])})"
    return f"{where}: {key + ': ' if key else ''}{message[:1].lower()}{message[1:]}{value}."


def fields_of(model: Any) -> dict[str, FieldInfo]:
    """Return the fields of a model or pydantic dataclass, and none of anything else."""
    fields: dict[str, FieldInfo] = getattr(model, "__pydantic_fields__", {})
    # A subclass may fix a setting of its base: nobody gives it then.
    return {name: one for name, one in fields.items() if one.init is not False}


def models_in(annotation: Any) -> list[type[Any]]:
    """The models and pydantic dataclasses among the alternatives of an annotation."""
    if isinstance(annotation, type) and fields_of(annotation):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def _innermost(faults: list[ErrorDetails]) -> ErrorDetails:
    """Return the first fault.

    If a value may be of several kinds, it is the fault under the kind that fits best.
    """
    first = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    return max(first, key=lambda fault: (len(fault["loc"]), fault["type"] in _RANGES))


def _right(faults: list[ErrorDetails]) -> str:
    """The range or the kinds of value, in words, that would be right in place of these faults.

    Empty if not known.
    """
    ranges = [fault for fault in faults if fault["type"] in _RANGES]
    phrases = _RANGES if ranges else _KINDS
    alternatives: dict[str, None] = {}
    for fault in ranges or faults:
        name = _ENDINGS.sub("", fault["type"])
        if name not in phrases:
            return ""
        words = {
            key: value if isinstance(value, str) else _plain(value)
            for key, value in fault.get("ctx", {}).items()
        }
        alternatives[phrases[name].format_map(words)] = None
    return " or ".join(alternatives)


def _plain(value: object) -> str:
    """Show a value as YAML has it, with large numbers readable and long values cut."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) or (
        isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    ):
        text = f"{int(value):,}"
    else:
        text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _walk(model: type[Any], location: tuple[int | str, ...]) -> tuple[list[str], type[Any]]:
    """Return the recipe's keys on the way to a fault, and the last section.

    Pydantic's names of union branches are left out.
    """
    keys: list[str] = []
    branches: dict[Any, type[Any]] = {}
    is_key = False  # of a mapping that holds models
    for part in location:
        if is_key or isinstance(part, int):
            keys.append(str(part))
            is_key = False
        elif part in fields_of(model):
            keys.append(str(part))
            annotation = fields_of(model)[str(part)].annotation
            sections = models_in(annotation)
            is_key = get_origin(annotation) in (dict, Mapping)
            branches = {
                fields_of(section)["kind"].default: section
                for section in sections
                if len(sections) > 1
            }
            model = sections[0] if len(sections) == 1 else model
        elif part in branches:
            model = branches[part]
    return keys, model
