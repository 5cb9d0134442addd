"""Recipes as text: YAML in which no key is given twice, and single values changed on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pe.errors import RecipeError


def read_yaml(path: Path) -> Any:
    """What a YAML file holds, as plain mappings, lists and scalars.

    Raises:
        RecipeError: it cannot be read, is no text, is no YAML, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not YAML: it is no text in UTF-8. Name a recipe.") from error
    return _parse(text, str(path))


def with_change(content: Any, change: str) -> Any:
    """`content` with one value changed.

    Args:
        content: what `read_yaml` returned; it stays as it is.
        change: `a.b=value`; the value is YAML.

    Raises:
        RecipeError: the change is not of that form.
    """
    path, equals, value = change.partition("=")
    if not equals or not path:
        raise RecipeError(f"--set {change} is not of the form a.b=value.")
    keys = path.split(".")
    content = dict(content) if isinstance(content, dict) else {}
    inner = content
    for key in keys[:-1]:
        below = inner.get(key)
        inner[key] = dict(below) if isinstance(below, dict) else {}
        inner = inner[key]
    inner[keys[-1]] = _parse(value, f"--set {change}")
    return content


def _parse(text: str, where: str) -> Any:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _refuse_twice(node, "", where, set())
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        why = " ".join(f"{error.problem or error.context}".split())
        raise RecipeError(f"{where} is not YAML{place}: {why}.") from error
    except (yaml.YAMLError, ValueError) as error:  # a character that YAML does not allow; a date that there is not
        raise RecipeError(f"{where} is not YAML: {str(error).splitlines()[0].rstrip('.')}.") from error


def _refuse_twice(node: Any, path: str, where: str, seen: set[int]) -> None:
    """Refuse a mapping that gives a key twice, of which YAML would silently take the last.

    Each node is looked at once, however often aliases name it.

    Raises:
        RecipeError: there is one; the key and its lines are named.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            _refuse_twice(inner, f"{path}.{index}".lstrip("."), where, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name, line = f"{path}.{key.value}".lstrip("."), key.start_mark.line + 1
        if (key.tag, key.value) in first:
            lines = f"lines {first[key.tag, key.value]} and {line}"
            raise RecipeError(f"{where}: {name} is given twice ({lines}): keep one of them.")
        first[key.tag, key.value] = line
        _refuse_twice(value, name, where, seen)


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 1e-5 as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
