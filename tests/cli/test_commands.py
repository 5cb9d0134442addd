"""The `pe` command: its list of commands, its runs, its refusals."""

import json
import re
import shutil

import pytest

from pe.cli.main import _FORMER
from pe.errors import nearest_name
from tests.cli.typed import assert_one_sentence, installed, pe


def test_help_lists_the_commands_and_loads_nothing_that_only_they_need(tmp_path):
    result = installed("--help", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0
    for command in ("demo", "doctor", "init", "run"):
        assert re.search(rf"^  {command} ", result.stdout, re.M)
    imported = set(re.findall(r"\| +([\w.]+)$", result.stderr, re.M))
    assert "click" in imported
    assert not imported & {
        "pydantic",
        "rich",
        "numpy",
        "yaml",
        "asyncio",
        "fastapi",
        "torch",
        "ray",
    }


def test_no_words_at_all_print_the_help(tmp_path):
    bare, help_page = (installed(*words, cwd=tmp_path) for words in ((), ("--help",)))
    assert (bare.returncode, bare.stdout, bare.stderr) == (0, help_page.stdout, "")


def test_an_unknown_command_is_answered_with_the_nearest_or_a_list_of_fifty(tmp_path):
    result = pe("pln", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "Error: No such command 'pln'; did you mean 'plan'?"
    names = [f"a{i:03d}" for i in range(60)]
    assert nearest_name("zzz", names).endswith("'a049' and 10 more.")


def test_a_run_tells_where_its_data_are_and_in_json_no_time(finished):
    shutil.copytree(
        finished,
        there := finished.with_name("again"),
        ignore=shutil.ignore_patterns("out", "*.json"),
    )
    told = pe("run", "recipe.yaml", cwd=there)
    (run,) = (there / "runs").iterdir()
    assert re.fullmatch(r"scans-\d{8}T\d{6}Z-[0-9a-f]{4}", run.name)
    assert told.stdout.startswith("ε = 20, δ = 0.001; all runs over these records (1): ε ≤ 20")
    assert f"runs/{run.name}/synthetic.npz, 8 images" in told.stdout
    patterns = ["view {0}", "evaluate {0} --test PATH", "export {0} TO"]
    commands = [f"pe {words.format(f'runs/{run.name}')}" for words in patterns]
    assert told.stdout.endswith("\nnext: " + "\n      ".join(commands) + "\n")
    assert "next: " not in pe("run", run, "--quiet", cwd=there).stdout
    told = pe(
        "run", "recipe.yaml", "--out", "two", "--json", "--set", "privacy.epsilon=3", cwd=there
    )
    answer = json.loads(told.stdout)
    keys = {
        "epsilon",
        "delta",
        "data_set",
        "noun",
        "images",
        "different",
        "api_calls",
        "warnings",
        "run",
    }
    assert answer.keys() == keys  # a time tells how many records there are
    assert (answer["images"], answer["epsilon"], answer["run"]) == (
        8,
        pytest.approx(3, rel=1e-3),
        "two",
    )


def test_a_limit_names_what_goes_on_and_that_does(recipe):
    def limited(command, *words, most):
        told = pe(command, *words, "--set", f"limits.max_images={most}", cwd=recipe.parent)
        return told.returncode, told.stdout + told.stderr

    status, last = limited("run", recipe, "--out", "out", most=20)
    assert status == 3
    assert (
        "limits.max_images = 20 is reached: 16 samples are made, and the next request, with those "
        "under way" in last
    )
    assert (
        "0 of 8 samples of population/1 are there; `pe run out --set limits.max_images=…` goes on."
        in last
    )
    assert limited("run", "out", most=40)[0] == 0
    status, last = limited("extend", "out", "-n", 4, most=40)
    assert (
        status,
        "`pe extend out -n 4 --degree 0.5 --set limits.max_images=…` goes on." in last,
    ) == (3, True)


def test_console_output_tells_neither_the_number_of_records_nor_what_is_skipped(recipe, scans):
    changes = ["--set", "private.on_bad_record=skip"]
    first = pe("run", recipe, "--out", "one", *changes, cwd=recipe.parent)
    images = sorted(scans.rglob("*.png"))
    for image in images[::2]:
        image.unlink()
    images[1].write_bytes(b"no image")
    second = pe("run", recipe, "--out", "two", *changes, cwd=recipe.parent)
    assert first.stderr == second.stderr != ""
    of_noise = r"\(\d\): ε ≤ [\d.]+|, \d of them different per label"
    shown = [
        re.sub(of_noise, "", re.sub(r"\bone\b", "two", each.stdout)) for each in (first, second)
    ]
    assert shown[0] == shown[1] != ""
    log = (recipe.parent / "two" / "confidential" / "log.txt").read_text()
    assert f"casts no vote: {images[1]}" in log


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run recipe.yaml --set private.path=nowhere", "nothing at /.*/nowhere. Set"),
        ("run recipe.yaml --out public", "public exists already"),
        ("run recipe.yaml --out file/inside", "Not a directory"),
        ("run recipe.yaml --resume", "`--resume` needs `--out`"),
        (f"view {'y' * 300}", "is longer than 255 bytes: choose a shorter one."),
        (
            "view scans --text",
            "scans is not a run, and holds none: name a run, or a folder of runs",
        ),
        ("epsilon --epsilon nan --iterations 3 --delta 1e-5", "epsilon"),
        (
            "epsilon --iterations 3 --delta 1e-5",
            "Give either `--noise-multiplier` or `--epsilon`",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(recipe, words, sentence):
    (recipe.parent / "file").touch()
    before = sorted(recipe.parent.rglob("*"))
    told = pe(*words.split(), cwd=recipe.parent)
    assert (told.returncode, told.stdout, "Traceback" in told.stderr) == (2, "", False)
    assert re.search(sentence, told.stderr.splitlines()[-1])
    assert sorted(recipe.parent.rglob("*")) == before


def test_a_recipe_and_its_finished_run_serve_from_any_folder(recipe):
    root, elsewhere = recipe.parent, recipe.parent / "elsewhere"
    elsewhere.mkdir()
    assert pe("run", "../recipe.yaml", "--out", "out", cwd=elsewhere).returncode == 0
    assert str(root / "scans") not in (elsewhere / "out" / "recipe.yaml").read_text()
    assert "4 more samples" in pe("extend", "elsewhere/out", "-n", 4, cwd=root).stdout


def test_a_file_name_neither_colours_the_terminal_nor_forges_a_line(recipe, scans):
    name, shown = "\x1b[31mx\npe: all is well\u202e.png", "\\x1b[31mx\\npe: all is well\\u202e.png"
    (scans / "benign" / "p1" / name).write_bytes(b"no image")
    result = pe("run", recipe, cwd=recipe.parent)
    assert_one_sentence(result, re.escape(f"{shown} is not a readable PNG"))
    assert set(result.stderr).isdisjoint("\x1b\u202e")
    assert len([line for line in result.stderr.splitlines() if line.startswith("pe: ")]) == 1
    assert (
        f"unexpected extra argument ({shown})" in pe("plan", recipe, name, cwd=recipe.parent).stderr
    )


def test_more_than_twenty_bad_files_stand_in_a_file_that_its_owner_alone_reads(recipe, scans):
    images = sorted(scans.rglob("*.png"))[:22]
    for image in images:
        image.write_bytes(b"no image")
    told = pe("run", recipe, cwd=recipe.parent).stderr.splitlines()
    listed = scans.with_name("scans.bad-files.txt")
    assert told[-23].startswith("pe: 22 private records cannot be read; the first: ")
    assert told[-2] == "  … and 2 more."
    assert (
        told[-1]
        == f"  All of them are listed in {listed}; as confidential as the data, it may be deleted."
    )
    assert listed.stat().st_mode & 0o777 == 0o600
    assert [line.split(" is not ")[0] for line in listed.read_text().splitlines()] == [
        *map(str, images)
    ]
    assert not (recipe.parent / "runs").exists()


def test_doctor_tells_what_works_and_finds_another_package_under_our_name(tmp_path):
    info = tmp_path / "impostor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: impostor\nVersion: 1.0\n")
    (info / "RECORD").write_text("pe/__init__.py,,\nimpostor-1.0.dist-info/METADATA,,\n")
    result = installed("doctor", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "✗ import name 'pe' is also installed by impostor" in result.stdout
    assert re.search(r"pe\.adapters: .*glyphs, .*public_images", result.stdout)
    assert "extra medical (" in result.stdout
    assert pe("doctor", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("name", _FORMER)
def test_a_command_that_is_gone_names_the_one_to_type_in_its_place(tmp_path, name):
    told = pe(name, "out", cwd=tmp_path)
    words = _FORMER[name].split()
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"Error: `pe {name}` is now `pe {' '.join(words)}`.\n"
    flags = [word for word in words if word.startswith("--")]
    assert set(flags) <= set(re.findall(r"--[\w-]+", pe(words[0], "--help", cwd=tmp_path).stdout))
