"""`pe doctor --gpu`: what it tells without a GPU, and that a check that breaks down spoils no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pe.cli.doctor import doctor
from pe.engine.gpu_check.runner import check_names, run_check
from pe.engine.gpu_check.versions import is_built_for
from pe.errors import PluginError
from tests.cli.typed import pe

CHECKS = """
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pe.plugins.gpu_checks import Found, GPUCheck, judged


def fine(device, size):
    print("what a library prints is no part of the answer")
    return judged({"device": device, "size": size, "images/s": 1234.5678, "votes": 2048}, [])


def wrong(device, size):
    return judged({"grey levels": 7}, ["images differ by 7 grey levels", "and more"])


def raises(device, size):
    raise ValueError("the sum is\\n3")


def killed(device, size):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(device, size):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["CHILD"]).write_text(str(child.pid))
    time.sleep(600)


FINE, WRONG, RAISES, KILLED = map(GPUCheck, (fine, wrong, raises, killed))
HANGS = GPUCheck(hangs, seconds=5)
"""
OURS = ("third_fine", "third_hangs", "third_killed", "third_lacks", "third_raises", "third_wrong")


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else with checks of its own."""
    site = tmp_path / "site"
    info = site / "third-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "third.py").write_text(CHECKS)
    metadata = "Metadata-Version: 2.1\nName: third\nVersion: 1.0\nProvides-Extra: far\n"
    (info / "METADATA").write_text(metadata + "Requires-Dist: no-such-library>=1 ; extra == 'far'\n")
    points = [f"{name} = third:{name.removeprefix('third_').upper()}" for name in OURS if name != "third_lacks"]
    (info / "entry_points.txt").write_text("\n".join(["[pe.gpu_checks]", *points, "third_lacks = third:FINE [far]"]))
    monkeypatch.syspath_prepend(str(site))
    places = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    return tmp_path


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, ["--gpu", *arguments], catch_exceptions=False)


def lives(pid: int) -> bool:
    """Whether a process is there and is no zombie, which waits for init to take it away."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_without_a_gpu_it_is_one_sentence_and_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = pe("doctor", "--gpu", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("pe: torch sees no NVIDIA GPU to check: run `pe doctor --gpu` where there is one")


def test_a_check_that_breaks_down_is_told_and_the_others_go_on(
    third_party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    chosen = [word for name in OURS for word in ("--only", name)]
    result = invoked(*chosen, "--quick", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["device"], told["size"]) == ("cuda:0", "small")
    by_name = {one["name"]: (one["found"]["state"], one["found"]["reason"]) for one in told["checks"]}
    assert by_name == {
        "third_fine": ("pass", ""),
        "third_hangs": ("fail", "it was not done within 5 seconds, and was ended"),
        "third_killed": ("fail", "its process was ended by SIGKILL"),
        "third_lacks": (
            "skipped",
            "The check 'third_lacks' needs no-such-library: not installed, so pip install 'third[far]'.",
        ),
        "third_raises": ("fail", r"ValueError: the sum is\n3"),
        "third_wrong": ("fail", "images differ by 7 grey levels (and 1 more)"),
    }
    logs = {one["name"]: one["log"] for one in told["checks"]}
    assert logs["third_fine"] == ""
    assert "Traceback" in logs["third_raises"]
    assert not lives(int((third_party / "child").read_text()))  # what a check started is ended with it


def test_the_table_has_what_was_measured(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    result = invoked("--only", "third_fine")
    assert result.exit_code == 0
    head, *figures = result.stdout.splitlines()
    assert head.startswith("pass     third_fine (")
    assert [line.strip() for line in figures] == ["device: cuda:0", "size: real", "images/s: 1,235", "votes: 2,048"]


def test_the_versions_come_first_and_an_unknown_check_is_answered_with_the_nearest(third_party: Path) -> None:
    names = check_names()
    assert names[0] == "versions"
    assert names[1:] == sorted(names[1:])
    assert set(OURS) < set(names)
    with pytest.raises(PluginError, match="Unknown check 'serch'; did you mean 'search'"):
        check_names(("serch",))


def test_options_that_do_not_go_together_are_refused() -> None:
    for arguments in (["--quick"], ["--json"], ["--gpu", "--endpoint", "http://127.0.0.1"]):
        assert CliRunner().invoke(doctor, arguments).exit_code == 2


def test_a_check_that_ships_runs_in_a_process_of_its_own() -> None:
    checked = run_check("versions", "cpu", "tiny")
    assert checked.found.state == "pass", checked
    assert "torch" in checked.found.figures


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),  # machine code of its generation
        ((9, 0), ["sm_75", "sm_80", "sm_86"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # compiled when it is first run
        ((12, 0), ["sm_90", "sm_100", "sm_120"], True),
        ((10, 3), ["sm_90a", "sm_100a"], False),  # for one architecture alone
        ((7, 0), ["sm_75", "compute_75"], False),
        ((9, 0), [], False),
    ],
)
def test_torch_is_built_for_a_gpu_or_not(capability: tuple[int, int], built: list[str], runs: bool) -> None:
    assert is_built_for(capability, built) is runs
