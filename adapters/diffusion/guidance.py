"""How strongly a pipeline is led by its prompt: the one setting `guidance`, put into the input that means it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

TRUE = "true_cfg_scale"
"""Classifier-free guidance of a model whose `guidance_scale` is distilled into its network, or has none."""

_PLAIN = "guidance_scale"
_NEGATIVE = "negative_prompt"
_NOTHING = " "
"""A negative prompt that says nothing; without any, true guidance stays off."""


def guidance_input(inputs: Mapping[str, inspect.Parameter]) -> str | None:
    """The input that leads: `true_cfg_scale` where the pipeline turns it on by itself, else `guidance_scale`.

    None: the pipeline has neither.
    """
    true = inputs.get(TRUE)
    if true is not None and isinstance(true.default, int | float) and true.default > 1:
        return TRUE
    return _PLAIN if _PLAIN in inputs else None


def guidance_of(
    inputs: Mapping[str, inspect.Parameter],
    guidance: float | None,
    negative: Sequence[str],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a call that say how it is led, and away from what.

    Args:
        inputs: what the call takes.
        guidance: None: the pipeline's own.
        negative: a negative prompt for each item, or an empty text.
        arguments: what the call is given besides, by the inputs' own names.
    """
    name = guidance_input(inputs)
    found: dict[str, Any] = {} if guidance is None or name is None else {name: guidance}
    is_true = TRUE in inputs and {**arguments, **found}.get(TRUE, inputs[TRUE].default) > 1
    if _NEGATIVE in inputs and (is_true or any(negative)):
        found[_NEGATIVE] = [text or (_NOTHING if is_true else "") for text in negative]
    return found


def heeds_negative_prompts(inputs: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]) -> bool:
    """Whether a negative prompt has an effect; a pipeline with a prior takes none beside a seed for each item."""
    if _NEGATIVE not in inputs or "prior_guidance_scale" in inputs:
        return False
    return TRUE not in inputs or arguments.get(TRUE, inputs[TRUE].default) > 1
