"""The owner's page shows what `pe evaluate` wrote, whatever part of it there is."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from pe.engine.report import write_report
from pe.errors import RunError
from pe.report.compare import compare
from pe.report.pages import headline_numbers, quality
from pe.report.render import render
from pe.store.run import Run
from tests.evaluation.conftest import evaluate
from tests.generators import Mean

NOWHERE = Run(Path("nowhere"))


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def page_of(**metrics):
    return render("quality.html", quality(NOWHERE, metrics))


def test_every_part_of_a_real_evaluation_is_on_the_page_and_its_numbers_in_a_comparison(
    run, tmp_path
):
    pixels = np.random.default_rng(1).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "test.npz", images=pixels, labels=np.array(["a", "b"] * 20))
    given = {"embedding": Mean(), "metrics": None, "seeds": 2, "one_vote": True}
    metrics = evaluate(Run.open(run), tmp_path / "test.npz", **given)
    page = write_report(run, confidential=True).read_text(encoding="utf-8")
    text, auc = words(page), f"{metrics['memorisation']['membership']['auc']:.3f}"
    for name in ("synthetic", "un-evolved", "one vote", "real"):
        assert len(re.findall(rf"<td>{name}</td>", page)) == 2  # of training and of fidelity
    judgement = metrics["judgement"]
    shown = unescape(text)
    for name, sentences in judgement["lines"]:
        assert f"{name} {sentences}" in shown
    assert shown.index(judgement["next"]) < shown.index("Training: classifiers trained on")
    one = judgement["trained"]["synthetic"]
    place = "{score:.1f} ({low:.1f} to {high:.1f})".format(**one["place"])
    assert f"{place} {one['place']['value']:.3f} {one['accuracy']:.1%}" in text
    assert metrics["memorisation"]["nearer"]["sentence"] in shown
    assert f"{metrics['fidelity']['Mean']['frechet']:,.4g}" in text
    assert f"AUC of {auc}" in text
    assert page.count('<figure class="chart">') == 2
    assert 'alt="Synthetic images, each beside its nearest private record"' in page
    assert all(note in unescape(page) for note in metrics["notes"])
    rows = dict(compare([Run.open(run), Run.open(run)]).rows)
    assert rows["internal, not for sharing: membership AUC"] == (auc, auc)
    assert rows["internal, not for sharing: for training, of 10"] == (place, place)
    brought = "{score:+.1f} ({low:+.1f} to {high:+.1f})".format(**judgement["brought"]["one_vote"])
    assert rows["internal, not for sharing: gained over one vote"] == (brought, brought)


@pytest.mark.parametrize("standard", [True, False])
def test_distances_are_called_fid_and_kid_under_standard_inception_alone(standard):
    found = {
        "frechet": 3.0,
        "kernel": {"mean": 0.1, "standard_error": None},
        "standard_inception": standard,
    }
    metrics = {"fidelity": {"inception": found}}
    text = words(page_of(**metrics))
    assert ("FID" in text, "KID" in text) == (standard, standard)
    assert list(headline_numbers(metrics).items()) == [
        ("FID, inception" if standard else "Fréchet, inception", "3")
    ]


@pytest.mark.parametrize(
    ("low", "high", "meaning"),
    [(0.48, 0.53, "finds nothing"), (0.6, 0.7, "No certificate bounds"), (0.3, 0.4, "one source")],
)
def test_the_membership_test_is_put_into_words(low, high, meaning):
    member = {"auc": (low + high) / 2, "low": low, "high": high, "level": 0.95}
    assert meaning in page_of(memorisation={"embedding": "pixels", "membership": member})


@pytest.mark.parametrize(
    "allowed", [{"epsilon": 1.0, "delta": 1e-5, "by_epsilon": 0.272, "tpr": 0.16}, None]
)
def test_the_attack_on_a_fitted_model_is_put_into_words(allowed):
    hits = {"share": 0.123, "low": 0.09, "high": 0.16, "level": 0.95}
    auc = {"auc": 0.52, "low": 0.48, "high": 0.56, "level": 0.95}
    by_loss = {
        "model": "dpdm",
        "each": 400,
        "fpr": 0.1,
        "tpr": hits,
        "auc": auc,
        "allowed": allowed,
        "warnings": [],
    }
    text = words(page_of(memorisation={"membership_by_loss": by_loss}))
    assert (
        "(dpdm) for private ones finds 12.3% of 400 private records (95% interval 9.0% to 16.0%)"
        in text
    )
    assert ("ε = 1, allows 16.0%" in text) == (allowed is not None)


def test_no_page_holds_a_control_character():
    odd = "a\x1b[31m \x00\x9b\x7f <b>\n"
    page = page_of(judgement={"lines": [["summary", odd]], "next": odd, "more": [odd]})
    assert "a\\x1b[31m \\x00\\x9b\\x7f &lt;b&gt;\n" in page
    assert not {"\x1b", "\x00", "\x9b", "\x7f"} & set(page)


def test_metrics_are_read_whole_or_refused_and_name_pictures_of_the_confidential_side_alone(run):
    def told(content):
        (run / "confidential" / "metrics.json").write_text(content)
        return write_report(run, confidential=True).read_text(encoding="utf-8")

    for damaged, sentence in (
        ("{", r"is not JSON: run `pe evaluate` again"),
        ('{"version": 1, "grade": {}}', "has version 1, not 2: run `pe evaluate` again"),
        ('{"version": 9}', "has version 9"),
    ):
        with pytest.raises(RunError, match=sentence):
            told(damaged)
    assert "Nothing fits." in told(json.dumps({"version": 2, "notes": ["Nothing fits."]}))
    (run.parent / "secret.png").write_bytes((run / "evolution.png").read_bytes())
    memorisation = {"embedding": "pixels", "nearest_pairs": {"files": ["../secret.png"]}}
    assert "Nearest pairs" not in told(json.dumps({"version": 2, "memorisation": memorisation}))
