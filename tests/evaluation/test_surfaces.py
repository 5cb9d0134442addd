"""With the noisy votes held fixed, nothing that a run shows depends on the private records; a planted leak does."""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import pe
import pe.histogram
from adapters.public_texts import PublicTexts
from pe.engine.bars import Bars
from pe.engine.report import write_report
from pe.histogram import count_votes
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.ledger import Ledger
from pe.privacy.noise import Noise
from pe.privacy.register import register_path
from pe.privacy.release import Release
from pe.progress import Progress, Task
from tests.evaluation.surfaces import compare_surfaces
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 2.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 2}


@pytest.fixture(autouse=True)
def _noisy_votes_are_held_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release is drawn as shipped, clean votes and all, and then replaced by public numbers."""
    release_as_shipped = Ledger.release

    def release(ledger: Ledger, what: Release, draw: Callable[[Noise], np.ndarray]) -> np.ndarray:
        def held(noise: Noise) -> np.ndarray:
            drawn = draw(noise)
            rng = np.random.default_rng(zlib.crc32(what.name.encode()))
            return rng.integers(0, 20 * what.grid, drawn.shape, dtype=drawn.dtype)

        return release_as_shipped(ledger, what, held)

    monkeypatch.setattr(Ledger, "release", release)


class Listener(Progress):
    """Writes down all that a run tells; a phase's advances sorted, since threads commit in any order."""

    def __init__(self) -> None:
        self.told: list[object] = []

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        advances: list[tuple[int, str]] = []

        class Counted(Task):
            def advance(self, count: int, spent: str = "") -> None:
                advances.append((count, spent))

        yield Counted()
        self.told.append((description, total, sorted(advances)))

    def warn(self, message: str) -> None:
        self.told.append(message)


def asked(request: RandomRequest | VariationRequest) -> list[object]:
    """All that a request holds, to the byte."""
    held = [request.labels, request.seeds.tobytes()]
    if isinstance(request, RandomRequest):
        return held
    conditions = [(name, request.conditions[name].tobytes()) for name in request.conditions]
    return [*held, request.degree, request.samples.array.tobytes(), conditions]


def evolved(
    folder: Path,
    shades: list[int],
    labels: list[str],
    listener: Progress | None = None,
    embedding: Mean | None = None,
    **changes: object,
) -> tuple[pe.Run, dict[str, object]]:
    """A run over these private images, which always lie in the same file, and all that it showed on the way."""
    path = folder.parent.parent / "private.npz"
    path.with_name("private.npz.ledger.json").unlink(missing_ok=True)  # each world has its own
    register_path().unlink(missing_ok=True)
    np.savez(
        path, images=np.array(shades, np.uint8)[:, None, None, None].repeat(16, 1).reshape(-1, 4, 4, 1), labels=labels
    )
    source = pe.ImageNpz(path, size=4, channels=1, classes=["dark", "light"], declared_size=10)
    api, listener = Shades(), listener or Listener()
    run = pe.evolve(source, api, embedding=embedding or Mean(), out=folder, progress=listener, **SETTINGS | changes)
    requests = [*api.random_requests, *api.variation_requests]
    shown = {
        "asked": [asked(each) for each in requests],
        "told": getattr(listener, "told", None),
        "certificate": run.guarantee | {"run": ""},
    }
    return run, shown


class Asked(PublicTexts):
    """Keeps what it is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path=path)
        self.requests: list[RandomRequest | VariationRequest] = []

    def random_api(self, request: RandomRequest) -> pe.Answer:
        self.requests.append(request)
        return super().random_api(request)

    def variation_api(self, request: VariationRequest) -> pe.Answer:
        self.requests.append(request)
        return super().variation_api(request)


def evolved_texts(folder: Path, shades: list[int], labels: list[str]) -> tuple[pe.Run, dict[str, object]]:
    """As `evolved`, over a text for each shade."""
    path, public = folder.parent.parent / "private.csv", folder.parent.parent / "public.txt"
    path.with_name("private.csv.ledger.json").unlink(missing_ok=True)
    register_path().unlink(missing_ok=True)
    rows = [f"a shade of {shade:b},{label}" for shade, label in zip(shades, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]))
    public.write_text("\n".join(f"the shade {i:b} of number {i % 7}" for i in range(40)))
    source = pe.TextTable(path, label_column="label", classes=["dark", "light"], declared_size=10, longest=60)
    api, listener = Asked(public), Listener()
    run = pe.evolve(source, api, out=folder, progress=listener, **SETTINGS)
    requests = sorted(map(str, map(asked, api.requests)))
    return run, {"asked": requests, "told": listener.told, "certificate": run.guarantee | {"run": ""}}


HERE = ([10, 20, 30, 200, 210], ["dark", "dark", "dark", "light", "light"])
NEIGHBOURS = {
    "one record less": ([10, 20, 30, 200], ["dark", "dark", "dark", "light"]),
    "one record replaced": ([10, 20, 250, 200, 210], ["dark", "dark", "light", "light", "light"]),
    "a label emptied": ([200, 210], ["light", "light"]),
    "ten times the size": (HERE[0] * 10, HERE[1] * 10),
}


def pair(
    tmp_path: Path, other: tuple[list[int], list[str]], carried_out: Callable[..., Any] = evolved
) -> list[tuple[pe.Run, dict[str, object]]]:
    return [carried_out(tmp_path / side / "run", *data) for side, data in (("a", HERE), ("b", other))]


@pytest.mark.parametrize("carried_out", [evolved, evolved_texts], ids=["images", "texts"])
@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_all_that_a_run_shows_is_the_same_for_other_records(
    tmp_path: Path,
    other: tuple[list[int], list[str]],
    carried_out: Callable[..., Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    (first, shown), (second, shown_too) = pair(tmp_path, other, carried_out)
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too
    assert capfd.readouterr() == ("", "")
    assert (first.folder / "confidential" / "embeddings" / "private_embeddings.npy").is_file()


RULES = {
    "selected": {"keep": "selected", "selection": "rank", "offspring": 2},
    "winners": {"keep": "winners", "selection": "systematic", "initial_variations": 1},
    "all": {"keep": "all", "population": [8, 12, 16]},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_is_kept_follows_from_the_noisy_votes_alone(tmp_path: Path, rule: dict[str, object]) -> None:
    settings = {"lookahead": 0, "iterations": 2, "threshold": 5.0} | rule
    worlds = [
        evolved(tmp_path / side / "run", *data, **settings)
        for side, data in (("a", HERE), ("b", NEIGHBOURS["a label emptied"]))
    ]
    (first, shown), (second, shown_too) = worlds
    assert compare_surfaces(first.folder, second.folder) == []
    assert shown == shown_too


class FailsOn(Mean):
    """Raises over an image of this shade, in words on it."""

    def __init__(self, shade: int) -> None:
        self.shade = shade

    def embed(self, samples: pe.Images) -> np.ndarray:
        if (samples.pixels == self.shade).any():
            raise ValueError("the patient's name is burned in: Doe^Jane")
        return super().embed(samples)


def test_a_record_that_cannot_be_embedded_casts_no_vote_and_is_told_to_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = ([*HERE[0], 77], [*HERE[1], "dark"])
    worlds = [
        evolved(tmp_path / side / "run", *data, embedding=FailsOn(77)) for side, data in (("a", HERE), ("b", other))
    ]
    (first, shown), (second, shown_too) = worlds
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


def test_no_file_s_time_tells_how_long_the_private_side_took(tmp_path: Path) -> None:
    run, _ = evolved(tmp_path / "a" / "run", *HERE)
    (began,) = times(run.folder)
    assert began % 10**9 == 0
    assert len({path.stat().st_mtime_ns for path in (run.folder / "confidential").rglob("*")}) > 1
    time.sleep(1.1)
    write_report(run.folder)  # the certificate is issued anew, too
    assert times(run.folder) == {began}


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_the_report_is_the_same_for_other_records(tmp_path: Path, other: tuple[list[int], list[str]]) -> None:
    (first, _), (second, _) = pair(tmp_path, other)
    page = write_report(first.folder).read_bytes()
    assert page == write_report(second.folder).read_bytes()
    assert b"How the votes went" in page


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_the_bars_and_warnings_are_the_same_for_other_records(
    tmp_path: Path, other: tuple[list[int], list[str]]
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


def test_an_image_that_is_skipped_is_named_in_the_confidential_log_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    scans, shown = tmp_path / "scans", []
    source = pe.ImageFolder(scans, size=4, channels=1, classes=["dark", "light"], on_bad_record="skip")
    for side in ("good", "bad"):
        for label, shade in (("dark", 20), ("light", 210)):
            (scans / label).mkdir(parents=True, exist_ok=True)
            for i in range(3):
                Image.new("L", (4, 4), shade + i).save(scans / label / f"{i}.png")
        if side == "bad":
            (scans / "dark" / "1.png").write_bytes(b"no image")
        listener = Listener()
        settings = SETTINGS | {"embedding": Mean(), "progress": listener}
        run = pe.evolve(source, Shades(), out=tmp_path / side / "run", **settings)
        resumed = pe.evolve(source, Shades(), out=tmp_path / side / "run", resume=True, **settings)
        logged = (resumed.confidential / "log.txt").read_text()
        assert ("casts no vote" in logged) == (str(scans / "dark" / "1.png") in logged) == (side == "bad")
        shown.append((run.folder, listener.told, capfd.readouterr()))
        scans.with_name("scans.ledger.json").unlink()
        register_path().unlink()
    (good, told, printed), (bad, told_too, printed_too) = shown
    assert compare_surfaces(good, bad) == []
    assert told == told_too
    assert printed == printed_too == ("", "")
    assert caplog.records == []  # whatever is logged elsewhere ends on the console


def into_a_file(run: Path, votes: np.ndarray) -> None:
    np.save(run / "populations" / "debug.npy", votes)


def into_a_name(run: Path, votes: np.ndarray) -> None:
    (run / f"{votes.sum()}-votes").mkdir(exist_ok=True)


def into_a_log(run: Path, votes: np.ndarray) -> None:
    with (run / "log.txt").open("a") as log:
        log.write(f"{votes.tolist()}\n")


def into_the_recipe(run: Path, votes: np.ndarray) -> None:
    recipe = run / "recipe.yaml"
    recipe.write_text(f"{recipe.read_text()}# {votes.sum()}\n")


GUILTY = {
    into_a_file: ["populations/debug.npy"],
    into_a_name: ["4-votes", "5-votes"],
    into_a_log: ["log.txt"],
    into_the_recipe: ["recipe.yaml"],
}


@pytest.mark.parametrize("leak", GUILTY)
def test_clean_counts_that_leave_are_caught_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: Callable[[Path, np.ndarray], None]
) -> None:
    runs = iter([tmp_path / "a" / "run", tmp_path / "b" / "run"])

    def leaking(*arguments: object) -> np.ndarray:
        votes = count_votes(*arguments)  # type: ignore[arg-type]
        leak(next(runs), votes // arguments[3])  # in votes, not in steps of the grid
        return votes

    monkeypatch.setattr(pe.histogram, "count_votes", leaking)
    (first, _), (second, _) = pair(tmp_path, NEIGHBOURS["one record less"])
    named = compare_surfaces(first.folder, second.folder)
    assert set(GUILTY[leak]) <= set(named)


def folder(root: Path, **files: str) -> Path:
    for name, text in ({"recipe.yaml": "a"} | files).items():
        path = root / name.replace("__", "/").replace("_json", ".json").replace("_md", ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_files_folders_and_links_are_compared_by_name_and_content(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", both="1", changed="1", here="1", sub__deep="1", kind="1")
    two = folder(tmp_path / "two", both="1", changed="2", there="1", sub__deep="2")
    (two / "kind").mkdir()
    (one / "empty").mkdir()
    (one / "link").symlink_to("both")
    (two / "link").symlink_to("changed")
    assert compare_surfaces(one, two) == ["changed", "empty", "here", "kind", "link", "sub/deep", "there"]
    assert compare_surfaces(one, one) == []


def test_the_confidential_side_at_the_top_alone_is_left_out(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", confidential__log="1", populations__confidential__log="1")
    two = folder(tmp_path / "two", confidential__log="2", populations__confidential__log="2")
    assert compare_surfaces(one, two) == ["populations/confidential/log"]


def test_certificates_may_differ_in_the_run_s_name_and_in_nothing_else(tmp_path: Path) -> None:
    def certified(name: str, sentence: str) -> Path:
        json = f'{{\n  "run": "{name}",\n  "statement": "{sentence}"\n}}\n'
        return folder(tmp_path / name, certificate_json=json, certificate_md=f"Run `{name}`. {sentence}")

    one = certified("one", "Fine.")
    assert compare_surfaces(one, certified("two", "Fine.")) == []
    assert compare_surfaces(one, certified("three", "Fine .")) == ["certificate.json", "certificate.md"]
    assert compare_surfaces(one, certified("four", "Fine. Run `four`.")) == ["certificate.json", "certificate.md"]


def test_where_s_0_holds_variations_the_un_evolved_control_is_what_they_are_of(tmp_path: Path) -> None:
    run, _ = evolved(tmp_path / "a" / "run", *HERE, lookahead=0, initial_variations=1)
    founders = run.founders()
    assert founders is not None
    assert len(founders) == SETTINGS["population"] / 2
    assert (founders.parents == -1).all()
    plain, _ = evolved(tmp_path / "b" / "run", *HERE)
    assert len(plain.founders() or []) == SETTINGS["population"]
