"""What a sum of money can buy: the rule's choice, and others beside it, from public numbers alone (docs/plan.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from pe.errors import RecipeError
from pe.planning.bill import Bill, bill_of
from pe.planning.build import price_of, usage_of
from pe.planning.choice import settle
from pe.planning.forecast_values import Alternative
from pe.planning.layout import lay_out
from pe.plugins.protocols import GenerationAPI
from pe.plugins.validation import read_settings
from pe.recipe.evolution import Evolution
from pe.recipe.schema import Recipe

TRIES = 8
"""How often a choice is made smaller until the money suffices."""

SIZES = ("iterations", "population")


@dataclass(frozen=True)
class _Idea:
    """An alternative before it is planned: what it sets of the evolution, and why."""

    name: str
    sets: dict[str, Any]
    why: str


_RULE = _Idea("the rule", {}, "What `evolution: auto` takes for this money: the choice that was tried.")
_GIVEN = _Idea("as given", {}, "What the recipe says, whatever it costs.")
_ONCE = _Idea(
    "one vote",
    {"iterations": 1},
    "All of the budget goes into one vote over many candidates, with the least noise; nothing chosen is improved.",
)


def alternatives_of(recipe: Recipe, api: GenerationAPI | None) -> tuple[Alternative, ...]:
    """What `limits.max_cost` can buy, the planner's own choice among it; what costs more is left out.

    Args:
        recipe: with or without an evolution of its own; scalar keys of it stay, sizes and lists are chosen anew.
        api: the generator; None: it could not be set up.

    Raises:
        RecipeError: no price is given, or what an image costs is not known before it is made.
    """
    money, noun = recipe.limits.max_cost, recipe.private.modality.noun
    price = price_of(recipe)
    if money is None or price.free:
        raise RecipeError(
            "What money can buy is unknown, because api.price is not given: state it, or say by limits.max_images how "
            f"many {noun} the run may make."
        )
    if usage_of(price, api, 0, 0) is None:
        what = "tokens have a price" if price.has_tokens else "it is not known how large the generator draws"
        raise RecipeError(
            f"What money can buy is unknown, because {what}: say by limits.max_images how many {noun} the run may make."
        )
    rule = _plan(_RULE, recipe, api, money)
    found = [_alternative(_GIVEN, recipe, recipe, _bill(recipe, api)), rule] if recipe.evolution.settled else [rule]
    for idea in _ideas(rule):
        try:
            one = _plan(idea, recipe, api, money)
        except RecipeError:  # no population is small enough, or a key of the recipe does not go with it
            continue
        if one.iterations > 1 and not any(one.degree):  # a pool: a second vote only chooses again
            continue
        if (one.cost is None or one.cost <= money) and not any(_same(one, other) for other in found):
            found.append(one)
    return tuple(found)


def _ideas(rule: Alternative) -> list[_Idea]:
    """What may be tried beside the rule; where that varies nothing, other numbers of votes alone."""
    iterations, ideas = rule.iterations, [_ONCE]
    again = {"iterations": iterations}
    if iterations > 2:
        why = "Fewer votes have less noise each, so that more candidates have their signal; they are varied less often."
        ideas.append(_Idea("fewer votes", {"iterations": iterations // 2}, why))
    elif iterations < 2:
        why = "The second vote mends what the first got wrong; the noise on each is larger."
        ideas.append(_Idea("two votes", {"iterations": 2}, why))
    if not any(rule.degree):
        return ideas
    if rule.keep == "none":
        name, keep = "winners kept", "winners"
        kept = "What a vote chose stays, is voted on again, and costs nothing; fewer samples are new."
    else:
        name, keep = "nothing kept", "none"
        kept = "All members of a population are new variations, as in the paper."
    ahead = "Two variations of each candidate speak for it in the vote, and are its offspring if it is chosen."
    return [
        *ideas,
        _Idea(name, again | {"keep": keep}, kept),
        _Idea("lookahead", again | {"lookahead": 2, "reuse_lookahead": True}, ahead),
    ]


def _plan(idea: _Idea, recipe: Recipe, api: GenerationAPI | None, money: float) -> Alternative:
    """The idea with the sizes that the rule gives it; made smaller where the rule does not foresee what it costs.

    Raises:
        RecipeError: no sizes fit.
    """
    wanted, limits = recipe, recipe.limits
    if idea.sets or recipe.evolution.settled:
        wanted = _with(recipe, _scalars(recipe) | idea.sets)
    for _ in range(TRIES):
        settled = settle(wanted.model_copy(update={"limits": limits}), api).recipe
        settled = settled.model_copy(update={"limits": recipe.limits})
        bill = _bill(settled, api)
        if idea is _RULE or bill.most is None or bill.most <= money:
            break
        limits = limits.model_copy(update={"max_images": max(int(sum(_sizes(settled)) * money / bill.most), 1)})
    return _alternative(idea, recipe, settled, bill)


def _scalars(recipe: Recipe) -> dict[str, Any]:
    """What the recipe gives of its evolution for any number of iterations; sizes only if it leaves that number open."""
    kept = {key: value for key, value in recipe.evolution.given.items() if not isinstance(value, list)}
    left_out = SIZES if recipe.evolution.settled else ()
    if "lookahead" not in kept:
        left_out = (*left_out, "reuse_lookahead")
    return {key: value for key, value in kept.items() if key not in left_out}


def _with(recipe: Recipe, evolution: dict[str, Any]) -> Recipe:
    """The recipe with this evolution, and the budget's schedule left open."""
    return recipe.model_copy(
        update={
            "evolution": read_settings(Evolution, evolution, "evolution"),
            "privacy": recipe.privacy.model_copy(update={"schedule": None}),
        }
    )


def _bill(recipe: Recipe, api: GenerationAPI | None) -> Bill:
    return bill_of(recipe, lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit), api)


def _alternative(idea: _Idea, recipe: Recipe, settled: Recipe, bill: Bill) -> Alternative:
    evolution = settled.evolution
    keep, ahead = evolution.keep, evolution.lookahead
    signals = [one.signal.to_noise for one in bill.iterations if one.signal]
    known = [signal for signal in signals if signal is not None]
    return Alternative(
        name=idea.name,
        why=idea.why,
        recommended=idea is _RULE,
        changes=_changes(recipe, settled, idea),
        iterations=evolution.iterations,
        population=_sizes(settled),
        degree=tuple(evolution.degree) if isinstance(evolution.degree, list) else (evolution.degree,),
        neighbors=evolution.neighbors,
        lookahead=max(ahead) if isinstance(ahead, list) else ahead,
        keep=", ".join(dict.fromkeys(keep)) if isinstance(keep, list) else keep,
        images=bill.images,
        calls=bill.calls,
        cost=bill.most,
        cost_at_least=bill.least,
        signal=min(known, default=None),
    )


def _sizes(recipe: Recipe) -> tuple[int, ...]:
    """Members of S_0 … S_T."""
    sizes = recipe.evolution.population
    return tuple(sizes) if isinstance(sizes, list) else (sizes,) * (recipe.evolution.iterations + 1)


def _changes(recipe: Recipe, settled: Recipe, idea: _Idea) -> tuple[str, ...]:
    """What `--set` takes to have this evolution; the rule needs the money alone, if the recipe leaves it to choose."""
    found = [f"limits.max_cost={recipe.limits.max_cost:.10g}"]
    if idea is _GIVEN or (idea is _RULE and not recipe.evolution.settled):
        return tuple(found)
    keys = settled.evolution.model_dump(mode="json", include=settled.evolution.model_fields_set)
    found.append(f"evolution={_flow(keys)}")
    if settled.privacy.schedule != recipe.privacy.schedule:
        found.append(f"privacy.schedule={_flow(settled.privacy.schedule)}")
    return tuple(found)


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _same(one: Alternative, other: Alternative) -> bool:
    """Whether both ask for the same."""
    keys = ("iterations", "population", "neighbors", "lookahead", "keep")
    return all(getattr(one, key) == getattr(other, key) for key in keys)
