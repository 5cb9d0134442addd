"""What `pe evaluate` measured (docs/evaluation.md), as sections of the confidential page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pe.report.memorisation import Metrics, memorisation_section
from pe.report.page import facts, listed, meanings, paragraph, section, table
from pe.store.run import Run

_SETS = {
    "synthetic": ("synthetic", "the run's data."),
    "unevolved": ("un-evolved", "samples straight from the generator, what it knows without any private record."),
    "random_selection": (
        "random selection",
        "the run again with parents chosen at random: what the votes have brought is the difference to it.",
    ),
    "real": ("real", "the private records themselves: the ceiling."),
}
_MATRIX = 30  # classes of a confusion matrix that is shown whole
_WORST = 20  # confusions that are listed otherwise
_STRONGEST = 45  # per cent of the accent colour behind a cell's text, which stays readable


def quality_sections(run: Run, metrics: Metrics) -> list[str]:
    """The sections, the headline first; what was not measured has none."""
    return [
        _headline(metrics),
        _utility(metrics),
        _fidelity(metrics),
        _semantics(metrics),
        memorisation_section(run, metrics),
        section("Notes", listed(metrics["notes"])) if metrics.get("notes") else "",
    ]


def headline_numbers(metrics: Metrics) -> list[tuple[str, str]]:
    """(what, value of the synthetic data), one of each classifier, embedding and test."""
    found = [
        (f"accuracy, {name}", _spread(sets["synthetic"]["accuracy"]))
        for name, sets in (metrics.get("utility") or {}).items()
        if "synthetic" in sets
    ]
    found += [
        (f"{_distance_names(each)[0]}, {name}", _plain(each.get("frechet")))
        for name, each in (metrics.get("fidelity") or {}).items()
    ]
    if "semantics" in metrics:
        found.append(("semantic similarity (SDS)", _plain(metrics["semantics"].get("sds"))))
    if "membership" in metrics.get("memorisation", {}):
        found.append(("membership AUC", f"{metrics['memorisation']['membership']['auc']:.3f}"))
    return found


def _headline(metrics: Metrics) -> str:
    run, test = metrics.get("run"), metrics.get("test")
    sentence = ""
    if run and test:
        state = "" if run["finished"] else f" The run is not finished: this is S{run['iteration']}."
        sentence = f"{run['images']:,} synthetic images against {test['images']:,} real ones of {test['path']}.{state}"
    there = [name for name in _SETS if name == "synthetic" or name in _controls(metrics)]
    return section(
        "Quality",
        paragraph(sentence) if sentence else "",
        facts(_facts(metrics)),
        meanings([_SETS[name] for name in there]) if len(there) > 1 else "",
    )


def _controls(metrics: Metrics) -> set[str]:
    """Names of the sets that stand beside the synthetic data somewhere."""
    trained = {name for sets in (metrics.get("utility") or {}).values() for name in sets}
    return trained.union(*(found.get("controls") or {} for found in (metrics.get("fidelity") or {}).values()))


def _facts(metrics: Metrics) -> list[tuple[str, str]]:
    """The large numbers, each beside the ceiling."""
    found = []
    chosen = (metrics.get("chosen_classifier") or {}).get("synthetic")
    if chosen:
        trained = metrics["utility"][chosen]
        ceiling = f"; on real: {_share(trained['real']['accuracy']['mean'])}" if "real" in trained else ""
        found.append((_share(trained["synthetic"]["accuracy"]["mean"]), f"accuracy, trained on synthetic{ceiling}"))
    for name, each in (metrics.get("fidelity") or {}).items():
        real = (each.get("controls") or {}).get("real")
        ceiling = f"; real: {_plain(real.get('frechet'))}" if real else ""
        found.append((_plain(each.get("frechet")), f"{_distance_names(each)[0]}, {name}{ceiling}"))
    member = (metrics.get("memorisation") or {}).get("membership")
    if member:
        found.append((f"{member['auc']:.3f}", "membership AUC; 0.5 is a coin"))
    return found


def _utility(metrics: Metrics) -> str:
    """Accuracy on real data by training set and classifier; the chosen classifier class by class."""
    utility = metrics.get("utility")
    if not utility:
        return ""
    chosen = metrics.get("chosen_classifier") or {}
    rows = []
    for name in dict.fromkeys(name for by_set in utility.values() for name in by_set):
        cells = [
            "–" if name not in by_set else _spread(by_set[name]["accuracy"]) + (" *" if chosen.get(name) == one else "")
            for one, by_set in utility.items()
        ]
        images = next((by_set[name].get("images") for by_set in utility.values() if name in by_set), None)
        rows.append((_title(name), *cells, "–" if images is None else f"{images:,}"))
    note = (
        "Share of real test images that a classifier labels rightly after training on the set that a row names: mean ± "
        "standard deviation over seeds. * is chosen on held-out parts of the training set, never on the test set."
    )
    parts = [paragraph(note, "soft"), table(("trained on", *utility, "images"), rows)]
    best = chosen.get("synthetic")
    if best is not None and best in utility and "synthetic" in utility[best]:
        parts.append(_by_class(best, utility[best]))
    return section("Utility: train on synthetic, test on real", *parts)


def _by_class(classifier: str, by_set: Metrics) -> str:
    """Accuracy per class for each training set, and the confusion matrix of the synthetic one."""
    labels, sets = list(by_set["synthetic"]["per_class"]), list(by_set)
    rows = [(label, *(_share(by_set[name]["per_class"].get(label)) for name in sets)) for label in labels]
    parts = [f"<h3>Class by class: {escape(classifier)}</h3>", table(("class", *map(_title, sets)), rows)]
    parts += [f"<h3>Confusion of {escape(classifier)}, trained on the synthetic data</h3>"]
    confusion = by_set["synthetic"]["confusion"]
    if len(labels) <= _MATRIX:
        parts += [paragraph("Test images, summed over the seeds. Rows: what they are.", "soft")]
        parts += [_matrix(labels, confusion)]
    else:
        parts += [table(("is", "is called", "share of its images"), _most_confused(labels, confusion))]
    return "\n".join(parts)


def _matrix(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> str:
    """The counts, each on a ground as strong as its share of its row."""
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in ("is \\ is called", *labels))
    body = ""
    for label, counts in zip(labels, confusion, strict=True):
        tints = [round(_STRONGEST * count / (sum(counts) or 1)) for count in counts]
        cells = "".join(f"<td{_tint(tint)}>{count:,}</td>" for count, tint in zip(counts, tints, strict=True))
        body += f"<tr><td>{escape(label)}</td>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _tint(strength: int) -> str:
    colour = f"color-mix(in srgb, var(--accent) {strength}%, transparent)"
    return f' style="background-image: linear-gradient({colour}, {colour})"' if strength else ""


def _most_confused(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[tuple[str, str, str]]:
    shares = [
        (count / sum(counts), labels[i], labels[j])
        for i, counts in enumerate(confusion)
        for j, count in enumerate(counts)
        if count and i != j
    ]
    worst = sorted(shares, key=lambda each: -each[0])[:_WORST]
    return [(true, called, _share(share)) for share, true, called in worst]


def _fidelity(metrics: Metrics) -> str:
    """A table for each embedding."""
    fidelity = metrics.get("fidelity") or {}
    if not fidelity:
        return ""
    parts = [
        paragraph(
            "Against the real reference images. Fréchet and kernel distance: 0 is alike. Precision and density: how "
            "real the samples look. Recall and coverage: how much of the real data they cover.",
            "soft",
        )
    ]
    for name, found in fidelity.items():
        every = {"synthetic": found, **(found.get("controls") or {})}
        scored = any("inception_score" in each for each in every.values())
        head = ("", *_distance_names(found), "precision", "recall", "density", "coverage")
        rows = [(_title(key), *_distances(each), *([_score(each)] if scored else [])) for key, each in every.items()]
        parts += [f"<h3>Under {escape(name)}</h3>", table((*head, *(["Inception Score"] if scored else [])), rows)]
    return section("Fidelity", *parts)


def _distance_names(found: Metrics) -> tuple[str, str]:
    return ("FID", "KID") if found.get("standard_inception") is True else ("Fréchet", "kernel")


def _distances(found: Metrics) -> list[str]:
    kernel = found.get("kernel") or {}
    error = "" if kernel.get("standard_error") is None else f" ± {kernel['standard_error']:.2g}"
    cells = [_plain(found.get("frechet")), "–" if kernel.get("mean") is None else f"{kernel['mean']:.4g}{error}"]
    return cells + [_three(found.get(key)) for key in ("precision", "recall", "density", "coverage")]


def _score(found: Metrics) -> str:
    score = found.get("inception_score")
    return "–" if score is None else f"{score['mean']:.3g} ± {score['std']:.2g}"


def _semantics(metrics: Metrics) -> str:
    found = metrics.get("semantics")
    if not found:
        return ""
    rows = [
        ("synthetic with real", _plain(found.get("sds"))),
        ("real with itself", _plain(found.get("sds_real_with_itself"))),
    ]
    return section("Semantics", table(("semantic similarity (SDS)", ""), rows))


def _title(name: str) -> str:
    return _SETS[name][0] if name in _SETS else name


def _spread(accuracy: Metrics) -> str:
    deviation = accuracy.get("std")
    return _share(accuracy["mean"]) + (f" ± {deviation:.1%}" if deviation is not None else "")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"
