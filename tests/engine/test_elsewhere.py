"""Nothing from a run that somebody else made runs a command, reads a variable or a file, or sends a
key.
"""

import json
import os
import shutil
import sqlite3
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import yaml

import pe
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.errors import LimitReached, PEError, RecipeError, RunError
from pe.plugins.reach import reach
from pe.store.certified import reissue
from pe.store.export import examine
from pe.store.machine import bind, is_own
from pe.store.run import purge
from tests.durability.test_damage import pe as command
from tests.endpoints.faults import Script
from tests.endpoints.guard import Guarded
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.engine.small import SETTINGS, Told, evolve, records_in
from tests.generators import Mean, Shades

SECRET = "canary-51c0ffee"  # of the one who receives the run
ENDPOINT = {"kind": "openai_images", "server": None, "model": "m", "prompts": "x", "image_size": 4}
ENDPOINT |= {"channels": 1, "tries": 1}
MADE = (
    "was made on another machine or by an earlier version, or has another recipe than it began with"
)


@pytest.fixture(scope="module")
def guard():
    """A server that notes what it is sent, and its address; it lets nobody in."""
    guard = Guarded(OpenAIServer(Script()))
    with serving(guard) as url:
        guard.url = f"{url}/v1"
        yield guard


@pytest.fixture
def own(tmp_path, monkeypatch):
    """What the victim has: a variable, and a file with a key."""
    monkeypatch.setenv("A_KEY_OF_MINE", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (tmp_path / "key").write_text(SECRET)
    return tmp_path


def planted(made, folder, **sections):
    """A copy of a run whose two recipes agree on other sections; its certificate covers the one
    that is shared.
    """
    shutil.copytree(made, folder)
    for name in ("recipe.yaml", "confidential/recipe.yaml"):
        content = yaml.safe_load((folder / name).read_text())
        changes = {
            key: one if key != "private" else content[key] | one for key, one in sections.items()
        }
        if name == "recipe.yaml":
            changes.pop("private", None)
        (folder / name).write_text(yaml.safe_dump(content | changes))
    if (folder / "certificate.json").exists():
        reissue(folder, ["recipe.yaml"])
    return folder


def everything(folder):
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


ATTACKS = {
    "a command": lambda own: {"key_command": ["sh", "-c", f"touch {own}/ran; cat {own}/key"]},
    "a variable": lambda own: {"key_env": "A_KEY_OF_MINE"},
    "a file": lambda own: {"key_file": str(own / "key")},
    "a header": lambda own: {"key_env": None, "headers_env": {"X-Key": "A_KEY_OF_MINE"}},
    "the variable of everybody": lambda own: {},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_run_with_two_recipes_that_agree_sends_no_key_before_its_address_is_named(
    made, own, guard, attack
):
    api = ENDPOINT | {"base_url": guard.url} | ATTACKS[attack](own)
    folder = planted(made[0].folder, own / "run", api=api)
    assert examine(folder)[1] == []
    before, came = everything(folder), len(guard.came)
    with pytest.raises(
        RecipeError, match=rf"api\.base_url is .*which {MADE}: .* --set 'api\.base_url="
    ):
        extend_run(folder, 4, 0.5, RunContext())
    assert (everything(folder), len(guard.came), (own / "ran").exists()) == (before, came, False)


def test_the_owner_names_all_that_it_reaches_by_the_options_of_the_message(made, own, guard):
    """Else by naming the address alone the key would go there."""
    attack = ATTACKS["a command"](own)
    folder = planted(made[0].folder, own / "run", api=ENDPOINT | {"base_url": guard.url} | attack)
    came = len(guard.came)
    address = f"api.base_url={guard.url}"
    for changes in ((), (address,), (address, "api.key_command.0=true")):
        with pytest.raises(RecipeError, match=r"api\.key_command is '.* --set '?api\.key_command="):
            extend_run(folder, 4, 0.5, RunContext(), changes)
    options = (address, f"api.key_command={json.dumps(attack['key_command'])}")
    assert len(guard.came) == came
    with pytest.raises(PEError, match="401"):
        extend_run(folder, 4, 0.5, RunContext(), options)
    assert len(guard.came) > came


def test_a_generator_with_an_address_of_its_own_is_named_before_its_provider_gets_a_key(made, own):
    for kind, more in (("openai_images", {}), ("bedrock", {"region": "us-west-2"}), ("gemini", {})):
        folder = planted(made[0].folder, own / kind, api=ENDPOINT | {"kind": kind} | more)
        with pytest.raises(RecipeError, match=rf"api\.kind is '{kind}' in a recipe that came with"):
            extend_run(folder, 4, 0.5, RunContext())


def test_what_a_part_of_a_generator_or_a_pool_reaches_is_named_too(made, own, guard):
    member = ENDPOINT | {"base_url": guard.url, "key_env": "A_KEY_OF_MINE"}
    for name, api, keys in (
        (
            "portfolio",
            {"kind": "portfolio", "of": [member, member]},
            ("api.of.0.base_url", "api.of.1.key_env"),
        ),
        ("pool", {"kind": "public_images", "path": str(own / "scans"), "size": 4}, ("api.path",)),
        ("model", {"kind": "improved_diffusion", "model": str(own / "scans")}, ("api.model",)),
        ("another", {"kind": "improved_diffusion", "model": "./x/../../scans"}, ("api.model",)),
        (
            "list",
            {"kind": "diffusion", "model": "m", "prompts": "p", "lora": [str(own / "scans")]},
            ("api.lora",),
        ),
        (
            "weighted",
            {"kind": "diffusion", "model": "m", "prompts": "p", "lora": {"~/x": 1.0}},
            ("api.lora.~/x",),
        ),
    ):
        with pytest.raises(RecipeError) as refused:
            extend_run(planted(made[0].folder, own / name, api=api), 4, 0.5, RunContext())
        assert all(f"{key} is '" in str(refused.value) for key in keys)


COMMANDS = (
    *(
        ["run"],
        ["extend", "-n", "4"],
        ["view", "--text"],
        ["view", "--write"],
        ["view", "--html", "page.html"],
    ),
    *(["evaluate", "--test", "test.npz"], ["export", "out"], ["verify"], ["purge", "--yes"]),
)


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_no_command_over_such_a_run_reaches_anything(made, own, guard, state, capsys, monkeypatch):
    monkeypatch.chdir(own)
    np.savez(
        "test.npz",
        images=np.zeros((9, 4, 4, 1), np.uint8),
        labels=np.array(["dark", "light", "dark"] * 3),
    )
    records_in(own, "mine")
    (own / "mine.npz.bad-files.txt").write_text("a.png is damaged")
    reaching = {"base_url": guard.url} | ATTACKS["a command"](own)
    far = {"kind": "http", "url": guard.url, "trusted_with_private_data": True} | ATTACKS[
        "a variable"
    ](own)
    sections = {
        "api": ENDPOINT | reaching,
        "embedding": far,
        "private": {"path": str(own / "mine.npz")},
    }
    came = len(guard.came)
    for words in COMMANDS:
        folder = planted(made[0].folder, own / "-".join(words).replace(".", ""), **sections)
        if state == "stopped":
            (folder / "certificate.json").unlink()
        command(words[0], folder, *words[1:])
        assert "Traceback" not in capsys.readouterr().err
    assert (len(guard.came), (own / "ran").exists()) == (came, False)
    assert (own / "mine.npz.bad-files.txt").exists()
    assert not (own / "mine.npz.ledger.json").exists()


def test_an_evaluation_leaves_the_records_and_generator_of_such_a_run_alone_until_they_are_named(
    own,
):
    other = records_in(own, "mine", seed=3)
    run = evolve(records_in(own), own / "made")
    folder = planted(run.folder, own / "run", private={"path": str(own / "mine.npz")})
    np.savez(
        own / "test.npz",
        images=np.zeros((9, 4, 4, 1), np.uint8),
        labels=np.array(["dark", "light", "dark"] * 3),
    )

    def notes(**settings):
        own_objects = {"embedding": Mean(), "progress": pe.Progress()}
        return " ".join(
            pe.evaluate(folder, own / "test.npz", metrics=("fidelity",), **own_objects, **settings)[
                "notes"
            ]
        )

    assert "private.path is '" in notes()
    assert "private.path is '" not in notes(changes={"private.path": str(other.path)})


# What is this machine's own goes on without a word, wherever its folder lies.


def test_a_run_that_was_moved_or_copied_on_this_machine_is_gone_on_with_without_a_word(
    own, monkeypatch
):
    public = own / "public.npz"
    np.savez(public, images=np.arange(40, dtype=np.uint8).repeat(16).reshape(40, 4, 4, 1))
    pool = pe.api("public_images", path=public, size=4, channels=1)
    settings = {
        "epsilon": 9.0,
        "delta": 1e-5,
        "population": 8,
        "iterations": 2,
        "embedding": "pixels",
    }
    with pytest.raises(LimitReached):
        pe.evolve(
            records_in(own),
            pool,
            out=own / "run",
            max_images=12,
            progress=pe.Progress(),
            **settings,
        )
    moved = (own / "run").rename(own / "elsewhere in it")
    told = Told()
    run = pe.resume(moved, changes={"limits.max_images": 900}, progress=told)
    copied = Path(shutil.copytree(run.folder, own / "copied"))
    more = {"degree": 0.5, "changes": {"limits.max_images": 900}, "progress": told}
    assert pe.extend(copied, 3, **more).is_file()
    assert examine(copied)[1] == []
    assert command("verify", copied) == 0
    purge(pe.Run(copied))
    assert pe.extend(copied.rename(own / "purged"), 3, **more).is_file()
    assert not [line for line in told.warnings if MADE in line or "named again" in line]


@pytest.mark.parametrize(
    "how", ["another machine", "an earlier version", "another run's binding", "a changed recipe"]
)
def test_a_run_of_another_machine_or_version_says_so_in_one_sentence(made, own, how, monkeypatch):
    run = evolve(records_in(own), own / "mine")
    folder = planted(
        made[0].folder, own / "run", private={"path": str(own / "private.npz")}, name="x"
    )
    assert is_own(run.folder)
    if how == "another machine":
        folder = run.folder
        monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    if how == "an earlier version":
        folder = run.folder
        (folder / "confidential/binding.txt").unlink()
    if how == "another run's binding":
        shutil.copy(run.folder / "confidential/binding.txt", folder / "confidential/binding.txt")
    said = (
        rf"^private\.path is '.*' in a recipe that came with .*, which {MADE}: .* by --set "
        rf"'private\.path=.*\.$"
    )
    with pytest.raises(RecipeError, match=said):
        pe.resume(folder, api=Shades(), embedding=Mean())
    changes = {"private.path": str(own / "private.npz")}
    assert pe.resume(folder, api=Shades(), embedding=Mean(), changes=changes).is_finished
    assert command("verify", folder) == 1


def test_verify_names_a_confidential_side_that_came_with_a_run(made, tmp_path, capsys):
    out = made[0].export(tmp_path / "out")
    assert command("verify", out) == 0
    for name in ("journal.sqlite", "recipe.yaml"):
        (out / "confidential").mkdir(exist_ok=True)
        shutil.copy(made[0].confidential / name, out / "confidential" / name)
        capsys.readouterr()
        assert command("verify", out) == 1
        assert f"✗ 'confidential' is there, and the run {MADE}" in capsys.readouterr().out


def test_links_in_such_a_run_are_not_followed(made, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name, act in (
        (
            "confidential/log.txt",
            lambda folder: extend_run(folder, 3, 0.5, RunContext(api=Shades())),
        ),
        ("confidential/lock", lambda folder: purge(pe.Run(folder))),
        (
            "populations/000/labels.npy",
            lambda folder: extend_run(folder, 3, 0.5, RunContext(api=Shades())),
        ),
    ):
        folder = planted(made[0].folder, tmp_path / Path(name).name, name="x")
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "mine")
        with pytest.raises((RunError, OSError), match=Path(name).name):
            act(folder)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["populations/002/images.npy", "populations/000/labels.npy"])
@pytest.mark.parametrize(
    "make", [lambda path, mine: path.symlink_to(mine), lambda path, _: os.mkfifo(path)]
)
def test_no_page_of_such_a_run_shows_what_its_links_lead_to_or_waits_for_a_pipe(
    made, tmp_path, name, make, capsys
):
    np.save(tmp_path / "mine.npy", np.load(made[0].folder / name))
    folder = planted(made[0].folder, tmp_path / "run", name="x")
    (folder / name).unlink()
    make(folder / name, tmp_path / "mine.npy")
    for words in (
        ["--text"],
        ["--write"],
        ["--html", tmp_path / "page.html"],
        ["--write", "--confidential"],
    ):
        assert command("view", folder, *words) == 2
        assert f"{name} is a link or a pipe" in capsys.readouterr().err


def test_what_a_run_says_of_itself_is_shown_without_control_characters(made, tmp_path, capsys):
    folder = planted(made[0].folder, tmp_path / "run", name="x")
    with sqlite3.connect(folder / "confidential/journal.sqlite") as journal:
        journal.execute("UPDATE events SET event = '\x1b]0;mine\x07\x1b[2J'")
    assert command("view", folder, "--text") == 0
    told = capsys.readouterr().out
    assert r"\x1b]0;mine\x07\x1b[2J" in told
    assert "\x1b" not in told


def test_an_export_that_comes_back_is_no_run_of_this_machine(own):
    """Its recipe is the one that was sent, and all else may be another's."""
    run = pe.evolve(
        records_in(own), pe.api("glyphs"), out=own / "run", **SETTINGS | {"embedding": "pixels"}
    )
    purge(run)
    assert is_own(run.folder)
    folder = run.export(own / "out")
    assert not is_own(folder)
    assert examine(folder)[1] == []
    (folder / "confidential").mkdir()
    (own / "mine" / "001").mkdir(parents=True)
    (own / "mine" / "001" / "thesis").touch()
    (folder / "extensions").symlink_to(own / "mine")
    with pytest.raises(RunError, match="extensions is a link"):
        pe.extend(folder, 3, progress=pe.Progress())
    assert (own / "mine" / "001" / "thesis").is_file()


# The secret.


def _bind(_number):
    return bind(b"a recipe")


def test_processes_that_start_together_make_one_secret_that_nobody_else_reads(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with get_context("fork").Pool(4) as pool:
        lines = pool.map(_bind, range(16), chunksize=1)
    (secret,) = (path for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert (len({*lines}), secret.stat().st_mode & 0o777, len(secret.read_bytes())) == (
        1,
        0o600,
        32,
    )
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    secret.write_bytes(b"")  # as after a full disk: nobody's hash may count as ours
    assert bind(b"a recipe") == b""


def test_a_run_that_cannot_be_bound_starts_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    told = Told()
    run = evolve(records_in(tmp_path), tmp_path / "run", progress=told, iterations=1)
    assert any(
        "Set XDG_STATE_HOME to a folder that can be written" in line for line in told.warnings
    )
    assert not is_own(run.folder)


def test_a_model_that_a_plug_in_here_would_open_or_fetch_is_named(tmp_path):
    for kind, group in (("dinov2", "embedding"), ("causal_lm", "api"), ("pixel_diffusion", "api")):
        found = reach({group: {"kind": kind, "model": "secret.json"}}, tmp_path)
        assert found[f"{group}.model"] == "secret.json"
    assert "api.model" not in reach(
        {"api": {"kind": "openai_images", "model": "m", "base_url": None}}, tmp_path
    )
