"""What `pe plan` warns of, before anything is called: one sentence each."""

from __future__ import annotations

from pe.dispatch.limits import Price
from pe.errors import RecipeError
from pe.planning.calls import Span
from pe.planning.deadlines import ClockTerms
from pe.plugins.protocols import DescribesDegree, GenerationAPI
from pe.recipe.schema import Recipe
from pe.steps import Plan


def meaning_of(api: GenerationAPI, degree: float) -> tuple[str, str]:
    """What a degree comes to, and why it is refused; each may be empty."""
    try:
        return (api.describe_degree(degree), "") if isinstance(api, DescribesDegree) else ("", "")
    except RecipeError as error:
        return "refused", str(error)


def refusals(plan: Plan, api: GenerationAPI | None) -> list[str]:
    """About degrees that the generator cannot obey."""
    degrees = sorted({step.degree for step in plan.steps})
    found = [] if api is None else [meaning_of(api, degree)[1] for degree in degrees]
    return [f"A run would not start: {sentence}" for sentence in found if sentence]


def cost_warnings(price: Price, calls: Span | None, images: Span) -> list[str]:
    """About numbers of calls and images, and costs, that are not settled yet."""
    found = []
    if calls is not None and calls.least < calls.most:
        found.append(
            f"The run makes {calls.least:,} to {calls.most:,} calls, as many parents or conditions as differ; "
            "the larger number is stated."
        )
    if images.least < images.most:
        found.append(
            f"The run makes {images.least:,} to {images.most:,} images, the more the fewer parents are chosen, because "
            "the lookahead's are reused; the larger number is stated."
        )
    if price.million_tokens:
        least = f"{price.of(calls.least if calls else 0, images.least):.2f} {price.currency}"
        found.append(f"The cost is unknown, because tokens are; calls and images alone cost {least} or more.")
    elif calls is None and price.call:
        most = f"{price.of(images.most, images.most):.2f} {price.currency}"
        found.append(f"The cost is unknown, because the calls are; with one image a call it would be {most}.")
    return found


def limit_warnings(
    recipe: Recipe, images: Span, cost: tuple[float | None, float | None], rate: float | None
) -> list[str]:
    """About limits that the run reaches, or may reach, before its end."""
    limits = recipe.limits
    seconds = (None, None) if rate is None else (images.least / rate, images.most / rate)
    needs: tuple[tuple[str, float | None, float | None, float | None], ...] = (
        ("max_images", limits.max_images, images.least, images.most),
        ("max_cost", limits.max_cost, *cost),
        ("max_seconds", limits.max_seconds, *seconds),
    )
    found = []
    for name, limit, least, most in needs:
        if limit is None or least is None or most is None or limit >= most:
            continue
        if limit < least:
            found.append(f"limits.{name} = {limit:,.10g} stops the run before its end, which needs {least:,.10g}.")
        else:
            found.append(f"limits.{name} = {limit:,.10g} may stop the run, which needs {least:,.10g} to {most:,.10g}.")
    return found


def recipe_warnings(recipe: Recipe, clock: ClockTerms) -> list[str]:
    """About the declared size, the public clock, and a part of the budget that nothing uses."""
    return [*_privacy_warnings(recipe), *filter(None, [clock.warning]), *_share_warnings(recipe)]


def _privacy_warnings(recipe: Recipe) -> list[str]:
    """About the declared size: missing, too small for δ, or of records where others are protected."""
    declared, delta, unit = recipe.private.declared_size, recipe.privacy.delta, recipe.private.privacy_unit
    if declared is None:
        return [
            "private.declared_size is missing, so votes per candidate are unknown and delta is not checked: "
            "state about how many private records there are (it will be public)."
        ]
    found = []
    if delta >= 1 / declared:
        found.append(
            f"privacy.delta = {delta:g} is not below 1 / declared_size = {1 / declared:.2g}, so publishing one record "
            "as it is would satisfy it: take a much smaller delta."
        )
    if unit != "record":
        found.append(f"All records of a {unit} together weigh as one, so there are fewer votes per candidate.")
    return found


def _share_warnings(recipe: Recipe) -> list[str]:
    """About a part of the budget that nothing uses."""
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    if share is None or share == 1 or recipe.evolution.iterations or recipe.evolution.estimate_label_sizes:
        return []
    return [
        f"Nothing uses {1 - share:.4g} of privacy.epsilon, because api.fit.budget_share is {share:g} and there are no "
        "iterations: leave the share out, or evolve what was fitted."
    ]
