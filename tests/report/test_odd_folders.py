"""Folders that anybody may have made: none hides the others from `pe view`, and a file too large
ends in a sentence.
"""

import json
import os
import shutil
import sqlite3
import time
from urllib.request import ProxyHandler, build_opener

import pytest

import pe
from pe.engine.viewing import ViewServer
from pe.errors import RecipeError
from pe.recipe.reading import read_yaml
from tests.durability.test_damage import pe as command

LARGE = 20 * 10**9  # without a byte on the disk


def replaced(name, make):
    def change(run):
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        make(path)

    return change


def journal(*statements):
    def change(run):
        (run / "certificate.json").unlink()
        connection = sqlite3.connect(run / "confidential/journal.sqlite", isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return change


def including_a_pipe(run):
    os.mkfifo(run / "names.txt")
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("classes:", "classes: !include names.txt\nx:", 1))


def text(content):
    return lambda path: path.write_text(content)


ODD = {
    "confidential is a file": replaced("confidential", text("")),
    "the lock is a pipe": replaced("confidential/lock", os.mkfifo),
    "the lock is a folder": replaced("confidential/lock", os.mkdir),
    "the lock leads to itself": replaced("confidential/lock", lambda path: path.symlink_to(path)),
    "the journal holds text in place of numbers": journal(
        "DROP TABLE misses", "DROP TABLE chunks", "CREATE TABLE misses (chunk, item, outcome, "
                                                  "retryable, reason)",
        "CREATE TABLE chunks AS SELECT 1 id, 'population/0' phase, 'x' file, 'x' sha256, 'a' "
        "answered, 'b' calls, 'c' images, 'd' tokens, 'e' seconds, 'f' text_in, 'g' image_in, 'h' "
        "text_out, 'i' image_out, 'j' megapixels, 'k' cost",
    ),
    "a view of the journal has rows without end": journal(
        "DROP TABLE events",
        "CREATE VIEW events AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i at, i event FROM n",
    ),
    "the recipe includes a pipe": including_a_pipe,
    "the recipe is large": lambda run: os.truncate(run / "recipe.yaml", LARGE),
    "the certificate is large": lambda run: os.truncate(run / "certificate.json", LARGE),
    "the evaluation is another thing": replaced(
        "confidential/metrics.json", text(json.dumps({"version": 2, "test": 3, "fidelity": {"a": 1}, "judgement": 0}))
    ),
    "the evaluation is deep": replaced("confidential/metrics.json", text("[" * 100_000)),
    "its name is no text": lambda run: os.rename(os.fsencode(run), os.fsencode(run.parent) + b"/odd\xff"),  # noqa: PTH104
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_folder_hides_no_other_run(made, tmp_path, odd, capsys):
    for name in ("good", "odd"):
        shutil.copytree(made, tmp_path / name)
    ODD[odd](tmp_path / "odd")
    for words in (["--text"], ["--json"], ["--html", tmp_path / "page.html"]):
        assert command("view", tmp_path, *words) == 0
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        assert "good" in told.out if words[0] != "--html" else "page.html" in told.out
    with ViewServer([tmp_path], confidential=True) as server:
        get = build_opener(ProxyHandler({})).open
        for page in (server.address, f"{server.address}good/report"):
            assert b"good" in get(page, timeout=20).read()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("certificate.json", ["verify"]),
        ("certificate.json", ["export", "out"]),
        ("certificate.json", ["purge", "--yes"]),
        ("certificate.json", ["view", "--write"]),
        ("certificate.md", ["verify"]),
        ("recipe.yaml", ["extend", "-n", "3"]),
        ("degree.json", ["view", "--text"]),
        ("confidential/recipe.yaml", ["run"]),
        ("confidential/extension.json", ["view", "--text"]),
        ("confidential/metrics.json", ["view", "--write", "--confidential"]),
    ],
)
def test_a_file_too_large_to_read_ends_in_one_sentence(
    made, tmp_path, name, words, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(made, tmp_path / "run")
    (run / name).touch()
    os.truncate(run / name, LARGE)
    status = command(words[0], run, *words[1:])
    told = capsys.readouterr()
    assert status in (1, 2)
    assert f"{name} has more than " in told.out + told.err
    assert "Traceback" not in told.err
    assert not (tmp_path / "out").exists()


def test_many_names_in_a_recipe_take_no_long_time(tmp_path):
    """Else a small recipe of somebody's would stop `pe view` for all runs."""
    names, began = [f"c{i}" for i in range(100_000)], time.process_time()
    (tmp_path / "keys.json").write_text(json.dumps(dict.fromkeys(names)))
    (tmp_path / "recipe.yaml").write_text("x: !include keys.json")
    assert len(read_yaml(tmp_path / "recipe.yaml")["x"]) == len(names)
    assert len(pe.ImageFolder(tmp_path, size=8, classes=names).labels) == len(names)
    assert time.process_time() - began < 15
    with pytest.raises(RecipeError, match="'c7' is listed twice"):
        pe.ImageFolder(tmp_path, size=8, classes=[*names, "c7"])
