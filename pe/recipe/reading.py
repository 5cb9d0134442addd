"""Recipes as text: YAML, the files that it includes, its paths, and changes to its values.

No key may be given twice, and a value may stand in another file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BeforeValidator, TypeAdapter

from pe.data.bounded import MOST, read_bytes
from pe.data.remote import is_remote
from pe.errors import PluginError, RecipeError
from pe.plugins.registry import Group, load, plugins
from pe.plugins.settings import fields_of, models_in
from pe.plugins.specs import PluginSpec, part_among, settings_of
from pe.private.source import PrivateSource

INCLUDE = "!include"
"""The tag of a value that is a file's content, as in `prompts: !include prompts.txt`."""
_LARGEST = 2**22  # bytes of a YAML file, which is parsed slowly
_MOST = 1_000_000  # values, by which a recipe's aliases may multiply what it holds


def read_yaml(path: Path) -> Any:
    """The content of a YAML file and of the files that it includes, as plain values."""
    return _parse(_text_of(path, "YAML", " Name a recipe."), str(path), path.parent)


def with_change(content: Any, change: str) -> Any:
    """A copy of `content` with one value changed.

    `change` is `a.b=value`, or `a.0.b=value` in a list; the value is YAML, and may include files of
    the current folder.
    """
    path, equals, value = change.partition("=")
    if not equals or not path:
        raise RecipeError(f"--set {change} is not of the form a.b=value.")
    return _with_change(content, path.split("."), _parse(value, f"--set {change}", Path()), change)


def _with_change(content: Any, keys: list[str], value: Any, change: str) -> Any:
    """A copy of `content` with `value` at `keys`.

    A mapping replaces any value on the way that cannot hold a key.
    """
    if not keys:
        return value
    first, *others = keys
    if isinstance(content, list) and first.isdigit():
        if int(first) >= len(content):
            raise RecipeError(
                f"--set {change}: the list has {len(content)} entries, counted from 0."
            )
        entries = list(content)
        entries[int(first)] = _with_change(entries[int(first)], others, value, change)
        return entries
    inner = dict(content) if isinstance(content, dict) else {}
    return inner | {first: _with_change(inner.get(first), others, value, change)}


def _parse(text: str, where: str, folder: Path | None) -> Any:
    """Parse YAML, which may include files of `folder`. If that is None, it may include none."""
    try:
        loader = _Loader(text)
        loader.folder = folder
        loader.where = where
        try:
            node = loader.get_single_node()
            if _count(node, {}) > _MOST:
                raise RecipeError(
                    f"{where}: its aliases stand for more than {_MOST:,} values: write fewer of "
                    "them."
                )
            _refuse_twice(node, "", where, set())
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        why = " ".join(f"{error.problem or error.context}".split())
        raise RecipeError(f"{where} is not YAML{place}: {why}.") from error
    except RecursionError as error:
        raise RecipeError(
            f"{where} is nested too deep, or within itself: write it flatter."
        ) from error
    # A character that YAML does not allow, or a date that there is not.
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(
            f"{where} is not YAML: {str(error).splitlines()[0].rstrip('.')}."
        ) from error


def _count(node: Any, counts: dict[int, int]) -> int:
    """Count the values of a node, with every alias replaced by what it names.

    `counts` holds earlier results.
    """
    if id(node) not in counts:
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = chain.from_iterable(inner)
        counts[id(node)] = 1 + sum(_count(one, counts) for one in inner)
    return counts[id(node)]


def _refuse_twice(node: Any, path: str, where: str, nodes: set[int]) -> None:
    """Refuse a mapping that gives a key twice: YAML would silently take the last value."""
    if id(node) in nodes:  # aliases may name it
        return
    nodes.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            _refuse_twice(inner, f"{path}.{index}".lstrip("."), where, nodes)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = f"{path}.{key.value}".lstrip(".")
        line = key.start_mark.line + 1
        if (key.tag, key.value) in first:
            lines = f"lines {first[key.tag, key.value]} and {line}"
            raise RecipeError(f"{where}: {name} is given twice ({lines}): keep one of them.")
        first[key.tag, key.value] = line
        _refuse_twice(value, name, where, nodes)


class _Loader(yaml.SafeLoader):
    """A loader of safe YAML that includes files, and reads 1e-5 as a number, as YAML 1.2 does."""

    folder: Path | None = None
    where = ""

    def include(self, node: Any) -> Any:
        """The content of the file that a node names."""
        name = str(self.construct_scalar(node))
        if self.folder is None:
            raise RecipeError(
                f"{INCLUDE} {name}: a file that is included includes no other: name both in the "
                "recipe."
            )
        path = self.folder / name
        folder = self.folder.resolve()
        # Somebody else's recipe must not read what it likes.
        if not path.resolve().is_relative_to(folder):
            raise RecipeError(
                f"{INCLUDE} {name}: it leads out of {folder}: put the file there, or in a folder "
                "below."
            )
        if path.is_fifo():
            raise RecipeError(f"{INCLUDE} {name}: it is a pipe: name a file.")
        if path.suffix in (".yaml", ".yml"):
            return _parse(_text_of(path, "YAML"), str(path), None)
        if path.suffix == ".json":
            return _parse_json(_text_of(path, "JSON"), str(path))
        if path.suffix != ".txt":
            raise RecipeError(
                f"{INCLUDE} {name}: name a .txt file, for a list of its lines, or a .yaml or .json "
                "file."
            )
        return [
            line.strip() for line in _text_of(path, "a list of lines").splitlines() if line.strip()
        ]

    def whole(self, node: Any) -> int:
        """A whole number.

        Raises:
            RecipeError: YAML reads another number than is written, such as 8 for 010, or 90 for
                1:30.
        """
        text = str(self.construct_scalar(node))
        number = int(self.construct_yaml_int(node))
        if text.replace("_", "").lstrip("+-") != str(abs(number)):
            raise RecipeError(
                f"{self.where}, line {node.start_mark.line + 1}: YAML reads {text} as {number}: "
                "put numbers with leading zeros, and other names, in quotes."
            )
        return number


def _text_of(path: Path, form: str, remedy: str = "") -> str:
    try:
        return read_bytes(path, _LARGEST if form == "YAML" else MOST).decode("utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not {form}: it is no text in UTF-8.{remedy}") from error


def _parse_json(text: str, where: str) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        twice = counts - Counter({*counts})
        if twice:
            raise RecipeError(f"{where}: '{min(twice)}' is given twice: keep one of them.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        raise RecipeError(
            f"{where} is not JSON in line {error.lineno}, column {error.colno}: "
            f"{error.msg.lower()}."
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{where} is nested too deep: write it flatter.") from error


_Loader.add_constructor(INCLUDE, _Loader.include)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole)

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


# Paths in a recipe: relative ones are taken from one folder, so that a recipe means the same
# wherever it is read from.
#
# A path is a source's field, or a plug-in's setting, whose annotation has `Path` and not `str`; a
# word that the annotation also allows (a Literal) stays as it is, and so does text that may be a
# path or a name (a hub's model, say).

WITHHELD = "withheld"
"""Stands in a run's shareable recipe for the place of the private records."""

_PLAIN = TypeAdapter(Any)
_SECTIONS: dict[str, Group] = {
    "private": "pe.sources",
    "api": "pe.adapters",
    "embedding": "pe.embeddings",
}


def with_full_paths(content: Any, folder: Path) -> Any:
    """A recipe's content in which relative paths are taken from `folder`.

    `~` is the user's home.

    A section whose plug-in is unknown here stays unchanged, and so does WITHHELD.
    """
    if not isinstance(content, dict):
        return content
    full = dict(content)
    for section, group in _SECTIONS.items():
        value = full.get(section)
        if isinstance(value, PrivateSource):
            settings = {name: getattr(value, name) for name in fields_of(value)}
            paths = _full(settings, type(value), folder)
            changes = {key: new for key, new in paths.items() if new != settings[key]}
            full[section] = replace(value, **changes) if changes else value
        elif isinstance(value, dict):
            model = _reader(group, value.get("kind"))
            full[section] = value if model is None else _full(value, model, folder)
    return full


def with_shared(content: dict[str, Any], private: PrivateSource) -> dict[str, Any]:
    """A recipe's content in which generator and embedding have the private source's settings.

    These are the settings that the source shares with them.

    One has such a setting if it takes one of that name, and gives none.

    Raises:
        RecipeError: the generator takes none of a name by which it must obey the source.
    """
    full = dict(content)
    shared = {key: getattr(private, key) for key in private.shared}
    for section, group in _SECTIONS.items():
        value: Any = full.get(section)
        is_spec = isinstance(value, PluginSpec)
        settings = {"kind": value.kind, **value.settings} if is_spec else value
        if section == "private" or not shared or not isinstance(settings, dict):
            continue
        fields = fields_of(_reader(group, settings.get("kind")))
        # A generator that cannot be told the source's rules might break them unnoticed.
        lacking = [key for key in private.binding if shared[key] and key not in fields]
        if lacking and section == "api":
            raise RecipeError(
                f"The generator '{settings.get('kind')}' does not obey `private.{lacking[0]}`, so "
                "its samples might break them. Remove them, or use another generator."
            )
        more = {
            key: _PLAIN.dump_python(shared[key], mode="json", exclude_defaults=True)
            for key in shared
        }
        own = {key: one for key, one in more.items() if key in fields and key not in settings}
        full[section] = value.model_copy(update=own) if is_spec else settings | own
    return full


def _reader(group: Group, kind: Any) -> type[Any] | None:
    """The model or dataclass that reads a section of this kind.

    There is none if no plug-in of this name can be loaded.
    """
    if not isinstance(kind, str) or kind not in plugins(group):
        return None
    try:
        return settings_of(load(group, kind))
    except PluginError:  # whoever needs it says so
        return None


def _full(settings: Mapping[str, Any], model: type[Any], folder: Path) -> dict[str, Any]:
    fields = fields_of(model)
    return {
        name: _full_value(value, (fields[name].annotation, *fields[name].metadata), folder)
        if name in fields
        else value
        for name, value in settings.items()
    }


def _full_value(value: Any, annotations: tuple[Any, ...], folder: Path) -> Any:
    if isinstance(value, str | Path):
        types = {one for annotation in annotations for one in _types_of(annotation)}
        return _full_path(value, folder) if Path in types and not types & {str, value} else value
    if isinstance(value, list | tuple):
        return type(value)(_full_value(one, annotations, folder) for one in value)
    if isinstance(value, dict):
        models = [model for annotation in annotations for model in models_in(annotation)]
        if part_among(models) or PluginSpec in models:
            group: Group = "pe.adapters" if part_among(models) else "pe.embeddings"
            model = _reader(group, value.get("kind"))
            return value if model is None else _full(value, model, folder)
        kind = value.get("kind")
        for one in models:
            if len(models) == 1 or fields_of(one)["kind"].default == kind:
                return _full(value, one, folder)
    return value


def _types_of(annotation: Any) -> Iterator[Any]:
    """All types and words among an annotation's alternatives.

    Those of a BeforeValidator stand in its `json_schema_input_type`.
    """
    if isinstance(annotation, BeforeValidator):
        annotation = annotation.json_schema_input_type
    if isinstance(annotation, type | str):
        yield annotation
    for inner in get_args(annotation):
        yield from _types_of(inner)


def _full_path(path: str | Path, folder: Path) -> str | Path:
    """The full path, of the type of `path`, taken from `folder` if it is relative.

    A remote address is unchanged.
    """
    if str(path) == WITHHELD or is_remote(path):
        return path
    try:
        full = Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(
            f"The path '{path}' begins with the home of no user here: write it in full."
        ) from error
    if not full.is_absolute():
        folder = folder.resolve()
        parts = list(full.parts)
        while parts[:1] == [".."]:  # later ones stay: after a link it leads on
            folder = folder.parent
            parts = parts[1:]
        full = folder.joinpath(*parts)
    return type(path)(full)
