"""What the reports are made of, and what they are not."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from jinja2 import UndefinedError

import pe
from pe.cli.view import view
from pe.engine.report import write_report
from pe.errors import RunError
from pe.privacy.certificate import verify
from pe.report.compare import compare as side_by_side
from pe.report.compare import comparison_page
from pe.report.pages import generations, public_plan
from pe.report.render import environment, prose, render
from pe.store.run import Run
from tests.generators import Mean, Shades
from tests.report.conftest import make_run, metrics_of


def test_it_is_made_without_the_confidential_side_and_is_the_same_and_holds_no_time(run, page):
    path = write_report(run, confidential=True)
    assert path == run / "confidential" / "report.html"
    internal = path.read_text()
    for told in ("seconds asked", "started: 20", "Not measured yet"):
        assert told in internal
    assert not any(word in page for word in ("seconds", "started", str(run)))
    shutil.rmtree(run / "confidential")
    assert write_report(run).read_text() == page
    with pytest.raises(RunError, match="no confidential side"):
        write_report(run, confidential=True)


def test_it_is_covered_by_the_certificate_and_exported_without_the_confidential_one(run, tmp_path):
    write_report(run, confidential=True)
    result = CliRunner().invoke(view, [str(run), "--write"], catch_exceptions=False)
    assert result.output.strip() == str(run / "report.html")
    write_report(run)
    certificate = Run.open(run).guarantee
    assert "report.html" in {one["file"] for one in certificate["covered"]}
    assert not verify(certificate, run)
    Run.open(run).export(tmp_path / "out")
    assert [path.read_bytes() for path in (tmp_path / "out").rglob("report.html")] == [
        (run / "report.html").read_bytes()
    ]
    (run / "report.html").write_text("changed")
    assert any("report.html" in problem for problem in verify(Run.open(run).guarantee, run))


def test_no_name_becomes_markup(tmp_path):
    evil = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b < c"]
    images = np.random.default_rng(0).integers(0, 255, (18, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(evil * 6))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=evil)
    settings = {
        "population": 9,
        "iterations": 1,
        "lookahead": 0,
        "noise_multiplier": 1,
        "delta": 1e-5,
    }
    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
    pages = [
        write_report(run.folder, confidential=confidential).read_text()
        for confidential in (False, True)
    ]
    for page in (*pages, comparison_page(side_by_side([run, run]))):
        assert not any(name in page for name in evil)
        assert "onerror=alert" not in page.replace("onerror=alert(1)&gt;", "")


@pytest.mark.parametrize("fitted", [False, True])
def test_a_run_without_iterations_speaks_of_none_and_says_whether_the_generator_was_fitted(
    tmp_path, fitted
):
    api = pe.api("dp_merf", features=20, steps=2, batch=4) if fitted else None
    folder = make_run(tmp_path, api, iterations=0, degree=0.5, lookahead=0, population=10).folder
    page = re.sub('base64,[^"]*', "", write_report(folder).read_text())
    for told in (
        "The generator was fitted on the private records",
        "noised release fit/mean_features",
    ):
        assert (told in page) == fitted
    assert ("From the fitted generator" if fitted else "Straight from the generator") in page
    assert ("straight from the generator" in page.lower()) == (not fitted)
    assert not any(
        words in page
        for words in ("0 of 0", 'id="iteration"', "S0", "How it evolved", "Founders left")
    )


def test_epsilon_and_delta_are_put_into_words_that_are_true(run, page):
    assert "at most e<sup>ε</sup> times what it would be in the neighbouring world" in page
    assert "with probability at least" not in page
    section = page[page.index("What it promises") :].partition("</section>")[0]
    section = " ".join(section.split())
    assert "at most 7.39 times" in section
    assert ", plus 1e-05." in section
    assert "add_remove" not in section
    assert (
        page.index("How it evolved")
        < page.index("What it promises")
        < page.index("The certificate")
    )
    assert "When it ended, this was the only recorded run over the data set:" in page
    assert (
        "When it ended, this was the only recorded run over this data: ε"
        in Run.open(run).certificate
    )


@pytest.mark.parametrize(
    ("relation", "world"),
    [
        ("add_remove", "had never been"),
        ("replace_one", "had been another"),
        ("zero_out", "had been blank"),
    ],
)
def test_the_promise_names_the_world_that_is_compared(made, relation, world):
    promise = environment().get_template("parts.html").module.promise
    guarantee = Run.open(made).guarantee | {
        "relation": {"name": relation},
        "unit": {"name": "patient"},
    }
    assert re.search(rf"any one patient .*{world}", promise(guarantee))
    assert "e<sup>ε</sup> times" in promise(guarantee | {"epsilon": 800.0})
    assert promise(guarantee | {"holds": False, "statement": "NO GUARANTEE."}) == "NO GUARANTEE."


def test_the_diagnostics_are_those_of_the_stored_votes_and_parents(made):
    run = Run.open(made)
    recipe, plan = public_plan(run)
    found = generations(run, recipe, plan)
    assert [one.t for one in found] == [1, 2, 3]
    votes = np.load(made / "releases" / "histogram-1.npy") / plan.steps[0].release.grid
    np.testing.assert_allclose(found[0].votes, votes)
    weights = np.maximum(votes - plan.steps[0].threshold, 0)
    assert found[0].effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert found[0].passing == pytest.approx(np.mean(votes > plan.steps[0].threshold))
    parents = [np.load(made / "populations" / f"{t:03d}" / "parents.npy") for t in (1, 2, 3)]
    assert found[0].parents == found[0].founders == len(set(parents[0]))
    assert found[2].founders == len({parents[0][parents[1][parent]] for parent in parents[2]})
    before, after = (
        np.load(made / "populations" / f"{t:03d}" / "images.npy").astype(float) for t in (0, 1)
    )
    distances = np.sqrt(((after - before[parents[0]]) ** 2).mean(axis=(1, 2, 3)))
    assert found[0].mean_move == pytest.approx(distances.mean(), rel=1e-5)
    assert found[0].equals == np.count_nonzero(distances == 0)


def test_templates_escape_what_they_are_given_and_miss_what_they_are_not():
    assert prose("`a<b` and e^ε") == "<code>a&lt;b</code> and e<sup>ε</sup>"
    lines = [("<x>", [0, 1], [2, 3]), ("y", [0, 1], [2, 3])]
    svg = environment().get_template("parts.html").module.chart("a < b", lines, "&", '"')
    assert "<x>" not in svg
    assert 'aria-label="a &lt; b"' in svg
    with pytest.raises(UndefinedError, match="'names' is undefined"):
        render("comparison.html", {"public": {}, "internal": {}, "sheets": []})


def test_runs_are_compared_in_a_table_and_on_a_page(run, tmp_path):
    other, page, many = (
        shutil.copytree(run, tmp_path / "other"),
        tmp_path / "page.html",
        ["a cat"] * 1000,
    )
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["evolution"]["degree"] = 0.25
    recipe["api"] |= {"max_chunk": 3, "prompts": many}
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    judged = metrics_of(synthetic=6.0)
    test = {"source": "npz", "path": "a.npz", "images": 1998, "sha256": "1a", "left_out": 2}
    (run / "confidential" / "metrics.json").write_text(json.dumps(judged | {"test": test}))

    def compared(*options):
        return CliRunner().invoke(view, [str(run), str(other), *options], catch_exceptions=False)

    assert "… (1,000 in all)" in compared("--text").output
    printed, degrees = json.loads(compared("--json").output), [[0.5, 0.3, 0.1], 0.25]
    settings = {
        "api.max_chunk": [None, 3],
        "api.prompts": [None, many],
        "evolution.degree": degrees,
    }
    assert (printed["settings"], printed["warnings"]) == (settings, [])
    here = "1,998 images of a.npz (2 left out)"
    assert printed["internal"] == {
        "test set": [here, "–"],
        "for training, of 10": ["6.0 (5.0 to 7.0)", "–"],
    }
    for sets, told in (
        ({"test": test | {"path": "elsewhere.npz"}}, ""),
        (
            {"test": test | {"sha256": "2b"}},
            "The test images differ, so the internal numbers of these runs cannot be compared",
        ),
    ):
        (other / "confidential" / "metrics.json").write_text(json.dumps(judged | sets))
        result = compared("--html", str(page))
        assert ("warning: " in result.stderr) == bool(told)
        assert told in result.stderr
        assert told in page.read_text()
        assert ("for training, of 10" in page.read_text()) == (not told)


def test_a_control_of_one_run_is_a_control_of_all_on_the_same_scale(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")

    def compared(**samples):
        first, second = metrics_of(synthetic=6.0, unevolved=4.0), metrics_of(synthetic=7.5)
        second["judgement"]["trained"]["real"] |= samples
        for folder, metrics in ((run, first), (other, second)):
            (folder / "confidential" / "metrics.json").write_text(json.dumps(metrics))
        return side_by_side([Run.open(run), Run.open(other)])

    found = compared()
    rows = dict(found.rows)
    name = "internal, not for sharing: gained over un-evolved"
    assert rows[name] == ("+2.0 (+1.5 to +2.5)", "+3.5 (that of run)")
    assert found.warnings == []
    # With other private records the scale ends elsewhere.
    found = compared(samples=50)
    assert name not in dict(found.rows)
    assert "their scales end at different points" in found.warnings[0]
