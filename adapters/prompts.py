"""Public prompts and classes of each label, and the wordings of a degree of variation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.arrays import Float64Array, Int64Array
from pe.data.samples import Conditions, uniforms
from pe.errors import RecipeError, nearest_name
from pe.plugins.protocols import Seeds

PROMPT = "prompt"
"""Name of the condition that holds a sample's prompt."""

Texts = str | list[str]
TextsByLabel = Texts | dict[str, Texts]
TextByLabel = str | dict[str | int, str]
Shares = Mapping[str, Float64Array]
"""Label → running sums of the shares of its prompts, the last of which is infinite."""

LADDER: dict[float, Texts] = {
    0.2: "Make an almost identical image of the same subject; change only the finest details.",
    0.4: "Make a close variation of this image: same subject and composition, small differences in "
    "detail.",
    0.6: "Make a variation of this image: same kind of subject, with a different pose, framing and "
    "background.",
    0.8: "Make a loose variation of this image: keep the kind of subject and the style, change the "
    "rest.",
    1.0: "Make a new image of the same kind of subject as this one, otherwise unlike it.",
}
"""The shipped wordings: a degree takes the text of the first entry at or above it. A recipe can
replace entries."""


@dataclass(frozen=True)
class Prompts:
    """The prompts that each label draws from."""

    # one list for all labels, or label → list; `{label}` in a text becomes the label's name
    texts: Mapping[str, Sequence[str]] | Sequence[str]
    name: str = "prompts"  # the setting's name, for messages

    @classmethod
    def of(cls, setting: Texts | Mapping[str, Texts], name: str = "prompts") -> Prompts:
        """Read the recipe's setting `name`: a text, a list, or either per label.

        Raise RecipeError if it is empty.
        """
        if not isinstance(setting, Mapping):
            return cls(_list_of(setting, name), name)
        if not setting:
            raise RecipeError(
                f"{name} is empty. Give a text, a list of texts, or either for each label."
            )
        return cls(
            {str(label): _list_of(texts, f"{name}.{label}") for label, texts in setting.items()},
            name,
        )

    @classmethod
    def negative(cls, setting: TextByLabel) -> Prompts:
        """Read the recipe's `negative_prompt`: a text, or one for each label.

        An empty text says nothing.
        """
        if isinstance(setting, str):
            return cls([setting], "negative_prompt")
        texts = {str(label): [text] for label, text in setting.items()}
        return cls(texts, "negative_prompt")

    def first_of(self, labels: Sequence[str]) -> list[str]:
        """Return the first text of each label.

        Raise RecipeError if a label has none.
        """
        return [self.of_label(label)[0] for label in labels]

    @property
    def by_label(self) -> bool:
        """True if the prompts tell a sample's label.

        They do if they are given by label, or if each holds `{label}`.
        """
        return isinstance(self.texts, Mapping) or all("{label}" in text for text in self.texts)

    def draw(self, labels: Sequence[str], seeds: Seeds, shares: Shares | None = None) -> Conditions:
        """Draw a prompt for each item by its seed alone, evenly or by `shares`.

        Raise RecipeError if a label has none.
        """
        numbers = uniforms(seeds, "share")
        prompts = []
        for label, seed, number in zip(labels, seeds.tolist(), numbers, strict=True):
            texts = self.of_label(label)
            place = (seed >> 16) % len(texts)
            if shares is not None:
                place = int(shares[label].searchsorted(number, "right"))
            prompts.append(texts[place].replace("{label}", label))
        return Conditions({PROMPT: np.array(prompts, dtype=np.str_)})

    def check(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt."""
        for label in labels:
            self.of_label(label)

    def of_label(self, label: str) -> Sequence[str]:
        """Return the prompts that a label draws from.

        Raise RecipeError if there are none.
        """
        if not isinstance(self.texts, Mapping):
            return self.texts
        if label not in self.texts:
            labels = ", ".join(f"'{name}'" for name in self.texts)
            raise RecipeError(
                f"{self.name}: there is none for the label '{label}' (there are some for {labels})."
            )
        return self.texts[label]


@dataclass(frozen=True)
class Ladder:
    """Wordings of the degree of a variation, a field that takes the degree as a number, or both."""

    # (degree, texts), ascending; a degree is put in a text of the first rung at or above it, in
    # which `{prompt}` becomes the sample's own prompt. Empty: degrees are not put in words
    rungs: tuple[tuple[float, tuple[str, ...]], ...] = ()
    # the field of a request that takes the degree as a number; None: no number is sent
    field: str | None = None
    exact: bool = False  # true if the generator is known to heed the field

    def __post_init__(self) -> None:
        if self.exact and self.field is None:
            raise RecipeError(
                "`degree_exact: true` says that the server heeds `degree_field`. Name that field."
            )

    @classmethod
    def of(
        cls, wordings: Mapping[float, Texts] | None, field: str | None = None, exact: bool = False
    ) -> Ladder:
        """Read the recipe's `wordings`: degree → text, or several to choose from.

        None stands for `LADDER`, or for no wordings if the field is exact.

        Raises:
            RecipeError: a degree lies outside (0, 1], no degree is 1, a text is empty, or an exact
                field has no name.
        """
        if wordings is None and exact:
            return cls((), field, exact)
        setting = LADDER if wordings is None else wordings
        degrees = sorted(setting)
        if not degrees or degrees[0] <= 0 or degrees[-1] != 1:
            raise RecipeError(
                f"`wordings` has texts up to the degrees {degrees}. They must lie above 0, and the "
                "last must be 1."
            )
        rungs = [(each, tuple(_list_of(setting[each], f"wordings.{each}"))) for each in degrees]
        return cls(tuple(rungs), field, exact)

    @property
    def degree(self) -> Literal["exact", "wording", "none"]:
        """Obedience to a degree, as in `Capabilities`.

        A field that is not `exact` counts for nothing.
        """
        return "exact" if self.exact else "wording" if self.rungs else "none"

    def tell(self, degree: float, prompt: str, seed: int) -> tuple[str, dict[str, float]]:
        """Return the prompt for a variation of a sample, and the field with the degree, if any.

        `prompt` is the sample's own.
        """
        words = self.word(degree, prompt, seed) if self.rungs else prompt
        return words, {self.field: degree} if self.field else {}

    def word(self, degree: float, prompt: str = "", seed: int = 0) -> str:
        """Return the text for `degree`, in [0, 1]. The seed chooses among several texts."""
        texts = next(texts for top, texts in self.rungs if degree <= top)
        return texts[seed % len(texts)].replace("{prompt}", prompt)

    def describe(self, degree: float) -> str:
        """Describe `degree` for `pe plan`."""
        words = [f"worded as “{self.word(degree, '<the prompt>')}”"] if self.rungs else []
        doubt = "" if self.exact else ", which the server may ignore"
        number = [f"sent as {self.field} = {degree:g}{doubt}"] if self.field else []
        return ", and ".join(words + number) or "not told to the endpoint"


def prompts_of(conditions: Conditions, count: int) -> npt.NDArray[np.str_]:
    """Return the prompts that samples carry, (count,). Empty texts where they carry none."""
    if PROMPT not in conditions:
        return np.array([""] * count, dtype=np.str_)
    return conditions[PROMPT].astype(np.str_)


def _list_of(texts: Texts, where: str) -> list[str]:
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise RecipeError(f"{where} holds an empty text. Give at least one that says something.")
    return texts


API_CLASS = "api_class"
"""Name of the condition that holds the model's own class of each sample, int64."""

Choices = int | str | list[int | str]
"""A class by its number or its name, or several to draw from."""


@dataclass(frozen=True)
class Classes:
    """The classes of a model."""

    model: str  # the model's name, for messages
    count: int | None  # number of classes; None: the model takes none
    names: tuple[str, ...]  # names of the classes, in order; empty if the model names none

    def draw(
        self, labels: Sequence[str], seeds: Seeds, choices: Mapping[str, Choices] | None
    ) -> Int64Array | None:
        """Draw the class of each item by the item's seed alone, int64 (n,).

        Return None if the model takes no classes.

        Args:
            labels: the items' labels.
            seeds: the items' seeds, uint64 (n,).
            choices: label → the classes to draw from; None: all classes, whatever the label.

        Raises:
            RecipeError: a label has no choice, or one that is no class of the model; or the model
                has no classes.
        """
        if self.count is None:
            if choices is not None:
                raise RecipeError(f"The model '{self.model}' has no classes. Remove `classes`.")
            return None
        classes: dict[str, Sequence[int]] = dict.fromkeys(labels, range(self.count))
        for label in classes if choices is not None else ():
            classes[label] = [self._number(one) for one in _choices_of(label, choices or {})]
        drawn = [
            classes[label][(seed >> 16) % len(classes[label])]
            for label, seed in zip(labels, seeds.tolist(), strict=True)
        ]
        return np.array(drawn, dtype=np.int64)

    def _number(self, choice: int | str) -> int:
        if isinstance(choice, int):
            if not 0 <= choice < (self.count or 0):
                raise RecipeError(
                    f"`classes`: the model's classes are numbered 0 to {(self.count or 0) - 1}, so "
                    f"there is no class {choice}."
                )
            return choice
        if choice not in self.names:
            hint = "it names none: give their numbers."
            if self.names:
                hint = nearest_name(choice, self.names)
            raise RecipeError(f"classes: the model has no class named '{choice}'; {hint}")
        return self.names.index(choice)


def check_choices(labels: Sequence[str], choices: Mapping[str, Choices] | None) -> None:
    """Raise RecipeError if a label has no class to draw from.

    That the model has those classes is not checked.
    """
    if choices is not None:
        for label in labels:
            _choices_of(label, choices)


def _choices_of(label: str, choices: Mapping[str, Choices]) -> Sequence[int | str]:
    if label not in choices:
        labels = ", ".join(f"'{name}'" for name in choices)
        raise RecipeError(
            f"classes: there is none for the label '{label}' (there are some for {labels})."
        )
    choice = choices[label]
    classes = choice if isinstance(choice, list) else [choice]
    if not classes:
        raise RecipeError(f"classes.{label} is empty. Name at least one class.")
    return classes
