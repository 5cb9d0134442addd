"""Settings of generators of texts: public prompts, wordings, and the form of the samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from adapters.prompts import Texts, TextsByLabel
from pe.data.samples import EXAMPLES
from pe.data.structure import Structure
from pe.data.texts import LONGEST
from pe.errors import RecipeError, nearest_name
from pe.plugins.settings import Count, Settings

Variation = Literal["fill_in", "paraphrase"]

BLANK = "_"
"""Stands in place of a word that the model is to fill in."""

PROMPTED = "  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label\n"
LONGEST_LINE = "  longest: {longest}\t# bytes: of a longer text the beginning counts\n"
WRITTEN = f"""\
{PROMPTED}  variation: fill_in\t# the degree is the share of words to be replaced; or paraphrase: told in words
  max_tokens: 512\t# of one answer
{LONGEST_LINE}"""  # noqa: E501
"""Lines that starting recipes share. See `Generator.starter`."""

_ALONE = "Answer with the text alone."
FILL_IN: dict[float, Texts] = {
    1.0: f"Some words of the text below are missing; each gap is written as {BLANK}. Put words "
    f"that fit into all gaps, "
    f"keep all other words, and let the whole have about {{words}} words. {_ALONE}"
}
PARAPHRASE: dict[float, Texts] = {
    0.2: f"Copy the text below with a few words replaced by others that mean the same. {_ALONE}",
    0.4: f"Say what the text below says in other words: same content, same tone, new sentences. "
    f"{_ALONE}",
    0.6: f"Write a variation of the text below: same subject and tone, but other details in "
    f"another order. {_ALONE}",
    0.8: f"Write a text on a subject close to that of the text below, in its style, with other "
    f"facts. {_ALONE}",
    1.0: f"Write a new text of the same kind as the one below, otherwise unlike it. {_ALONE}",
}
EXPANSION = (
    f"Texts of one kind follow. Write another one of this kind, with details of its own. "
    f"{_ALONE}\n\n{{examples}}"
)
WORDINGS: Mapping[Variation, dict[float, Texts]] = {"fill_in": FILL_IN, "paraphrase": PARAPHRASE}

_NAME = re.compile(r"\{([a-zA-Z]\w*)\}")
_GIVEN = ("label", "prompt", "text", "words")


class Drawn(Settings):
    """Public prompts, and the form of the samples.

    Attributes:
        prompts: a text, a list to draw from, or either for each label. `{label}` and the names of
            `attributes` are replaced in it.
        attributes: public lists by name, such as topic, style or length. For every new sample one
            entry of each is drawn, put in its prompt in place of `{topic}`, and kept with the
            sample. Or a list for each label.
        longest: most bytes (UTF-8) of a text; a longer text is cut off there.
    """

    prompts: TextsByLabel
    attributes: dict[str, TextsByLabel] | None = None
    longest: Count = LONGEST


class Written(Drawn):
    """Settings of a language model that writes and varies texts.

    Attributes:
        system: the system prompt. None: there is none.
        variation: fill_in: the degree is the share of a text's words that are replaced by blanks,
            which the model fills in (Aug-PE). paraphrase: the degree is told in words.
        wordings: degree → text, or several to draw from. A degree uses the first entry at or above
            it. In the text, `{text}` becomes the parent with its blanks, `{words}` the length to
            write, and `{prompt}`, `{label}` and the names of `attributes` become those of the
            parent. Without `{text}` the parent follows after an empty line. None: the shipped
            texts.
        expansion: the text by which `pe extend --examples` asks for one more. In it `{examples}`
            becomes texts of the label, and `{prompt}`, `{label}` and the names of `attributes`
            become those of the parent.
        length_sigma: the length asked for in `{words}` is the parent's plus a normal draw with the
            standard deviation degree × length_sigma, in words.
        least_words: the length asked for in `{words}` is at least this.
        max_tokens: most tokens of one answer.
        temperature: temperature of sampling. None: the model's default.
        top_p: sample among the likeliest tokens up to this joint share. None: the model's default.
        structure: the form that the model is asked to give each text. A text of another form counts
            as failed, and is asked for again. By default the private texts' form.
        cut: keep a text that `max_tokens` or `longest` cut off. If false, it counts as failed, and
            is asked for again.
    """

    system: str | None = None
    variation: Variation = "fill_in"
    wordings: dict[float, Texts] | None = None
    expansion: str = EXPANSION
    length_sigma: Annotated[float, Field(ge=0)] = 20.0
    least_words: Count = 10
    max_tokens: Count = 512
    temperature: Annotated[float, Field(gt=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    structure: Structure | None = None
    cut: bool = True

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = {*(self.attributes or {}), *_GIVEN}
        of_parents = {"prompt", "text", "words"}
        for where, setting, names_here in (
            ("prompts", self.prompts, names - of_parents),
            ("wordings", self.wordings or {}, names),
            ("expansion", self.expansion, names - of_parents | {"prompt", EXAMPLES}),
        ):
            for name in sorted(
                {name for text in _all_texts(setting) for name in _NAME.findall(text)} - names_here
            ):
                raise RecipeError(
                    f"{where} has {{{name}}}, which nothing replaces; "
                    f"{nearest_name(name, names_here)}"
                )
        return self


def fill_names(text: str, values: Mapping[str, str]) -> str:
    """Replace names in braces by their values in one pass, so that no value is read as a name.

    Other names stay.
    """
    return _NAME.sub(lambda match: values.get(match[1], match[0]), text)


def _all_texts(setting: object) -> list[str]:
    """Return the texts of a setting: one, a list, or either for each label or degree."""
    if isinstance(setting, Mapping):
        return [text for each in setting.values() for text in _all_texts(each)]
    return [setting] if isinstance(setting, str) else [str(each) for each in setting]  # type: ignore[attr-defined]
