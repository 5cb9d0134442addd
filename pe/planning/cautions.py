"""What a plan warns of, and what all that tells of a run warns of alike: one sentence each."""

from __future__ import annotations

from collections.abc import Iterable

from pe.errors import RecipeError
from pe.planning.build import usage_of
from pe.planning.calls import Span
from pe.planning.deadlines import ClockTerms
from pe.planning.signal import few_warnings, signal_of, signal_warnings
from pe.plugins.devices import DescribesPrecision
from pe.plugins.price import Price
from pe.plugins.protocols import DescribesDegree, GenerationAPI, info_of
from pe.plugins.usage import Usage
from pe.privacy.words import NO_NOISE, finite, warnings
from pe.recipe.schema import Recipe
from pe.recipe.usual_embedding import lacks_network
from pe.steps import Plan


def meaning_of(api: GenerationAPI, degree: float, t: int) -> tuple[str, str]:
    """What a degree comes to in iteration t, and why it is refused; each may be empty."""
    try:
        return (api.describe_degree(degree, t), "") if isinstance(api, DescribesDegree) else ("", "")
    except RecipeError as error:
        return "refused", str(error)


def precision_of(api: GenerationAPI | None) -> str:
    """The precision of the generator's arithmetic here; empty: it computes elsewhere, or a start would be refused."""
    try:
        return api.describe_precision() if isinstance(api, DescribesPrecision) else ""
    except RecipeError:
        return ""


def refusals(degrees: Iterable[tuple[float, int]], api: GenerationAPI | None) -> list[str]:
    """About those of the degrees that the generator cannot obey in their iterations."""
    found = [] if api is None else [meaning_of(api, degree, t)[1] for degree, t in degrees]
    return [f"A run would not start: {sentence}" for sentence in dict.fromkeys(found) if sentence]


def cost_warnings(
    price: Price, api: GenerationAPI | None, calls: Span | None, images: Span, noun: str = "images"
) -> list[str]:
    """About numbers of calls and samples, and costs, that are not settled yet."""
    found = []
    if calls is not None and calls.least < calls.most:
        found.append(
            f"The run makes {calls.least:,} to {calls.most:,} calls, as many parents or conditions as differ; "
            "the larger number is stated."
        )
    if images.least < images.most:
        found.append(
            f"The run makes {images.least:,} to {images.most:,} {noun}, as the votes decide: what is kept, or was made "
            "by the lookahead that is reused, is not asked for again; the larger number is stated."
        )
    if len(price.each) > 1 and usage_of(price, api, 0, 0) is not None:
        found.append(
            f"Each generator has its own price, and the votes decide who makes how many {noun}: the cost is stated "
            f"from all {noun} by the cheapest to all by the dearest."
        )
    if usage_of(price, api, 0, 0) is None:
        least = f"{price.least_of(Usage(calls.least if calls else 0, images.least)):.2f} {price.currency}"
        what = "tokens are" if price.has_tokens else "the size is at which the generator draws"
        found.append(f"The cost is unknown, because {what}; calls and {noun} alone cost {least} or more.")
    elif calls is None and price.call:
        most = f"{price.most_of(Usage(images.most, images.most)):.2f} {price.currency}"
        one = f"with a call for each of the {noun}"
        found.append(f"The cost is unknown, because the calls are; {one} it would be {most}.")
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


def guarantee_warnings(recipe: Recipe, plan: Plan, epsilon: float) -> list[str]:
    """What is to be known of a run's guarantee and of its votes, from public numbers, one sentence each.

    The same list stands in the plan, on the console of the run, in its certificate and in its report.

    Args:
        recipe: of the run.
        plan: of the recipe.
        epsilon: of all its releases.
    """
    private = recipe.private
    if recipe.privacy.noiseless:
        return [NO_NOISE, *vote_warnings(recipe, plan)]
    implied = warnings(finite(epsilon), recipe.privacy.delta, private.declared_size, private.declared_units)
    return [*implied, *vote_warnings(recipe, plan)]


def vote_warnings(recipe: Recipe, plan: Plan) -> list[str]:
    """Of `guarantee_warnings` those that do not follow from ε, δ and the declared size: about votes and their noise."""
    if recipe.private.declared_size is None:
        return [
            "private.declared_size is missing, so votes per candidate are unknown and delta is not checked: "
            "state about how many private records there are (it will be public)."
        ]
    candidates = [plan.sizes, *(step.sizes for step in plan.steps)]
    signals = [signal_of(recipe, plan, step, sizes) for step, sizes in zip(plan.steps, candidates, strict=False)]
    return [*few_warnings(recipe, plan, signals), *signal_warnings(recipe, plan, signals)]


def pool_warnings(recipe: Recipe, api: GenerationAPI) -> list[str]:
    """That a run over a pool ends with public samples as they were."""
    if info_of(api).distinct is None:
        return []
    noun = recipe.private.modality.noun
    return [
        f"The {noun} are public ones, unchanged: the votes chose them from a pool and labelled them. Their licences "
        "hold, and who is in them stays in them."
    ]


def recipe_warnings(recipe: Recipe, clock: ClockTerms) -> list[str]:
    """About the privacy unit, the public clock, a part of the budget that nothing uses, and a missing network."""
    blurred = lacks_network(recipe.private, recipe.embedding.kind) if recipe.evolution.iterations else ""
    return [*_unit_warnings(recipe), *filter(None, [clock.warning, blurred]), *_share_warnings(recipe)]


def _unit_warnings(recipe: Recipe) -> list[str]:
    """About votes of which others than records have one."""
    unit = recipe.private.privacy_unit
    if unit == "record" or recipe.private.declared_size is None or recipe.private.declared_units is not None:
        return []
    return [
        f"All records of a {unit} together weigh as one, so there are fewer votes per candidate than foretold: state "
        "private.declared_units, about how many units there are (it will be public)."
    ]


def _share_warnings(recipe: Recipe) -> list[str]:
    """About a part of the budget that nothing uses."""
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    if share is None or share == 1 or recipe.evolution.iterations or recipe.evolution.estimate_label_sizes:
        return []
    return [
        f"Nothing uses {1 - share:.4g} of privacy.epsilon, because api.fit.budget_share is {share:g} and there are no "
        "iterations: leave the share out, or evolve what was fitted."
    ]
