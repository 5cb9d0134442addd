"""Surfaces of two runs are compared by name and content, and clean counts that leave a run are caught and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pe.histogram
from pe.histogram import count_votes
from tests.evaluation.surfaces import compare_surfaces
from tests.evaluation.worlds import EVOLVED, NEIGHBOURS, Evolved, held_votes, pair

__all__ = ["held_votes"]  # a fixture


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


@pytest.mark.usefixtures("held_votes")
@pytest.mark.parametrize("evolved", EVOLVED.values(), ids=EVOLVED)
@pytest.mark.parametrize("leak", GUILTY)
def test_clean_counts_that_leave_are_caught_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: Callable[[Path, np.ndarray], None], evolved: Evolved
) -> None:
    runs = iter([tmp_path / "a" / "run", tmp_path / "b" / "run"])

    def leaking(*arguments: object) -> np.ndarray:
        votes = count_votes(*arguments)  # type: ignore[arg-type]
        leak(next(runs), votes // arguments[3])  # in votes, not in steps of the grid
        return votes

    monkeypatch.setattr(pe.histogram, "count_votes", leaking)
    (first, _), (second, _) = pair(tmp_path, NEIGHBOURS["one record less"], evolved)
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
