"""Settings as models, and what pydantic finds in them as one sentence: where, what, and the nearest valid key."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from pe.errors import RecipeError, nearest_name

Count = Annotated[int, Field(ge=1)]
Model = TypeVar("Model", bound=BaseModel)

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class Settings(BaseModel):
    """A section of the recipe, or a plug-in's settings: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_settings(model: type[Model], settings: object, where: str) -> Model:
    """`settings`, a mapping, as `model` wants them.

    Raises:
        RecipeError: a setting is unknown, missing, of the wrong type or out of range; the message begins with `where`.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise RecipeError(sentence(error, model, where)) from error


def sentence(error: ValidationError, model: type[Any], where: str, section: str = "") -> str:
    """One sentence on the first fault, an unknown key before all others: where, what, and the nearest valid key.

    Args:
        error: with the fault.
        model: that found it.
        where: begins the sentence.
        section: that the model describes, to stand before its keys; empty: it is the whole.
    """
    fault = min(error.errors(), key=lambda fault: fault["type"] not in _UNKNOWN)
    before, (keys, holder) = [section] if section else [], _walk(model, fault["loc"])
    if fault["type"] in _UNKNOWN:
        name = str(fault["loc"][-1])
        return f"{where}: unknown key '{'.'.join([*before, *keys, name])}'; {nearest_name(name, _fields(holder))}"
    key = ".".join([*before, *keys])
    if fault["type"].startswith("missing"):
        field = _fields(holder).get(keys[-1])
        meaning = f": {field.description}" if field and field.description else ""
        return f"{where}: '{key}' is missing{meaning}."
    message = fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
    got = "" if isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
    return f"{where}: {key + ': ' if key else ''}{message[:1].lower()}{message[1:]}{got}."


def _walk(model: type[Any], location: tuple[int | str, ...]) -> tuple[list[str], type[Any]]:
    """The recipe's keys on the way to a fault (pydantic's names of union branches left out), and the last section."""
    keys: list[str] = []
    branches: dict[Any, type[Any]] = {}
    for part in location:
        if part in _fields(model):
            keys.append(str(part))
            sections = models_in(_fields(model)[str(part)].annotation)
            branches = {_fields(section)["kind"].default: section for section in sections if len(sections) > 1}
            model = sections[0] if len(sections) == 1 else model
        elif part in branches:
            model = branches[part]
        elif isinstance(part, int):
            keys.append(str(part))
    return keys, model


def _fields(section: type[Any]) -> dict[str, FieldInfo]:
    """The fields of a model or of a pydantic dataclass."""
    fields: dict[str, FieldInfo] = getattr(section, "__pydantic_fields__", {})
    return fields


def models_in(annotation: Any) -> list[type[Any]]:
    """The models and pydantic dataclasses among the alternatives of an annotation."""
    if isinstance(annotation, type) and _fields(annotation):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]
