"""With the noisy votes held fixed, nothing that a run shows depends on the private records."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

import pe
from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.engine.loggers import Bars
from pe.engine.report import write_report
from pe.plugins.protocols import GenerationAPI
from pe.report.live import LivePage
from tests.evaluation.surfaces import compare_surfaces
from tests.evaluation.worlds import (
    EVOLVED,
    HERE,
    NEIGHBOURS,
    SETTINGS,
    UNREADABLE,
    Evolved,
    Listener,
    Several,
    evolved_images,
    held_votes,
    pair,
)
from tests.generators import Mean, Shades

__all__ = ["held_votes"]  # a fixture
pytestmark = pytest.mark.usefixtures("held_votes")
of_all_kinds = pytest.mark.parametrize("evolved", EVOLVED.values(), ids=EVOLVED)


@of_all_kinds
@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_all_that_a_run_shows_is_the_same_for_other_records(
    tmp_path: Path,
    other: tuple[list[int], list[str]],
    evolved: Evolved,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (first, shown), (second, shown_too) = pair(tmp_path, other, evolved)
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too
    assert capfd.readouterr() == ("", "")
    assert (first.folder / "confidential" / "embeddings" / "private_embeddings.npy").is_file()
    page = write_report(first.folder).read_bytes()
    assert page == write_report(second.folder).read_bytes()
    assert b"How the votes went" in page
    live, live_too = (LivePage(run).pieces(running=True, waits="") for run in (first, second))
    assert live == live_too
    assert "Noisy votes" in live["votes"]


RULES = {
    "selected": {"keep": "selected", "selection": "rank", "offspring": 2},
    "winners": {"keep": "winners", "selection": "systematic", "initial_variations": 1},
    "all": {"keep": "all", "population": [8, 12, 16]},
    "reused": {"lookahead": 2, "reuse_lookahead": True},
    "another rule at each vote": {
        "keep": ["winners", "selected", "none"],
        "selection": ["systematic", "rank", "sample"],
        "offspring": [1, 2, 1],
        "threshold": [5.0, 2.0, 8.0],
        "degree": [0.5, 0.3, 0],
        "lookahead": [0, 1, 2],
        "iterations": 3,
    },
}


@of_all_kinds
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_is_kept_follows_from_the_noisy_votes_alone(
    tmp_path: Path, rule: dict[str, object], evolved: Evolved
) -> None:
    settings = {"lookahead": 0, "iterations": 2, "threshold": 5.0} | rule
    (first, shown), (second, shown_too) = pair(tmp_path, NEIGHBOURS["a label emptied"], evolved, **settings)
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too


def test_which_of_several_generators_makes_a_sample_follows_from_the_noisy_votes_alone(tmp_path: Path) -> None:
    settings = {"generator": Several, "iterations": 2}
    (first, shown), (second, shown_too) = pair(tmp_path, NEIGHBOURS["a label emptied"], evolved_images, **settings)
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too
    page = write_report(first.folder).read_bytes()
    assert page == write_report(second.folder).read_bytes()
    assert b"glyphs-2" in page


@of_all_kinds
def test_a_record_that_cannot_be_embedded_casts_no_vote_and_is_told_to_nobody(
    tmp_path: Path, evolved: Evolved, capfd: pytest.CaptureFixture[str]
) -> None:
    other = ([*HERE[0], UNREADABLE], [*HERE[1], "dark"])
    (first, shown), (second, shown_too) = pair(tmp_path, other, evolved, fails=True)
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too
    assert capfd.readouterr() == ("", "")
    said = (second.folder / "confidential" / "log.txt").read_text()
    assert "Doe^Jane" in said
    assert "Record 5 casts no vote" in said


def times(folder: Path) -> set[int]:
    """The times of a run's directory and of all in it that may be shared, in nanoseconds."""
    shareable = [path for path in folder.rglob("*") if "confidential" not in path.parts]
    return {path.stat().st_mtime_ns for path in (folder, *shareable)}


@of_all_kinds
def test_no_file_s_time_tells_how_long_the_private_side_took(tmp_path: Path, evolved: Evolved) -> None:
    run, _ = evolved(tmp_path / "a" / "run", *HERE)
    (began,) = times(run.folder)
    assert began % 10**9 == 0
    assert len({path.stat().st_mtime_ns for path in (run.folder / "confidential").rglob("*")}) > 1
    time.sleep(1.1)
    write_report(run.folder)  # the certificate is issued anew, too
    assert times(run.folder) == {began}


@of_all_kinds
@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_the_bars_and_warnings_are_the_same_for_other_records(
    tmp_path: Path, other: tuple[list[int], list[str]], evolved: Evolved
) -> None:
    def drawn(side: str, shades: list[int], labels: list[str]) -> str:
        console = Console(file=io.StringIO(), force_terminal=True, width=120)
        bars = Bars(console=console, clock=lambda: 0.0)
        evolved(tmp_path / side / "run", shades, labels, bars, threshold=1e9)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    first = drawn("a", *HERE)
    assert "embedding private records" in first
    assert "no candidate's noisy votes exceed the threshold" in first
    assert first == drawn("b", *other)


def images(folder: Path, bad: bool) -> tuple[pe.ImageFolder, GenerationAPI, Path]:
    """Six images, one of them none where that is asked for; a generator; and that one."""
    for label, shade in (("dark", 20), ("light", 210)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for i in range(3):
            Image.new("L", (4, 4), shade + i).save(folder / label / f"{i}.png")
    if bad:
        (folder / "dark" / "1.png").write_bytes(b"no image")
    source = pe.ImageFolder(folder, size=4, channels=1, classes=["dark", "light"], on_bad_record="skip")
    return source, Shades(), folder / "dark" / "1.png"


def texts(folder: Path, bad: bool) -> tuple[pe.TextFolder, GenerationAPI, Path]:
    """As `images`."""
    for label in ("dark", "light"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for i in range(3):
            (folder / label / f"{i}.txt").write_text(f"a {label} shade of {i}")
    if bad:
        (folder / "dark" / "1.txt").write_bytes(b"no \xff text")
    (folder.parent / "public.txt").write_text("".join(f"the shade {i:b} of number {i % 7}\n" for i in range(40)))
    source = pe.TextFolder(folder, classes=["dark", "light"], longest=60, on_bad_record="skip")
    return source, PublicTexts(path=folder.parent / "public.txt"), folder / "dark" / "1.txt"


@pytest.mark.parametrize("written", [images, texts])
def test_a_record_that_is_skipped_is_named_in_the_confidential_log_alone(
    tmp_path: Path,
    written: Callable[[Path, bool], tuple[pe.PrivateSource, GenerationAPI, Path]],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    records, shown = tmp_path / "records", []
    for side in ("good", "bad"):
        source, api, path = written(records, side == "bad")
        listener = Listener()
        settings = SETTINGS | {"embedding": Mean() if written is images else TfIdf(), "progress": listener}
        run = pe.evolve(source, api, out=tmp_path / side / "run", **settings)
        resumed = pe.evolve(source, api, out=tmp_path / side / "run", resume=True, **settings)
        logged = (resumed.confidential / "log.txt").read_text()
        assert ("casts no vote" in logged) == (str(path) in logged) == (side == "bad")
        shown.append((run.folder, listener.told, capfd.readouterr()))
        records.with_name("records.ledger.json").unlink()
    (good, told, printed), (bad, told_too, printed_too) = shown
    assert compare_surfaces(good, bad) == []
    assert told == told_too
    assert printed == printed_too == ("", "")
    assert caplog.records == []  # whatever is logged elsewhere ends on the console


@of_all_kinds
def test_where_s_0_holds_variations_the_un_evolved_control_is_what_they_are_of(
    tmp_path: Path, evolved: Evolved
) -> None:
    run, _ = evolved(tmp_path / "a" / "run", *HERE, lookahead=0, initial_variations=1)
    founders = run.founders()
    assert founders is not None
    assert len(founders) == SETTINGS["population"] / 2
    assert (founders.parents == -1).all()
    plain, _ = evolved(tmp_path / "b" / "run", *HERE)
    assert len(plain.founders() or []) == SETTINGS["population"]
