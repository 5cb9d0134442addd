"""What the reports are made of, and what they are not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hatchling.builders.wheel import WheelBuilder
from jinja2 import UndefinedError

import pe
from pe.cli.share import report
from pe.cli.watch import compare
from pe.engine.execution import Surroundings
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.errors import RunError
from pe.privacy.certificate import verify
from pe.report.compare import compare as side_by_side
from pe.report.compare import comparison_page
from pe.report.page import chart, environment, prose, render, ticks
from pe.report.sections import generations, promise, public_plan
from pe.store.run import Run
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
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


def test_it_tells_how_many_samples_differ_where_some_are_copies(tmp_path: Path) -> None:
    images = np.repeat(np.arange(6, dtype=np.uint8) * 40, 16).reshape(6, 4, 4, 1)
    np.savez(tmp_path / "pool.npz", images=images)
    np.savez(tmp_path / "private.npz", images=images + 1, labels=["cat"] * 3 + ["dog"] * 3)
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=("cat", "dog"))
    pool = pe.api("public_images", path=str(tmp_path / "pool.npz"), channels=1)

    def page_of(population: int, iterations: int) -> str:
        settings = {"noise_multiplier": 1.0, "delta": 1e-5, "degree": 0, "lookahead": 0, "pool_overlaps": "declared"}
        out = tmp_path / f"run-{population}"
        settings |= {"population": population, "iterations": iterations}
        pe.evolve(data, pool, out=out, **settings)
        return write_report(out).read_text()

    assert "are left if equal ones of a label are counted once" not in page_of(12, 0)
    page = page_of(20, 1)
    assert page.count('<figure class="chart">') == 1  # the others would show one point of one iteration
    rows = re.findall(r"<td[^>]*>(cat|dog)</td>\s*<td[^>]*>10</td>\s*<td[^>]*>([1-6])</td>", page)  # S_1's
    assert [label for label, _ in rows] == ["cat", "dog"]
    assert re.search(
        rf"{sum(int(different) for _, different in rows)} are left if equal ones of a label are counted once", page
    )


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
    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
    pages = [write_report(run.folder, confidential=confidential).read_text() for confidential in (False, True)]
    for page in (*pages, comparison_page(side_by_side([run, run]))):
        assert evil not in page
        assert "onerror=alert" not in page.replace("onerror=alert(1)&gt;", "")


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    with pytest.raises(pe.PEError):
        make_run(tmp_path, max_images=150)
    page = write_report(tmp_path / "run").read_text()
    assert "This run is not finished" in page
    assert "No guarantee can be stated" in page


def test_a_run_without_iterations_has_a_report(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path, iterations=0, degree=0.5).folder).read_text()
    assert "Straight from the generator" in page
    assert "was fitted" not in page
    _check_it_speaks_of_no_iteration(page)


def test_a_fitted_generator_without_iterations_is_said_to_be_fitted(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=60)
    api = pe.api("dp_merf", features=20, steps=2, batch=4)
    run = pe.evolve(data, api, out=tmp_path / "run", population=10, iterations=0, epsilon=2, delta=1e-5)
    page = write_report(run.folder).read_text()
    assert "The generator was fitted on the private records" in page
    assert "noised release fit/mean_features" in page
    assert "From the fitted generator" in page
    assert "straight from the generator" not in page.lower()
    _check_it_speaks_of_no_iteration(page)


def _check_it_speaks_of_no_iteration(page: str) -> None:
    page = re.sub('base64,[^"]*', "", page)
    assert not any(words in page for words in ("0 of 0", 'id="iteration"', "S0", "How it evolved", "Founders left"))


def test_an_extension_is_counted_and_shown(run: Path) -> None:
    assert "Added later" not in write_report(run).read_text()
    for count in (100, 7):
        extend_run(run, count, 0.3, Surroundings(api=Shades(), embedding=Mean()))
    page = write_report(run).read_text()
    assert "<b>147</b><span>synthetic images</span>" in page
    assert "<code>pe extend</code> added 107 samples" in page
    assert all(f'alt="Synthetic samples of label {label} in extension 1"' in page for label in "ab")
    assert 'alt="Synthetic samples of label a in extension 2"' in page
    rows = dict(side_by_side([Run.open(run), Run.open(run)]).public)
    assert rows["synthetic samples"] == ("40 + 107 added",) * 2


def test_no_image_has_both_most_and_fewest_votes(tmp_path: Path) -> None:
    folder = make_run(tmp_path, population=14, iterations=1, degree=0.5).folder
    page = write_report(folder).read_text()
    widths = re.findall(r'alt="Samples with (most|fewest) noisy votes" width="(\d+)"', page)
    assert widths == [("most", str(7 * 48 + 6 * 2)), ("fewest", str(7 * 48 + 6 * 2))]


def test_epsilon_and_delta_are_put_into_words_that_are_true(run: Path) -> None:
    page = write_report(run).read_text()
    assert "at most e<sup>ε</sup> times what it would be in the neighbouring world" in page
    assert "with probability at least" not in page
    header = page[page.index("<header>") : page.index("</header>")]
    assert "at most 7.39 times" in header
    assert ", plus 1e-05." in header
    assert "add_remove" not in header
    assert "When it ended, this was the only recorded run over the data set:" in page
    assert "When it ended, this was the only recorded run over this data: ε" in Run.open(run).certificate


@pytest.mark.parametrize(
    ("relation", "world"),
    [("add_remove", "had never been"), ("replace_one", "had been another"), ("zero_out", "had been blank")],
)
def test_the_promise_names_the_world_that_is_compared(run: Path, relation: str, world: str) -> None:
    guarantee = Run.open(run).guarantee | {"relation": {"name": relation}, "unit": {"name": "patient"}}
    assert re.search(rf"any one patient .*{world}", promise(guarantee))
    assert "e^ε times" in promise(guarantee | {"epsilon": 800.0})
    assert promise(guarantee | {"holds": False, "statement": "NO GUARANTEE."}) == "NO GUARANTEE."


def test_backticks_are_code_and_escape_first() -> None:
    assert prose("`a<b` and e^ε") == "<code>a&lt;b</code> and e<sup>ε</sup>"


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
    assert found[0].unchanged == np.count_nonzero(distances == 0)


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


@pytest.mark.parametrize(("low", "high"), [(1, 2), (1, 3), (1, 1), (0, 40)])
def test_iterations_are_counted_by_whole_numbers(low: int, high: int) -> None:
    shown = chart([("", range(low, high + 1), [0.5] * (high - low + 1))])
    assert all(value.is_integer() for _, value in shown.x_ticks)
    assert not all(value.is_integer() for _, value in shown.y_ticks)


def test_a_page_without_a_value_that_it_names_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'names' is undefined"):
        render("comparison.html", {"public": [], "internal": [], "sheets": []})


def test_all_of_the_packages_is_in_the_wheel() -> None:
    root = Path(__file__).parents[2]
    packed = {file.distribution_path for file in WheelBuilder(str(root)).recurse_included_files()}
    found = (path for package in ("pe", "adapters", "embeddings") for path in (root / package).rglob("*"))
    files = {str(path.relative_to(root)) for path in found if path.is_file() and "__pycache__" not in path.parts}
    assert len([name for name in files if name.startswith("pe/report/templates/")]) >= 9
    assert files <= packed


def test_a_chart_escapes_its_words() -> None:
    lines = [("<x>", [0, 1], [2, 3]), ("y", [0, 1], [2, 3])]
    svg = environment().get_template("parts.html").module.chart("a < b", lines, "&", '"')
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
    many = ["a cat"] * 1000
    recipe["api"] |= {"max_chunk": 3, "prompts": many}
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    accurate = {"version": 1, "utility": {"mlp": {"synthetic": {"accuracy": {"mean": 0.75, "std": 0.0}}}}}
    test = {"source": "npz", "path": "a.npz", "images": 1998, "sha256": "1a", "left_out": 2}
    metrics = accurate | {"test": test}
    (run / "confidential" / "metrics.json").write_text(json.dumps(metrics))
    page = tmp_path / "page.html"
    result = CliRunner().invoke(compare, [str(run), str(other), "--out", str(page)], catch_exceptions=False)
    lines = {line[:40].strip(): line for line in result.output.splitlines()}
    degree = next(line for line in result.output.splitlines() if line.startswith("evolution.degree"))
    assert "0.5, 0.3, 0.1" in degree
    assert degree.endswith("0.25")
    prompts = next(line for line in result.output.splitlines() if line.startswith("api.prompts"))
    assert prompts.endswith("… (1,000 in all)")
    assert not any(line.startswith(("evolution.iterations", "evolution.lookahead")) for line in lines)  # are equal
    accuracy = next(line for line in result.output.splitlines() if "accuracy, mlp" in line)
    assert accuracy.startswith("internal, not for sharing")
    assert "75.0%" in accuracy
    assert lines
    text = page.read_text()
    assert "Confidential" in text
    assert text.index("<h3>Internal, not for sharing</h3>") < text.index("<td>accuracy, mlp</td>")
    assert "internal, not for sharing:" not in text
    printed = json.loads(CliRunner().invoke(compare, [str(run), str(other), "--json"], catch_exceptions=False).output)
    assert printed["runs"] == ["run", "other"]
    degrees = [[0.5, 0.3, 0.1], 0.25]
    assert printed["settings"] == {
        "api.max_chunk": [None, 3], "api.prompts": [None, many], "evolution.degree": degrees
    }  # fmt: skip
    assert printed["public"]["generator"][0] == printed["public"]["generator"][1]
    here = "1,998 images of a.npz (2 left out)"
    assert printed["internal"] == {"test set": [here, "–"], "accuracy, mlp": ["75.0% ± 0.0%", "–"]}
    assert printed["warnings"] == []
    for sets, told in (
        ({"test": test | {"path": "elsewhere.npz"}}, ""),
        ({"test": test, "reference": test | {"sha256": "2b"}}, "The reference images differ, so the fidelity of"),
        ({"test": test | {"sha256": "2b"}}, "The test images differ, so the internal numbers of these runs cannot be"),
    ):
        (other / "confidential" / "metrics.json").write_text(json.dumps(accurate | sets))
        result = CliRunner().invoke(compare, [str(run), str(other), "--out", str(page)], catch_exceptions=False)
        assert ("warning: " in result.stderr) == bool(told)
        assert told in result.stderr
        assert told in page.read_text()
    with pytest.raises(RunError, match="at least two runs"):
        CliRunner().invoke(compare, [str(run)], catch_exceptions=False)
