"""What `pe evaluate` measured (docs/evaluation.md), as templates/quality.html shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pe.privacy.words import found_at_most
from pe.report.charts import Line
from pe.report.diagnostics import certificate_of
from pe.report.page import shown
from pe.store.run import Run

Metrics = Mapping[str, Any]

_SETS = {
    "synthetic": ("synthetic", "the run's data."),
    "unevolved": ("un-evolved", "samples straight from the generator, what it knows without any private record."),
    "random_selection": (
        "random selection",
        "the run again with parents chosen at random: what the votes have brought is the difference to it.",
    ),
    "one_vote": (
        "one vote",
        "as many samples straight from the generator, chosen by one vote with the budget of all the run's, and "
        "not varied: what evolving has brought is the difference to it.",
    ),
    "real": ("real", "the private records themselves: the ceiling."),
}
_WORST = 20  # confusions that are listed where there are too many classes for a matrix


def quality(run: Run, metrics: Metrics) -> dict[str, object]:
    """What the template shows, the metrics included."""
    utility, fidelity, memorisation = (metrics.get(key) or {} for key in ("utility", "fidelity", "memorisation"))
    trained_on: dict[str, int | None] = {}
    for by_set in utility.values():
        for name, one in by_set.items():
            trained_on.setdefault(name, one.get("images"))
    there = {"synthetic"}.union(trained_on, *(each.get("controls") or {} for each in fidelity.values()))
    verdict, chosen = (metrics.get(key) or {} for key in ("verdict", "chosen_classifier"))
    judge = verdict.get("classifier") or chosen.get("synthetic")
    judged = utility.get(judge, {})
    return {
        "metrics": metrics,
        "trained_on": trained_on,
        "sets": [words for name, words in _SETS.items() if name in there],
        "judge": judge,
        "judged": judged,
        "judged_sets": [_title(name) for name in judged],
        "bound": _bound(run, (metrics.get("run") or {}).get("noun", "images")),
        "nearest": _nearest,
        "pairs": _pairs(run, memorisation, ".png"),
        "text_pairs": [pair for one in _pairs(run, memorisation, ".json") for pair in _text_pairs(one)],
        "of_texts": _of_texts(metrics.get("texts") or {}),
        "noun": (metrics.get("run") or {}).get("noun", "images"),
        "distance_names": distance_names,
        "most_confused": _most_confused,
        "spread": spread,
        "title": _title,
    }


def _bound(run: Run, noun: str) -> str:
    """Bound by the certificate the difference that the membership test sees."""
    certificate = certificate_of(run)
    if certificate is None or not certificate["holds"]:
        return f"No certificate bounds what the {noun} tell of a record."
    epsilon, delta, unit = certificate["epsilon"], certificate["delta"], certificate["unit"]["name"]
    most = found_at_most(epsilon, delta, certificate["gdp_mu"])
    return f"Of one {unit} the certificate allows a test that wrongly accuses 1 in 100 to find at most {most}."


def headline_numbers(metrics: Metrics) -> list[tuple[str, str]]:
    """(what, value of the synthetic data), one of each classifier, embedding and test."""
    verdict = metrics.get("verdict") or {}
    asked = {"did the votes help": "outcome", "did evolving beat one vote": "evolving"}
    found = [(what, verdict[key].replace("_", " ")) for what, key in asked.items() if verdict.get(key)]
    found += [
        (f"accuracy, {name}", spread(sets["synthetic"]["accuracy"]))
        for name, sets in (metrics.get("utility") or {}).items()
        if "synthetic" in sets
    ]
    found += [
        (f"{distance_names(each)[0]}, {name}", shown(each.get("frechet"), ",.4g"))
        for name, each in (metrics.get("fidelity") or {}).items()
    ]
    if "membership" in metrics.get("memorisation", {}):
        found.append(("membership AUC", f"{metrics['memorisation']['membership']['auc']:.3f}"))
    return found


def distance_names(found: Metrics) -> tuple[str, str]:
    """Names of the Fréchet and the kernel distance."""
    return ("FID", "KID") if found.get("standard_inception") is True else ("Fréchet", "kernel")


def spread(found: Metrics, error: str = "std", forms: tuple[str, str] = (".1%", ".1%")) -> str:
    """Mean ± error, where they are known."""
    around = "" if found.get(error) is None else f" ± {found[error]:{forms[1]}}"
    return shown(found.get("mean"), forms[0]) + around


def _most_confused(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[tuple[str, str, str]]:
    shares = [
        (count / sum(counts), labels[i], labels[j])
        for i, counts in enumerate(confusion)
        for j, count in enumerate(counts)
        if count and i != j
    ]
    worst = sorted(shares, key=lambda each: -each[0])[:_WORST]
    return [(true, called, f"{share:.1%}") for share, true, called in worst]


def _nearest(found: Metrics, names: Mapping[str, str]) -> list[Line]:
    """Distribution functions of distances, as far as they were measured."""
    measured = [(name, found[key]) for key, name in names.items() if found.get(key)]
    return [(name, one["quantiles"], [100 * level for level in one["levels"]]) for name, one in measured]


def _pairs(run: Run, found: Metrics, suffix: str) -> list[bytes]:
    """The files of the nearest pairs that end so, as far as they lie in the run's confidential folder."""
    paths = [run.folder / name for name in (found.get("nearest_pairs") or {}).get("files", [])]
    inside = [path for path in paths if path.resolve().is_relative_to(run.confidential.resolve())]
    return [path.read_bytes() for path in inside if path.is_file() and path.suffix == suffix]


def _text_pairs(file: bytes) -> list[tuple[str, str, float]]:
    """Generated text, private text and their distance, of each pair."""
    return [(pair["generated"], pair["private"], pair["distance"]) for pair in json.loads(file)]


def _of_texts(found: Metrics) -> list[tuple[str, ...]]:
    """Lengths and words of each set, as rows of a table."""
    rows = []
    for name, one in (found.get("sets") or {}).items():
        words = dict(zip(found["levels"], one["words"], strict=True))
        middle = (f"{words[level]:,.0f}" for level in (0.05, 0.5, 0.95))
        own = f"{one['vocabulary']:,}", shown(one["covered"], ".1%"), shown(one["divergence"], ".3f")
        rows.append((_title(name), *middle, *own))
    return rows


def _title(name: str) -> str:
    return _SETS[name][0] if name in _SETS else name
