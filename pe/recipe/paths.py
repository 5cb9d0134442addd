"""Paths in a recipe: relative ones are taken from one folder, so that a recipe means the same wherever it is read from.

What is a path follows from the code that reads it: a source's field, or a plug-in's setting, that is annotated as
`Path` and not as text, too; words that it names besides stay. Text that may be a path or any name (of a model on a
hub, say) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BeforeValidator

from pe.data.remote import is_remote
from pe.errors import PluginError, RecipeError
from pe.plugins.registry import Group, load, plugins, settings_of
from pe.plugins.specs import part_among
from pe.plugins.validation import models_in
from pe.private.source import PrivateSource

WITHHELD = "withheld"
"""What a run's shareable recipe says in place of where the private records lie."""

_SECTIONS: dict[str, Group] = {"private": "pe.sources", "api": "pe.adapters", "embedding": "pe.embeddings"}


def with_full_paths(content: Any, folder: Path) -> Any:
    """A recipe's content in which relative paths are taken from `folder`, and `~` is the user's home.

    A section that nothing here reads, as its plug-in is unknown, stays as it is; so does WITHHELD.

    Args:
        content: plain mappings and scalars; `private` may be a source. It is not changed.
        folder: of the recipe's file, or the current one.

    Raises:
        RecipeError: `~` is followed by the name of no user.
    """
    if not isinstance(content, dict):
        return content
    found = dict(content)
    for section, group in _SECTIONS.items():
        value = found.get(section)
        if isinstance(value, PrivateSource):
            found[section] = _full_source(value, folder)
        elif isinstance(value, dict) and (model := _reader(group, value.get("kind"))) is not None:
            found[section] = _full(value, model, folder)
    return found


def _full_source(source: PrivateSource, folder: Path) -> PrivateSource:
    settings = {name: getattr(source, name) for name in _fields(type(source))}
    full = _full(settings, type(source), folder)
    changed = {name: value for name, value in full.items() if value != settings[name]}
    return replace(source, **changed) if changed else source


def _reader(group: Group, kind: Any) -> type[Any] | None:
    """The model or dataclass that reads a section of this kind; None: none here does."""
    if not isinstance(kind, str) or kind not in plugins(group):
        return None
    try:
        found: type[Any] = load(group, kind)
    except PluginError:  # whoever needs it says so
        return None
    return found if group == "pe.sources" else settings_of(found)


def _full(settings: Mapping[str, Any], model: type[Any], folder: Path) -> dict[str, Any]:
    fields = _fields(model)
    return {
        name: _full_value(value, (fields[name].annotation, *fields[name].metadata), folder) if name in fields else value
        for name, value in settings.items()
    }


def _full_value(value: Any, annotations: tuple[Any, ...], folder: Path) -> Any:
    if isinstance(value, str | Path):
        accepted = {one for annotation in annotations for one in _accepted(annotation)}
        return _full_path(value, folder) if Path in accepted and not accepted & {str, value} else value
    if isinstance(value, list | tuple):
        return type(value)(_full_value(one, annotations, folder) for one in value)
    if isinstance(value, dict):
        models = [model for annotation in annotations for model in models_in(annotation)]
        if part_among(models):
            model = _reader("pe.adapters", value.get("kind"))
            return value if model is None else _full(value, model, folder)
        kinds = [model for model in models if len(models) == 1 or _fields(model)["kind"].default == value.get("kind")]
        return _full(value, kinds[0], folder) if kinds else value
    return value


def _accepted(annotation: Any) -> Iterator[Any]:
    """All types and words among an annotation's alternatives; of a BeforeValidator those that it says it takes."""
    if isinstance(annotation, BeforeValidator):
        annotation = annotation.json_schema_input_type
    if isinstance(annotation, type | str):
        yield annotation
    for inner in get_args(annotation):
        yield from _accepted(inner)


def _full_path(path: str | Path, folder: Path) -> str | Path:
    """The path from `folder`, of the type given; an address stays.

    Only `..` at its beginning is worked out: after a link it leads on.
    """
    if str(path) == WITHHELD or is_remote(path):
        return path
    try:
        full = Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(f"The path '{path}' begins with the home of no user here: write it in full.") from error
    if not full.is_absolute():
        folder, parts = folder.resolve(), list(full.parts)
        while parts[:1] == [".."]:
            folder, parts = folder.parent, parts[1:]
        full = folder.joinpath(*parts)
    return type(path)(full)


def _fields(model: type[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(model, "__pydantic_fields__", {})
    return fields
