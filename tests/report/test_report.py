"""What the reports are made of, and what they are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import pe
from pe.cli.compare import compare
from pe.cli.report import report
from pe.engine.report import write_report
from pe.errors import RunError
from pe.privacy.verify import verify
from pe.report.charts import Line, line_chart, ticks
from pe.report.diagnostics import generations, public_plan
from pe.run.directory import Run
from tests.report.conftest import make_run


def test_it_is_made_without_the_confidential_side_and_is_the_same(run: Path) -> None:
    whole = write_report(run).read_bytes()
    shutil.rmtree(run / "confidential")
    assert write_report(run).read_bytes() == whole
    with pytest.raises(RunError, match="no confidential side"):
        write_report(run, confidential=True)


def test_it_is_covered_by_the_certificate_and_exported(run: Path, tmp_path: Path) -> None:
    write_report(run)
    write_report(run)
    certificate = Run.open(run).guarantee
    assert "report.html" in {one["file"] for one in certificate["covered"]}
    assert not verify(certificate, run)
    Run.open(run).export(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_bytes() == (run / "report.html").read_bytes()
    (run / "report.html").write_text("changed")
    assert any("report.html" in problem for problem in verify(Run.open(run).guarantee, run))


def test_the_confidential_page_stays_where_it_is(run: Path, tmp_path: Path) -> None:
    path = write_report(run, confidential=True)
    assert path == run / "confidential" / "report.html"
    assert "Not measured yet" in path.read_text()
    Run.open(run).export(tmp_path / "out")
    assert not list((tmp_path / "out").rglob("report.html"))


def test_it_holds_no_time_and_nothing_of_the_journal(run: Path) -> None:
    page = write_report(run).read_text()
    internal = write_report(run, confidential=True).read_text()
    assert "seconds asked" in internal
    assert "started: 20" in internal
    assert not any(word in page for word in ("seconds", "started", str(run)))


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b < c"])
def test_no_name_becomes_markup(tmp_path: Path, evil: str) -> None:
    images = np.random.default_rng(0).integers(0, 255, (20, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array([evil, "b"] * 10))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=[evil, "b"])
    settings = {"population": 8, "iterations": 1, "lookahead": 0, "noise_multiplier": 1, "delta": 1e-5}
    from tests.generators import Mean, Shades

    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
    for confidential in (False, True):
        page = write_report(run.folder, confidential=confidential).read_text()
        assert evil not in page
        assert "onerror=alert" not in page.replace("onerror=alert(1)&gt;", "")


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    with pytest.raises(pe.PEError):
        make_run(tmp_path, max_images=150)
    page = write_report(tmp_path / "run").read_text()
    assert "This run is not finished" in page
    assert "No guarantee can be stated" in page


def test_a_run_without_iterations_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path, iterations=0, degree=0.5).folder
    assert "S0, straight from the generator" in write_report(folder).read_text()


def test_the_diagnostics_are_those_of_the_stored_votes_and_parents(run: Path) -> None:
    opened = Run.open(run)
    recipe, plan = public_plan(opened)
    found = generations(opened, recipe, plan)
    assert [one.t for one in found] == [1, 2, 3]
    votes = np.load(run / "releases" / "histogram-1.npy") / plan.steps[0].release.grid
    np.testing.assert_allclose(found[0].votes, votes)
    weights = np.maximum(votes - plan.steps[0].threshold, 0)
    assert found[0].effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert found[0].passing == pytest.approx(np.mean(votes > plan.steps[0].threshold))
    parents = [np.load(run / "populations" / f"{t:03d}" / "parents.npy") for t in (1, 2, 3)]
    assert found[0].parents == found[0].founders == len(set(parents[0]))
    assert found[2].founders == len({parents[0][parents[1][parent]] for parent in parents[2]})
    before, after = (np.load(run / "populations" / f"{t:03d}" / "images.npy").astype(float) for t in (0, 1))
    distances = np.sqrt(((after - before[parents[0]]) ** 2).mean(axis=(1, 2, 3)))
    assert found[0].moved == pytest.approx(distances.mean(), rel=1e-5)


def test_damaged_metrics_are_one_sentence(run: Path) -> None:
    (run / "confidential" / "metrics.json").write_text("{")
    with pytest.raises(RunError, match=r"is not JSON: run `pe evaluate` again"):
        write_report(run, confidential=True)
    (run / "confidential" / "metrics.json").write_text('{"version": 9}')
    with pytest.raises(RunError, match="has version 9"):
        write_report(run, confidential=True)


def test_a_picture_named_in_the_metrics_cannot_lie_elsewhere(run: Path) -> None:
    (run.parent / "secret.png").write_bytes((run / "evolution.png").read_bytes())
    metrics = {"version": 1, "memorisation": {"embedding": "pixels", "nearest_pairs": {"files": ["../secret.png"]}}}
    (run / "confidential" / "metrics.json").write_text(json.dumps(metrics))
    assert "Nearest pairs" not in write_report(run, confidential=True).read_text()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 17), (5, 5), (0.001, 0.0012), (-1e6, 1e7)])
def test_axes_span_what_they_show_with_round_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 12


def test_a_chart_escapes_its_words() -> None:
    svg = line_chart("a < b", [Line("<x>", [0, 1], [2, 3]), Line("y", [0, 1], [2, 3])], "&", '"')
    assert "<x>" not in svg
    assert 'aria-label="a &lt; b"' in svg


def test_the_commands_say_where_the_page_is(run: Path) -> None:
    result = CliRunner().invoke(report, [str(run)], catch_exceptions=False)
    assert result.output.strip() == str(run / "report.html")


def test_runs_are_compared_in_a_table_and_on_a_page(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["evolution"]["degree"] = 0.25
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    metrics = {"version": 1, "utility": {"mlp": {"synthetic": {"accuracy": {"mean": 0.75, "std": 0.0}}}}}
    (run / "confidential" / "metrics.json").write_text(json.dumps(metrics))
    page = tmp_path / "page.html"
    result = CliRunner().invoke(compare, [str(run), str(other), "--out", str(page)], catch_exceptions=False)
    lines = {line[:40].strip(): line for line in result.output.splitlines()}
    degree = next(line for line in result.output.splitlines() if line.startswith("degree"))
    assert "0.5, 0.3, 0.1" in degree
    assert degree.endswith("0.25")
    accuracy = next(line for line in result.output.splitlines() if "accuracy, mlp" in line)
    assert accuracy.startswith("internal, not for sharing")
    assert "75.0%" in accuracy
    assert lines
    assert "Confidential" in page.read_text()
    with pytest.raises(RunError, match="at least two runs"):
        CliRunner().invoke(compare, [str(run)], catch_exceptions=False)
