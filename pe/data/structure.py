"""The form that texts must have, as their owner declares it in public.

Texts are JSON objects of declared fields, or lines.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from pe.data.columns import Column, Columns
from pe.data.texts import plain

_FENCED = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.S)
_MOST_NAMED = 30  # values of a field that a model is told


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{pattern}' is not a regular expression ({error})") from error
    return pattern


class Structure(BaseModel):
    """The form of a text.

    Attributes:
        fields: the keys of a JSON object whose values are declared as a table's columns are.
        texts: the keys of the object whose values may be any text.
        line: a regular expression that matches each line of the text as a whole, instead of an
            object.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fields: dict[str, Column] = {}
    texts: tuple[str, ...] = ()
    line: Annotated[str, AfterValidator(_check_pattern)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.fields or self.texts) == (self.line is not None):
            raise ValueError("declare either `fields` and `texts` of a JSON object, or a `line`")
        twice = self.fields.keys() & set(self.texts)
        if twice:
            raise ValueError(
                f"'{min(twice)}' is in both `fields` and `texts`: remove it from one of them"
            )
        return self

    @cached_property
    def columns(self) -> Columns:
        """The fields as columns of a table."""
        return Columns(self.fields)

    def parse(self, text: str) -> dict[str, Any]:
        """Return the object that a text is, or {} if it is lines.

        Raises:
            ValueError: the text has not this form; the message says why, as the rest of a sentence.
        """
        if self.line is not None:
            for number, line in enumerate(text.splitlines(), 1):
                if not re.fullmatch(self.line, line):
                    raise ValueError(f"line {number} does not match the pattern")
            if not text.strip():
                raise ValueError("it has no line")
            return {}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("it is no JSON") from None
        if not isinstance(value, dict) or value.keys() != self.fields.keys() | set(self.texts):
            raise ValueError(
                f"it is no object with the keys {', '.join((*self.fields, *self.texts))}"
            )
        for key, column in self.fields.items():
            if not (column.declares(value[key]) or (value[key] is None and column.missing)):
                raise ValueError(f"its '{key}' is none that is declared")
            value[key] = column.value(column.code(value[key]))  # "3" and 3.0 as 3
        for key in self.texts:
            if not isinstance(value[key], str):
                raise ValueError(f"its '{key}' is no text")
        return value

    def read(self, text: str) -> str:
        """Return a text in this form: without a code block around it, an object on one line.

        Raise as `parse`.
        """
        inner = _FENCED.sub(r"\1", text)
        value = self.parse(inner)
        return inner if self.line is not None else plain(json.dumps(value, ensure_ascii=False))

    def holds(self, text: str) -> bool:
        """Return True if a text has this form."""
        try:
            self.parse(text)
        except ValueError:
            return False
        return True

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an object as they stand in a text: `"key":`."""
        return tuple(
            f"{json.dumps(key, ensure_ascii=False)}:" for key in (*self.fields, *self.texts)
        )

    @property
    def request(self) -> str:
        """The words that ask a model for this form, beside its prompt."""
        if self.line is not None:
            return (
                f"Answer with lines alone, each of which matches the regular expression {self.line}"
            )
        keys = [f"{key} ({_words(column)})" for key, column in self.fields.items()]
        keys += [f"{key} (text)" for key in self.texts]
        return f"Answer with a JSON object alone, with the keys {'; '.join(keys)}."


def _words(column: Column) -> str:
    """Say what a field may hold."""
    if column.min is not None:
        ends = f"{column.value(0)} to {column.value(column.size - 1)}"
        words = f"{column.kind} from {ends} in steps of {column.unit:g}"
    elif column.kind == "boolean":
        words = "true or false"
    else:
        values = [str(column.value(code)) for code in range(min(column.size, _MOST_NAMED))]
        words = f"one of {', '.join(values)}"
        words += " and others of their kind" * (column.size > _MOST_NAMED)
    return words + " or null" * column.missing
