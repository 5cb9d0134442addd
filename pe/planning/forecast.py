"""A forecast as a person reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

from pe.fit.trainer import DryRun
from pe.planning.build import class_of, set_up
from pe.planning.calls import PARENTS, Span, disk_of
from pe.planning.checks import (
    HeldBack,
    cap_obstacles,
    cost_warnings,
    guarantee_warnings,
    held_back,
    limit_warnings,
    precision_of,
    recipe_warnings,
    refusals,
)
from pe.planning.choice import settle
from pe.planning.figures import Forecast, Iteration, bill_of
from pe.planning.layout import fit_dry_runs, is_fitted, lay_out, taken_obstacles
from pe.plugins.protocols import GenerationAPI, info_of
from pe.plugins.registry import Group, PluginSpec, load, members_of, plugins
from pe.privacy.accounting import epsilon
from pe.privacy.release import Poisson, Release
from pe.privacy.words import guarantee, round_up
from pe.recipe.schema import OBJECT, Recipe
from pe.steps import Plan

_DEGREES = {
    "exact": "the generator obeys it exactly",
    "wording": "the generator is told it in words and obeys it roughly",
    "none": "the generator does not obey it: every variation is as large as it makes it",
    None: "unknown",
}
_HEAD = ("t", "calls", "degree", "candidates", "votes/candidate", "σ, votes", "H, votes")


def page_of(name: str, found: Forecast) -> str:
    """The forecast as a person reads it."""
    head = (*_HEAD[:2], found.noun, *_HEAD[2:])
    rows = [
        head,
        *_measuring(found),
        *(_row(one) for one in found.iterations),
        ("all", _calls(found.calls), _calls(found.images)),
    ]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(head))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    facts = [f"{key:<12}{value}" for key, value in _facts(found)]
    warnings = [f"warning: {sentence}" for sentence in found.warnings]
    return "\n".join(
        [f"Plan of '{name}': nothing was called, no private record was read.", "", *table, "", *facts]
        + (["", *warnings] if warnings else [])
    )


def _row(one: Iteration) -> tuple[str, ...]:
    start = (str(one.t), _calls(one.calls), _calls(one.images))
    signal = one.signal
    if signal is None:
        return start
    votes = "unknown" if signal.fewest is None else f"{signal.fewest:.3g}"
    return (
        *start,
        f"{one.degree:g}",
        f"{signal.candidates:,}",
        votes,
        f"{signal.sigma:.3g}",
        f"{signal.threshold:.3g}",
    )


def _facts(found: Forecast) -> list[tuple[str, str]]:
    multipliers = list(dict.fromkeys(f"{signal.noise_multiplier:.4g}" for signal in found.signals))
    return [
        ("Calls", f"{_calls(found.random)} of RANDOM_API, {_calls(found.variation)} of VARIATION_API"),
        *_copied(found),
        ("Synthetic", f"{found.synthetic:,} {found.noun} at the end{_more(found)}"),
        *([] if found.disk is None else [("Disk", f"up to {_bytes(found.disk)} for samples")]),
        ("Cost", _money(found.cost_at_least, found.cost, found.currency) if found.priced else "not stated (api.price)"),
        (
            "Time",
            "unknown (state --samples-per-second or --rate-of)" if found.seconds is None else _duration(found.seconds),
        ),
        ("Guarantee", guarantee(found.epsilon, found.delta, 4, ", ")),
        *_fit(found),
        ("Noise", f"multiplier {', '.join(multipliers)}" if multipliers else "no histogram is released"),
        *_clock(found),
        *_chosen(found),
        ("Degree", _DEGREES[found.degree]),
        *(("", line) for line in _meanings(found)),
        *_measured(found),
        *([("Embedding", found.embedding)] if found.embedding else []),
        *([("Precision", found.precision)] if found.precision else []),
    ]


def _more(found: Forecast) -> str:
    """That there can be more, but of a run whose last iteration copies."""
    return "; `pe extend` makes more of them at no further ε" if found.iterations[-1].degree else ""


def _copied(found: Forecast) -> list[tuple[str, str]]:
    """Which iterations vary nothing."""
    at = [f"{one.t}" for one in found.iterations if one.t and not one.degree]
    return [("", f"degree 0 at t = {', '.join(at)}: copies of the chosen, which need no call")] if at else []


def _measuring(found: Forecast) -> list[tuple[str, ...]]:
    """The row of what is asked for before t = 0."""
    asked = found.measuring
    return [("try", _calls(asked.random + asked.variation), _calls(asked.images))] if asked else []


def _measured(found: Forecast) -> list[tuple[str, str]]:
    """Say that the run tries its generator first, and how that may end."""
    degree = min((one.degree for one in found.iterations if one.t and one.degree), default=0.0)
    clause = f"first tried on {PARENTS} new samples, each varied at {degree:g}: a run stops unless they are its parents"
    return [("", clause)] if found.measuring else []


def _clock(found: Forecast) -> list[tuple[str, str]]:
    """What the public clock adds, and what it is for."""
    clock = found.clock
    facts = [("Clock", clock.terms.why)]
    if clock.seconds:
        kinds = dict.fromkeys(name.split("/")[0] for name in clock.seconds)
        each = {kind: [clock.seconds[name] for name in clock.seconds if name.split("/")[0] == kind] for kind in kinds}
        times = ", ".join(f"{kind} {len(all_of)} × {max(all_of):g} s" for kind, all_of in each.items())
        facts.append(
            ("", f"private work ends at public deadlines, {_duration(sum(clock.seconds.values()))} in all: {times}")
        )
    if clock.terms.on:
        facts.append(("", "so that nobody who times requests or the console learns of records or their number"))
    if clock.unheld:
        facts.append(("", f"without a deadline, which shows on the console: {', '.join(clock.unheld)}"))
    return facts


def _chosen(found: Forecast) -> list[tuple[str, str]]:
    """What was chosen of the evolution, and why."""
    chosen = [f"{key.removeprefix('evolution.')} {_plain(value)}" for key, value in found.choice.chosen.items()]
    if not chosen:
        return []
    told = [", ".join(chosen), *found.choice.reasons, "Give a key to change it, and what depends on it follows."]
    return [("" if i else "Chosen", line) for i, line in enumerate(told)]


def _plain(value: Any) -> str:
    """A number, or numbers, in few digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def _fit(found: Forecast) -> list[tuple[str, str]]:
    """The releases by which the generator is fitted, equal ones in one line."""
    if not found.fit:
        return []
    kinds: dict[tuple[float, Poisson | None], list[Release]] = {}
    for release in found.fit:
        kinds.setdefault((release.noise_multiplier, release.sampling), []).append(release)
    share = f"ε = {round_up(found.fit_epsilon, 4)} of {round_up(found.epsilon, 4)}, before t = 0"
    tried = [("" if i else "Dry run", _dry_run(one)) for i, one in enumerate(found.dry_runs)]
    return [("Fit", share), *(("", _releases(same)) for same in kinds.values()), *tried]


def _dry_run(one: DryRun) -> str:
    """What a part of the fit takes on this machine."""
    memory = "" if one.memory is None else f", {one.memory / 2**30:.2g} GB of memory beside the model"
    kept = f", {one.blocks} kept states of {one.state_bytes / 2**20:.2g} MB" if one.blocks else ""
    return (
        f"{one.part}: {one.steps:,} steps of {one.parameters:,} parameters in about {_duration(one.seconds)} here"
        f"{memory}{kept}"
    )


def _releases(same: list[Release]) -> str:
    """Releases of one mechanism, noise and sampling."""
    first, draws = same[0], sum(release.count for release in same)
    named = first.name if len(same) == 1 else f"{first.name} … {same[-1].name}"
    times = f", {draws:,} steps" if draws > 1 else ""
    rate = f", sampling rate {first.sampling.rate:.3g}" if first.sampling else ""
    return f"{named}{times}: multiplier {first.noise_multiplier:.4g}{rate}"


def _bytes(number: int) -> str:
    return f"{number / 1e6:,.3g} MB" if number < 1e9 else f"{number / 1e9:,.3g} GB"


def _money(least: float | None, most: float | None, currency: str) -> str:
    if most is None or least is None:
        return "unknown"
    if not most:
        return "free"
    return f"{f'{least:,.2f}–' if least < most else ''}{most:,.2f} {currency}"


def _meanings(found: Forecast) -> list[str]:
    """A line for each degree that the generator has words for; where these differ by iteration, for each of them."""
    iterations: dict[tuple[float, str], list[int]] = {}
    for one in found.iterations:
        if one.meaning:
            iterations.setdefault((one.degree, one.meaning), []).append(one.t)
    ways = Counter(degree for degree, _ in iterations)
    lines = []
    for (degree, meaning), at in iterations.items():
        where = f" in iteration {', '.join(map(str, at))}" if ways[degree] > 1 else ""
        lines.append(f"at {degree:g}{where}: {meaning}")
    return lines


def _calls(span: Span | None) -> str:
    return "unknown" if span is None else str(span)


def _duration(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, hours below two days, days from there."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# What a run will ask for, cost and guarantee, from public numbers, before anything is called or read.


def forecast(
    recipe: Recipe,
    api: GenerationAPI | None,
    here: Sequence[str] = (),
    samples_per_second: float | None = None,
    dry_run: bool = False,
) -> Forecast:
    """What a run of `recipe` will do; calls nothing and reads no private record.

    Args:
        recipe: the recipe.
        api: the generator (`pe.planning.build.set_up_generator`), asked what it can do; None: the calls are unknown.
        here: warnings about this machine (`pe.planning.checks.obstacles`), and why the calls are unknown.
        samples_per_second: the generator's rate, > 0; None: the time is unknown.
        dry_run: whether a few steps of the fit are tried here, on random images.

    Raises:
        RecipeError: the population does not fit the labels.
        PrivacyError: no noise meets the budget.
    """
    choice = settle(recipe, api)
    recipe = choice.recipe
    plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
    dry_runs = fit_dry_runs(recipe, recipe.private.labels, recipe.private.privacy_unit) if dry_run else ()
    clock = held_back(recipe, plan, api, set_up("pe.embeddings", recipe.embedding)[0], dry_runs)
    bill = bill_of(recipe, plan, api)
    images, noun = bill.images, recipe.private.modality.noun
    delta = recipe.privacy.delta
    spent = inf if recipe.privacy.noiseless else epsilon(plan.releases, delta)
    told = [
        *here,
        *refusals([(step.degree, step.t) for step in plan.steps], api),
        *cost_warnings(bill.price, api, bill.calls, images, noun),
    ]
    told += limit_warnings(recipe, images, (bill.least, bill.most), samples_per_second)
    told += _of_the_guarantee(recipe, plan, clock, spent)
    found = Forecast(
        noun,
        bill.iterations,
        priced=bill.stated,
        cost=bill.most,
        cost_at_least=bill.least,
        currency=bill.price.currency,
        epsilon=spent,
        delta=delta,
        degree=None if api is None else api.capabilities.degree,
        seconds=None if samples_per_second is None else images.most / samples_per_second,
        warnings=tuple(told),
        clock=clock,
        synthetic=sum(plan.steps[-1].sizes if plan.steps else plan.sizes),
        disk=disk_of(recipe, plan, api),
        fit=plan.fit,
        fit_epsilon=epsilon(plan.fit, delta) if plan.fit else 0.0,
        dry_runs=dry_runs,
        choice=choice,
        measuring=bill.measuring,
        embedding=recipe.embedding.kind.removeprefix(OBJECT) if plan.steps else "",
        precision=precision_of(api),
    )
    return replace(found, page=page_of(recipe.name, found))


def _of_the_guarantee(recipe: Recipe, plan: Plan, clock: HeldBack, spent: float) -> list[str]:
    """Warnings about ε, δ, votes, deadlines, the data set's cap, and other runs."""
    found = [*guarantee_warnings(recipe, plan, spent), *recipe_warnings(recipe, clock.terms)]
    return [*found, *cap_obstacles(recipe, plan.releases), *taken_obstacles(recipe, plan.releases)]


# Whether two recipes mean the same run, so that one may go on where the other stopped.


_MACHINE_ONLY = (
    "name", "limits", "private.path", "private.ledger_file", "private.largest_side", "api.price", "refusals.max_share",
    "evolution.neighbor_search", "evolution.measure_degree", "privacy.public_clock", "privacy.clock_slack",
)  # fmt: skip
_MOST = 200
"""Characters of a value."""


def differences(before: Recipe, after: Recipe) -> list[str]:
    """The keys whose change gives the run another meaning: `key: old → new`, sorted.

    What only concerns the machine may change: limits, prices, where the private records lie (their fingerprint tells
    whether they are the same), where their ledger file does, and the settings that a plug-in's `info` names as
    machine_settings (device, concurrency, batch size, the key's environment variable). An object's class counts by its
    name alone. So may the declared size, unless a fit is planned by it.
    """
    old, new = (dict(_leaves(recipe.model_dump(mode="json"))) for recipe in (before, after))
    for leaves, key in product((old, new), ("api.kind", "embedding.kind")):
        leaves[key] = class_of(leaves[key])
    free = [*_MACHINE_ONLY, *_machine_settings("pe.adapters", "api", after.api)]
    free += _machine_settings("pe.embeddings", "embedding", after.embedding)
    for key, member in members_of(after.api).items():
        free += [f"api.{key}.price", *_machine_settings("pe.adapters", f"api.{key}", member)]
    if not is_fitted(after.api.kind):
        free += ["private.declared_size", "private.declared_units"]
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [
        f"{key}: {_shown(old.get(key))} → {_shown(new.get(key))}"
        for key in changed
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    ]


def _machine_settings(group: Group, section: str, spec: PluginSpec) -> list[str]:
    if spec.kind not in plugins(group):
        return []
    return [f"{section}.{name}" for name in info_of(load(group, spec.kind)).machine_settings]


def _shown(value: Any) -> str:
    """A value in a message; of a long list, prompts of a file say, the beginning."""
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping, and no list of mappings alone, by its dotted key."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
