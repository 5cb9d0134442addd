"""The owner's page shows what `pe evaluate` wrote, whatever part of it there is."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

from pe.engine.report import write_report
from pe.evaluation.evaluate import evaluate_run
from pe.evaluation.sets import Request
from pe.progress import Progress
from pe.report.compare import compare
from pe.report.page import render
from pe.report.sections import headline_numbers, quality
from pe.store.run import Run
from tests.generators import Mean, Shades

NOWHERE = SimpleNamespace(folder=Path("nowhere"), confidential=Path("nowhere/confidential"))


@pytest.fixture
def evaluated(run: Path, tmp_path: Path) -> tuple[Path, dict]:
    """A run, evaluated on images of its own kind, and its metrics."""
    rng, labels = np.random.default_rng(8), np.arange(40) % 2
    shades = rng.integers(0, 40, 40) + 200 * labels
    pixels = np.broadcast_to(shades[:, None, None, None], (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "test.npz", images=pixels, labels=np.array(["a", "b"])[labels])
    request = Request(str(tmp_path / "test.npz"), seeds=2, one_vote=True, api=Shades(), embedding=Mean())
    return run, evaluate_run(Run.open(run), request, Progress(), Event())


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_every_part_of_a_real_evaluation_is_on_the_page(evaluated: tuple[Path, dict]) -> None:
    run, metrics = evaluated
    page = write_report(run, confidential=True).read_text(encoding="utf-8")
    text = words(page)
    for name in ("synthetic", "un-evolved", "random selection", "one vote", "real"):
        assert len(re.findall(rf"<td>{name}</td>", page)) >= 2  # a row of utility, one of fidelity
    assert unescape(text).index(metrics["verdict"]["sentence"]) < text.index("Utility: train on synthetic")
    for row in [found["synthetic"] for found in metrics["utility"].values()]:
        assert f"{row['accuracy']['mean']:.1%} ± {row['accuracy']['std']:.1%}" in text
    assert f"Confusion of {metrics['verdict']['classifier']}, trained on the synthetic data" in text
    assert f"{metrics['fidelity']['Mean']['frechet']:,.4g}" in text
    assert f"AUC of {metrics['memorisation']['membership']['auc']:.3f}" in text
    assert page.count('<figure class="chart">') == 2
    assert 'alt="Synthetic images, each beside its nearest private record"' in page
    assert all(note in unescape(page) for note in metrics["notes"])


def test_a_comparison_has_the_numbers_of_the_synthetic_data(evaluated: tuple[Path, dict]) -> None:
    run, metrics = evaluated
    found = compare([Run.open(run), Run.open(run)])
    rows = dict(found.rows)
    assert [name for name, _ in found.internal][-1] == "membership AUC"
    auc = f"{metrics['memorisation']['membership']['auc']:.3f}"
    assert rows["internal, not for sharing: membership AUC"] == (auc, auc)
    assert "internal, not for sharing: Fréchet, Mean" in rows
    evolving = metrics["verdict"]["evolving"].replace("_", " ")
    assert rows["internal, not for sharing: did evolving beat one vote"] == (evolving, evolving)


@pytest.mark.parametrize("standard", [True, False])
def test_distances_are_called_fid_and_kid_under_standard_inception_alone(standard: bool) -> None:
    found = {"frechet": 3.0, "kernel": {"mean": 0.1, "standard_error": None}, "standard_inception": standard}
    metrics = {"fidelity": {"inception": found}}
    text = words(render("quality.html", quality(NOWHERE, metrics)))
    assert ("FID" in text, "KID" in text) == (standard, standard)
    assert headline_numbers(metrics) == [("FID, inception" if standard else "Fréchet, inception", "3")]


def test_many_classes_have_a_list_of_confusions_in_place_of_a_matrix() -> None:
    labels = [f"class {i}" for i in range(100)]
    confusion = 30 * np.eye(100, dtype=int)
    confusion[7, 9] = 10
    one = {"accuracy": {"mean": 0.99, "std": None}, "per_class": dict.fromkeys(labels, 0.9)}
    metrics = {
        "utility": {"mlp": {"synthetic": one | {"confusion": confusion.tolist()}}},
        "chosen_classifier": {"synthetic": "mlp"},
    }
    page = render("quality.html", quality(NOWHERE, metrics))
    assert "<td>class 7</td><td>class 9</td><td>25.0%</td>" in page
    assert len(page) < 20_000


def test_the_classifier_of_the_verdict_has_the_tile_the_classes_and_the_confusion() -> None:
    def one(accuracy: float) -> dict:
        per_class = {"cat": accuracy, "dog": accuracy}
        return {"accuracy": {"mean": accuracy, "std": None}, "per_class": per_class, "confusion": [[7, 3], [3, 7]]}

    verdict = {"sentence": "The votes helped.", "classifier": "probe", "collapsed": ["The class 'dog' collapsed."]}
    metrics = {
        "verdict": verdict | {"outcome": "helped", "remedies": []},
        "utility": {"mlp": {"synthetic": one(0.875)}, "probe": {"synthetic": one(0.75)}},
        "chosen_classifier": {"synthetic": "mlp"},
    }
    page = words(render("quality.html", quality(NOWHERE, metrics)))
    assert "75.0% accuracy of probe, trained on synthetic" in page
    assert "Class by class: probe" in page
    assert "Confusion of probe" in page
    assert page.count("87.5%") == 1  # in the table of all classifiers
    assert "The class &#39;dog&#39; collapsed." in page


@pytest.mark.parametrize(
    ("low", "high", "meaning"),
    [(0.48, 0.53, "finds nothing"), (0.6, 0.7, "No certificate bounds"), (0.3, 0.4, "one source")],
)
def test_the_membership_test_is_put_into_words(low: float, high: float, meaning: str) -> None:
    member = {"auc": (low + high) / 2, "low": low, "high": high, "level": 0.95}
    metrics = {"memorisation": {"embedding": "pixels", "membership": member}}
    assert meaning in render("quality.html", quality(NOWHERE, metrics))


@pytest.mark.parametrize("sign", ["\x1b", "\x00", "\x9b", "\x7f"])
def test_no_page_holds_a_control_character(sign: str) -> None:
    verdict = {"sentence": f"a{sign}[31m <b>\n", "collapsed": [], "remedies": []}
    page = render("quality.html", quality(NOWHERE, {"verdict": verdict}))
    assert f"a\\x{ord(sign):02x}[31m &lt;b&gt;\n" in page
    assert sign not in page


@pytest.mark.parametrize("allowed", [{"epsilon": 1.0, "delta": 1e-5, "by_epsilon": 0.272, "tpr": 0.16}, None])
def test_the_attack_on_a_fitted_model_is_put_into_words(allowed: dict | None) -> None:
    hits = {"share": 0.123, "low": 0.09, "high": 0.16, "level": 0.95}
    auc = {"auc": 0.52, "low": 0.48, "high": 0.56, "level": 0.95}
    by_loss = {"model": "dpdm", "each": 400, "fpr": 0.1, "tpr": hits, "auc": auc, "allowed": allowed, "warnings": []}
    text = words(render("quality.html", quality(NOWHERE, {"memorisation": {"membership_by_loss": by_loss}})))
    assert "(dpdm) has a small loss on finds 12.3% of 400 private records (95% interval 9.0% to 16.0%)" in text
    assert ("ε = 1, allows 16.0%" in text) == (allowed is not None)


def test_an_evaluation_without_anything_but_notes_is_a_page(run: Path) -> None:
    (run / "confidential" / "metrics.json").write_text(json.dumps({"version": 1, "notes": ["Nothing fits."]}))
    assert "Nothing fits." in write_report(run, confidential=True).read_text(encoding="utf-8")
