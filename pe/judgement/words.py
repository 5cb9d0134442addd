"""The judgement in words, and as values for metrics.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from pe.judgement.judge import ENOUGH, NAMED, POOR, PRIVATE, SYNTHETIC, Judgement
from pe.judgement.labelled import Values
from pe.judgement.resemble import SURE, Noticed
from pe.judgement.scale import LEVEL


def lines(judgement: Judgement, words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (purpose, sentences) for each purpose.

    Args:
        judgement: the judgement.
        words: control → words for it, within a sentence.
    """
    found = {
        "summary": in_one_line(judgement),
        "train": _train_line(judgement),
        "brought": _brought_line(judgement, words),
        "analyse": _analyse_line(judgement),
        "show": _show_line(judgement),
        "variety": _variety_line(judgement),
    }
    return [(name, sentence) for name, sentence in found.items() if sentence]


def in_one_line(judgement: Judgement) -> str:
    """Return the judgement in one line: what the data are good for, and what not."""
    parts = []
    train = judgement.train
    if train is not None:
        parts.append(f"{_fit(train.score)} for training ({train.score:.1f} of 10).")
    if judgement.analyse is not None:
        parts.append(f"{_fit(judgement.analyse)} for statistics ({judgement.analyse:.1f} of 10).")
    if judgement.shown is not None:
        seen = _needed(judgement.shown.noticed, judgement.noun)
        parts.append(f"A classifier needs {seen} to tell that they are synthetic.")
    return " ".join(parts)


def _fit(score: float) -> str:
    return "Good" if score >= ENOUGH else "Of little use" if score < POOR else "Of limited use"


def _needed(noticed: Noticed, noun: str) -> str:
    if noticed.after is None:
        return f"more than 1,000 {noun}"
    return f"one {noun.removesuffix('s')}" if noticed.after == 1 else f"{noticed.after:,} {noun}"


def _train_line(judgement: Judgement) -> str:
    place = judgement.train
    if place is None:
        return ""
    ours, real = (judgement.trained[name] for name in (SYNTHETIC, PRIVATE))
    classes = len(ours.recalls)
    guess = 0.5 if judgement.measure == "AUC" else 1 / classes
    form = ".3f" if judgement.measure == "AUC" else ".1%"
    values = [f"{value:{form}}" for value in (place.value, real.place.value, guess)]
    return (
        f"{place.score:.1f} of 10 ({LEVEL:.0%} interval {place.low:.1f} to {place.high:.1f}). On "
        f"real test {judgement.noun}, a classifier trained on these data reaches "
        f"{'an' if judgement.measure == 'AUC' else 'a'} {judgement.measure} of {values[0]}; "
        f"trained on the private records, {values[1]}; by guessing, {values[2]}."
    )


def _brought_line(judgement: Judgement, words: Mapping[str, str]) -> str:
    parts = [
        f"{one.score:+.1f} ({one.low:+.1f} to {one.high:+.1f}) over {words.get(name, name)}"
        for name, one in judgement.brought.items()
    ]
    return f"Points gained for training: {', '.join(parts)}." if parts else ""


def _analyse_line(judgement: Judgement) -> str:
    if judgement.analyse is None:
        return ""
    lost = [one for one in (*judgement.pairs, *judgement.columns) if one.score < ENOUGH]
    lost.sort(key=lambda one: one.score)
    sentences = [f"{judgement.analyse:.1f} of 10, the score of the worst column or pair."]
    if lost:
        named = "; ".join(map(str, lost[:NAMED]))
        sentences.append(
            "Lost or wrong is what models predict on real rows after learning from these rows, not "
            f"from the private ones: {named}."
        )
    far = [one for one in judgement.means if one.apart > 0.2][:NAMED]
    if far:
        named = ", ".join(f"{one.column} {one.ours:.3g} (real: {one.real:.3g})" for one in far)
        sentences.append(f"Wrong means: {named}.")
    return " ".join(sentences)


def _show_line(judgement: Judgement) -> str:
    shown = judgement.shown
    if shown is None:
        return ""
    one = shown.noticed
    noun = judgement.noun
    sentences = [
        f"To tell in {SURE:.0%} of cases whether {noun} are synthetic or real, a classifier needs "
        f"{_needed(one, noun)}. Its AUC for a single {noun.removesuffix('s')} is "
        f"{one.area:.2f} (between two real sets: {one.between_real:.2f})."
    ]
    if one.features:
        named = ", ".join(name for name, _ in one.features)
        sentences.append(f"What gives the data away: {named}.")
    sentences.append(
        f"{shown.coverage:.0%} of the private records have a synthetic one near; with as many "
        f"held-out real {noun}, {shown.real_coverage:.0%} have."
    )
    return " ".join(sentences)


def _variety_line(judgement: Judgement) -> str:
    one = judgement.variety
    if one is None:
        return ""
    return (
        f"{one.score:.1f} of 10. They are as varied as {one.ours:,.0f} distinct {judgement.noun}; "
        f"the same number of real ones, as {one.real:,.0f}."
    )


def to_dict(judgement: Judgement, words: Mapping[str, str]) -> Values:
    """Return the values as docs/evaluation.md has them."""
    # lists in place of tuples, as they are read again
    values: Values = json.loads(json.dumps(asdict(judgement)))
    values |= {
        "analyse": judgement.analyse,
        "lines": [list(one) for one in lines(judgement, words)],
    }
    values["columns"] = values["columns"][:20]
    values["pairs"] = values["pairs"][:20]
    return values
