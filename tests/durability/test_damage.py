"""A run whose files were damaged: every command ends in its result, or in one sentence that names
the file.
"""

import shutil
import sqlite3
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from pe.cli.main import main

RECIPE = """
private: {kind: npz, path: PATH, size: 8, channels: 1, classes: [a, b], declared_size: 40}
embedding: {kind: pixels}
api: {kind: glyphs}
privacy: {epsilon: 5, delta: 1.0e-5}
evolution: {iterations: 2, population: 10, lookahead: 2}
"""
JOURNAL, S0 = "confidential/journal.sqlite", "populations/000"


def write(name, data):
    return lambda run: (run / name).write_bytes(data)


def cut(name, share):
    return lambda run: (run / name).write_bytes(
        (data := (run / name).read_bytes())[: int(len(data) * share)]
    )


def sql(*statements):
    def damage(run):
        connection = sqlite3.connect(run / JOURNAL, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return damage


def column(name, change):
    return lambda run: np.save(run / name, change(np.load(run / name)))


DAMAGES = {
    "journal cut": cut(JOURNAL, 0.5),
    "journal of another version": sql("PRAGMA user_version = 9"),
    "journal holds no charge": sql("UPDATE charges SET declared = 'x'"),
    "journal holds a charge of no release": sql("INSERT INTO charges SELECT id + 9, 'x', declared, "
                                                "0 FROM charges"),
    "journal holds counts below 0": sql("UPDATE chunks SET answered = -5, images = -1, seconds = "
                                        "-1"),
    "population cut": cut(f"{S0}/labels.npy", 0.5),
    "labels of no class": column(f"{S0}/labels.npy", lambda labels: labels + 99),
    "images of another size": column(f"{S0}/images.npy", lambda images: images.repeat(2, axis=1)),
    "parents beyond": column("populations/001/parents.npy", lambda parents: parents + 10**6),
    "votes NaN": column("releases/histogram-1.npy", lambda votes: votes * np.nan),
    "certificate of no numbers": write("certificate.json", b'{"covered": [], "epsilon": "x"}'),
    "lock a folder": lambda run: [(run / "confidential/lock").unlink(), (run / "confidential/lock").mkdir()],
    "metrics a list": write("confidential/metrics.json", b"[]"),
}  # fmt: skip
COMMANDS = {
    "finished": ("view --write", "extend -n 3"),
    "stopped": ("view --text", "run --set limits.max_images=900"),
}


def pe(*words):
    """The exit status of a command; what it lets through is a traceback to its user."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["pe", *map(str, words)])
        patched.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 1)).astype(np.uint8)
    np.savez(folder / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    (folder / "recipe.yaml").write_text(RECIPE.replace("PATH", str(folder / "private.npz")))
    assert pe("run", folder / "recipe.yaml", "--out", folder / "finished") == 0
    assert (
        pe(
            "run",
            folder / "recipe.yaml",
            "--out",
            folder / "stopped",
            "--set",
            "limits.max_images=45",
        )
        == 3
    )
    return folder


@pytest.mark.parametrize("state", COMMANDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_ends_every_command_in_its_result_or_in_one_sentence(
    damage, state, runs, tmp_path, capsys
):
    for command in COMMANDS[state]:
        run = Path(shutil.copytree(runs / state, tmp_path / command.split()[0]))
        if state == "finished" or "certificate" not in damage:
            DAMAGES[damage](run)
        name, *options = command.split()
        status, told = pe(name, run, *options), capsys.readouterr().err
        assert status in (0, 2), told
        assert (status == 2) == any(line.startswith("pe: ") for line in told.splitlines()), command
