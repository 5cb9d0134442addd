"""With the noisy votes held fixed, nothing that a run shows depends on the private records."""

import os

import numpy as np
import pytest
from PIL import Image

import pe
import pe.histogram
from pe.engine.report import write_report
from pe.histogram import count_votes
from pe.report.live import LivePage
from tests.evaluation.surfaces import compare_surfaces
from tests.evaluation.worlds import (
    HERE,
    NEIGHBOURS,
    SETTINGS,
    Listener,
    Several,
    evolved,
    held_votes,
)
from tests.generators import Mean, Shades

__all__ = ["held_votes"]  # a fixture
pytestmark = pytest.mark.usefixtures("held_votes")
EMPTIED = NEIGHBOURS["a label emptied"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The runs over HERE, each made once."""
    made = {}

    def run(kind):
        if kind not in made:
            made[kind] = evolved(kind, tmp_path_factory.mktemp(kind) / "a" / "run", *HERE)
        return made[kind]

    return run


def check_alike(one, other):
    """Compare all that the runs showed on the way, their files, their reports and their
    live pages.
    """
    (first, shown), (second, shown_too) = one, other
    assert shown == shown_too
    pages = [LivePage(run).pieces("running") for run in (first, second)]
    assert pages[0] == pages[1]
    assert "Noisy votes" in pages[0]["votes"]
    reports = [write_report(run.folder).read_bytes() for run in (first, second)]
    assert reports[0] == reports[1]
    assert b"How the votes went" in reports[0]
    assert compare_surfaces(first.folder, second.folder) == []


@pytest.mark.parametrize(
    ("kind", "other"),
    [*(("images", other) for other in NEIGHBOURS), ("texts", "one record replaced")],
)
def test_all_that_a_run_shows_is_the_same_for_other_records(here, kind, other, capfd):
    first = here(kind)
    check_alike(
        first, evolved(kind, first[0].folder.parent.parent / other / "run", *NEIGHBOURS[other])
    )
    assert capfd.readouterr() == ("", "")
    assert (first[0].folder / "confidential" / "embeddings" / "private_embeddings.npy").is_file()


RULES = {
    "all": {"keep": "all", "population": [8, 12, 16], "initial_variations": 1},
    "reused": {"lookahead": 2, "reuse_lookahead": True},
    "several generators": {"generator": Several},
    "another rule at each vote": {
        "keep": ["winners", "selected", "none"],
        "selection": ["systematic", "rank", "sample"],
        "offspring": [1, 2, 1],
        "threshold": [5.0, 2.0, 1e9],
        "degree": [0.5, 0.3, 0],
        "lookahead": [0, 1, 2],
        "iterations": 3,
    },
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_is_kept_and_who_makes_it_follow_from_the_noisy_votes_alone(tmp_path, rule):
    settings = {"lookahead": 0, "iterations": 2, "threshold": 5.0} | rule
    one, other = (
        evolved("images", tmp_path / side / "run", *data, **settings)
        for side, data in (("a", HERE), ("b", EMPTIED))
    )
    check_alike(one, other)
    founders = one[0].founders()
    assert len(founders) == (
        4 if "initial_variations" in rule else 8
    )  # there S_0 holds a variation of each
    assert (founders.parents == -1).all()


class Failing(Mean):
    """Raises over an image of the shade 77, in words on it."""

    def embed(self, samples):
        if (samples.pixels == 77).any():
            raise ValueError("the patient's name is burned in: Doe^Jane")
        return super().embed(samples)


def test_a_record_that_cannot_be_embedded_casts_no_vote_and_is_told_to_nobody(tmp_path, capfd):
    other = ([*HERE[0], 77], [*HERE[1], "dark"])
    one, other = (
        evolved("images", tmp_path / side / "run", *data, embedding=Failing())
        for side, data in (("a", HERE), ("b", other))
    )
    check_alike(one, other)
    assert capfd.readouterr() == ("", "")
    said = (other[0].confidential / "log.txt").read_text()
    assert "Doe^Jane" in said
    assert "Record 5 casts no vote" in said


def test_no_file_s_time_tells_how_long_the_private_side_took(tmp_path):
    def times():
        shareable = [path for path in run.folder.rglob("*") if "confidential" not in path.parts]
        return {path.stat().st_mtime_ns for path in (run.folder, *shareable)}

    run, _ = evolved("images", tmp_path / "a" / "run", *HERE)
    (began,) = times()
    assert began % 10**9 == 0
    assert len({path.stat().st_mtime_ns for path in run.confidential.rglob("*")}) > 1
    earlier = began - 60 * 10**9
    os.utime(run.folder / "recipe.yaml", ns=(earlier, earlier))
    write_report(run.folder)  # the certificate is issued anew, too
    assert times() == {earlier}


def test_a_record_that_is_skipped_is_named_in_the_confidential_log_alone(tmp_path, capfd, caplog):
    records, shown = tmp_path / "records", []
    for i in range(6):
        folder = records / ("dark", "light")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 30 * i).save(folder / f"{i}.png")
    source = pe.ImageFolder(
        records, size=4, channels=1, classes=["dark", "light"], on_bad_record="skip"
    )
    bad = records / "dark" / "2.png"
    for side in ("good", "bad"):
        if side == "bad":
            bad.write_bytes(b"no image")
        settings = SETTINGS | {
            "embedding": Mean(),
            "progress": Listener(),
            "out": tmp_path / side / "run",
        }
        run = pe.evolve(source, Shades(), **settings)
        pe.evolve(source, Shades(), resume=True, **settings)
        logged = (run.confidential / "log.txt").read_text()
        assert ("casts no vote" in logged) == (str(bad) in logged) == (side == "bad")
        shown.append((run.folder, settings["progress"].told))
        records.with_name("records.ledger.json").unlink()
    assert compare_surfaces(shown[0][0], shown[1][0]) == []
    assert shown[0][1] == shown[1][1]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []  # whatever is logged elsewhere ends on the console


def test_clean_counts_that_leave_are_caught_and_named(tmp_path, monkeypatch):
    folders = [tmp_path / side / "run" for side in "ab"]
    runs = iter(folders)

    def leaking(*arguments):
        votes, run = count_votes(*arguments), next(runs)
        clean = votes // arguments[3]  # in votes, not in steps of the grid
        np.save(run / "populations" / "debug.npy", clean)
        (run / f"{clean.sum()}-votes").mkdir()
        (run / "log.txt").write_text(f"{clean.tolist()}")
        with (run / "recipe.yaml").open("a") as recipe:
            recipe.write(f"# {clean.sum()}\n")
        return votes

    monkeypatch.setattr(pe.histogram, "count_votes", leaking)
    for folder, data in zip(folders, (HERE, NEIGHBOURS["one record less"]), strict=True):
        evolved("images", folder, *data)
    named = {"4-votes", "5-votes", "log.txt", "populations/debug.npy", "recipe.yaml"}
    assert named <= set(compare_surfaces(*folders))
