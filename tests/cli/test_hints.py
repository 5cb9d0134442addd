"""Every command that a message tells the user to type can be typed as it is, whatever the folder is
called.
"""

import re
import shlex
import shutil

import pytest
import yaml

from tests.cli.typed import pe

NAME = "my runs/it's (one) $HOME"
EXTEND = ["-n", 3, "--set", "limits.max_images=1"]


def commands(told):
    """The words of each command in a message that names a folder."""
    text = told.stdout + told.stderr
    found = [
        match[1] or match[2]
        for match in re.finditer(r"`((?:pe|mkdir) .+?)`|next: (pe .+)|: (?=pe )", text)
    ]
    found += re.findall(r": (pe extend .+ -n N)", text) + re.findall(r"\((pe run .+)\)", text)
    return [shlex.split(one) for one in found if one]


@pytest.fixture
def folder(finished, tmp_path):
    """The finished run, under a name that a shell would take apart."""
    for name in ("scans", "public"):
        (tmp_path / name).symlink_to(finished / name)
    content = yaml.safe_load((finished / "recipe.yaml").read_text())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "my runs").mkdir()
    return shutil.copytree(finished / "out", tmp_path / NAME)


def exported(folder, form="npz"):
    place = folder.with_name("an export")
    assert pe("export", folder, place, "--format", form, cwd=folder.parent).returncode == 0
    return place


def told_of(case, folder):
    """The message of one case, and the folder that its commands are about."""
    here = folder.parents[1]
    if case == "a limit of an extension":
        return pe("extend", NAME, *EXTEND, cwd=here), NAME
    if case == "an extension that stopped":
        pe("extend", NAME, *EXTEND, cwd=here)
        return pe("view", NAME, "--text", cwd=here), NAME
    if case == "a run that is there":
        return pe("run", "recipe.yaml", "--out", NAME, cwd=here), NAME
    if case == "a folder in place of a recipe":
        return pe("run", NAME, "--out", "x", cwd=here), NAME
    if case == "an extension of an export":
        return pe("extend", exported(folder), "-n", 3, cwd=here), str(folder.with_name("an export"))
    if case == "an export that is gone on with":
        return pe("run", exported(folder), cwd=here), str(folder.with_name("an export"))
    if case == "an export in another form":
        place = exported(folder, "parquet")
        return pe("export", place, "y", cwd=here), str(place)
    if case == "a run that is not finished":
        (folder / "certificate.json").unlink()
        pe("run", "recipe.yaml", "--out", "my runs/two", "--set", "limits.max_images=9", cwd=here)
        return pe("view", "my runs/two", "--text", cwd=here), "my runs/two"
    pe("purge", NAME, "--yes", cwd=here)
    return pe("extend", NAME, "-n", 3, cwd=here), NAME


CASES = {
    "a limit of an extension": 1,
    "an extension that stopped": 1,
    "a run that is there": 1,
    "a folder in place of a recipe": 1,
    "an extension of an export": 2,
    "an export that is gone on with": 1,
    "an export in another form": 1,
    "a run that is not finished": 1,
    "a run that was purged": 1,
}


@pytest.mark.parametrize("case", CASES)
def test_a_command_in_a_message_names_the_folder_whole(case, folder):
    told, place = told_of(case, folder)
    found = [words for words in commands(told) if len(words) > 2]
    assert len(found) >= CASES[case], told.stderr + told.stdout
    for words in found:
        assert words[0] in ("pe", "mkdir")
        assert any(word.startswith(place) for word in words), (case, words)


def test_the_command_that_goes_on_with_an_extension_does(folder):
    here = folder.parents[1]
    (words,) = commands(pe("extend", NAME, *EXTEND, cwd=here))
    told = pe(*(word.replace("…", "900") for word in words[1:]), cwd=here)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"3 more samples: {NAME}/extension-001.npz")


def test_a_call_that_a_message_tells_is_python():
    from pe.engine.execution import RunContext

    call = RunContext(python=True).hint("resume", "it's", "limits.max_cost")
    assert call == """pe.resume("it's", changes={'limits.max_cost': …})"""
