"""The register knows data sets again, wherever they and their ledger files lie, and tells nobody else about them."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pe.errors import PrivacyError, RecipeError
from pe.histogram import histogram_releases
from pe.privacy.data_set import DataSetLedger
from pe.privacy.register import SAMPLE, Register, Remembered, register_path

RUN = histogram_releases(8.0, 3)


def records(start: int, stop: int) -> npt.NDArray[np.uint8]:
    """Digests of the records numbered so."""
    digests = (hashlib.sha256(str(i).encode()).digest() for i in range(start, stop))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def ledger(folder: Path, name: str) -> DataSetLedger:
    return DataSetLedger(folder / f"{name}.ledger.json")


def enter(budget: DataSetLedger, digests: npt.NDArray[np.uint8], run: str, named: bool = False) -> None:
    with Register().entering(Remembered(digests), budget, named, run):
        budget.enter(run, RUN, 1e-5)


def refused(budget: DataSetLedger, digests: npt.NDArray[np.uint8], sentence: str, named: bool = False) -> None:
    for ask in (
        lambda: Register().check(Remembered(digests), budget, named),
        lambda: enter(budget, digests, "x", named),
    ):
        with pytest.raises(RecipeError, match=sentence) as error:
            ask()
        assert "\n" not in str(error.value)
    assert "x" not in budget.read()["runs"]


@pytest.mark.parametrize("named", [False, True])
def test_the_same_records_elsewhere_are_sent_to_the_file_that_counts_them(tmp_path: Path, named: bool) -> None:
    first, second = ledger(tmp_path, "first"), ledger(tmp_path, "second")
    enter(first, records(0, 50), "one")
    refused(second, records(0, 50)[::-1], r"stand in .*first\.ledger\.json.*set private\.ledger_file: .*first", named)
    Register().check(Remembered(records(0, 50)), first, named=True)
    enter(first, records(0, 50), "two", named=True)
    assert first.read()["runs"].keys() == {"one", "two"}


def test_other_records_have_a_file_of_their_own(tmp_path: Path) -> None:
    enter(ledger(tmp_path, "first"), records(0, 5000), "one")
    enter(ledger(tmp_path, "second"), records(5000, 9000), "two")
    enter(
        ledger(tmp_path, "third"), np.concatenate([records(4950, 5000), records(9000, 13_950)]), "three"
    )  # a hundredth in common


@pytest.mark.parametrize(
    "digests",
    [records(0, 19_999), records(1, 20_001), records(0, 2_000), records(10_000, 30_000), records(0, 200_000)],
    ids=["one less", "one replaced", "a tenth of them", "half of them and others", "all and many more"],
)
def test_a_set_that_shares_many_records_is_known_again(tmp_path: Path, digests: npt.NDArray[np.uint8]) -> None:
    enter(ledger(tmp_path, "first"), records(0, 20_000), "one")
    refused(ledger(tmp_path, "second"), digests, r"stand in .*first\.ledger\.json")


@pytest.mark.parametrize("small", range(5))
def test_small_sets_are_compared_whole(tmp_path: Path, small: int) -> None:
    enter(ledger(tmp_path, "first"), records(0, 10 + small), "one")
    refused(ledger(tmp_path, "second"), records(9, 19), "stand in")


def test_a_file_that_was_moved_with_its_data_is_taken_where_it_is(tmp_path: Path) -> None:
    enter(ledger(tmp_path, "first"), records(0, 50), "one")
    ledger(tmp_path, "first").path.rename(tmp_path / "moved.ledger.json")
    enter(ledger(tmp_path, "moved"), records(0, 50), "two")
    refused(ledger(tmp_path, "first"), records(0, 50), r"stand in .*moved\.ledger\.json")


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_file_that_is_gone_is_never_begun_anew_without_a_word(tmp_path: Path, name: str) -> None:
    enter(ledger(tmp_path, "first"), records(0, 50), "one")
    ledger(tmp_path, "first").path.unlink()
    refused(ledger(tmp_path, name), records(0, 50), r"stood in .*first\.ledger\.json, which is gone or older: restore")
    enter(ledger(tmp_path, name), records(0, 50), "two", named=True)  # the owner says so in the recipe
    enter(ledger(tmp_path, name), records(0, 50), "three")


def test_an_older_copy_of_the_file_is_found_out(tmp_path: Path) -> None:
    budget = ledger(tmp_path, "first")
    enter(budget, records(0, 50), "one")
    shutil.copy(budget.path, tmp_path / "backup")
    enter(budget, records(0, 50), "two")
    shutil.copy(tmp_path / "backup", budget.path)
    refused(budget, records(0, 50), "which is gone or older")


def test_two_copies_of_the_file_do_not_count_apart(tmp_path: Path) -> None:
    first, second = ledger(tmp_path, "first"), ledger(tmp_path, "second")
    enter(first, records(0, 50), "one")
    shutil.copy(first.path, second.path)
    enter(second, records(0, 50), "two")
    refused(first, records(0, 50), r"stand in .*second\.ledger\.json")


def test_a_union_of_two_data_sets_goes_where_the_runs_over_both_are_counted(tmp_path: Path) -> None:
    first, second, third = (ledger(tmp_path, name) for name in ("first", "second", "third"))
    enter(first, records(0, 50), "one")
    enter(second, records(50, 100), "two")
    refused(third, records(0, 100), r"set private\.ledger_file: .*first")
    refused(
        first, records(0, 100), r"`pe ledger --file .*first\.ledger\.json --add .*second\.ledger\.json`", named=True
    )
    first.add(second)
    enter(first, records(0, 100), "three", named=True)
    assert first.read()["runs"].keys() == {"one", "two", "three"}
    refused(second, records(50, 100), r"set private\.ledger_file: .*first")
    enter(first, records(50, 100), "four", named=True)


def test_a_copied_file_and_a_record_more_do_not_begin_a_count_of_their_own(tmp_path: Path) -> None:
    first, second = ledger(tmp_path, "first"), ledger(tmp_path, "second")
    enter(first, records(0, 50), "one")
    shutil.copy(first.path, second.path)
    enter(second, records(0, 51), "two")
    refused(first, records(0, 50), r"stand in .*second\.ledger\.json")
    first.path.unlink()
    refused(ledger(tmp_path, "third"), records(0, 50), r"stand in .*second\.ledger\.json", named=True)
    enter(second, records(0, 51), "three")


def test_an_unreadable_ledger_file_or_register_is_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = ledger(tmp_path, "first")
    enter(budget, records(0, 50), "one")
    written = budget.path.read_bytes()
    budget.path.write_bytes(b"\xff\xfe")
    with pytest.raises(PrivacyError, match=r"first\.ledger\.json is not a ledger file"):
        Register().check(Remembered(records(0, 50)), ledger(tmp_path, "second"), named=False)
    budget.path.unlink()
    budget.path.mkdir()
    with pytest.raises(PrivacyError, match=r"ledger file .*first\.ledger\.json cannot be read"):
        Register().check(Remembered(records(0, 50)), ledger(tmp_path, "second"), named=False)
    budget.path.rmdir()
    budget.path.write_bytes(written)
    register_path().write_bytes(b"\xff\xfe")
    with pytest.raises(PrivacyError, match="is no register of data sets"):
        Register().check(Remembered(records(0, 50)), budget, named=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(PrivacyError, match="set XDG_STATE_HOME"):
        Register()


def test_a_run_that_was_not_entered_is_not_noted(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Register().entering(Remembered(records(0, 9)), ledger(tmp_path, "first"), False, "one"),
    ):
        raise ZeroDivisionError
    enter(ledger(tmp_path, "second"), records(0, 9), "two")


def test_of_runs_that_start_together_one_file_counts_all(tmp_path: Path) -> None:
    refusals: list[str] = []

    def start(i: int) -> None:
        try:
            enter(ledger(tmp_path, str(i)), records(0, 50), str(i))
        except RecipeError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=start, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 7


def test_the_file_holds_no_digest_that_could_be_tested_without_its_key_and_is_the_user_s_alone(
    tmp_path: Path, state_home: Path
) -> None:
    enter(ledger(tmp_path, "first"), records(0, 3000), "one")
    path = state_home / "private-evolution-toolkit" / "data-sets.json"
    assert path == register_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    content = json.loads(path.read_text())
    assert content.keys() == {"format", "key", "known"}
    (known,) = content["known"]
    assert len(known["records"]) == SAMPLE
    assert not {digest[:8].tobytes().hex() for digest in records(0, 3000)} & set(known["records"])
    path.unlink()
    enter(ledger(tmp_path, "first"), records(0, 3000), "one")
    again = json.loads(path.read_text())
    assert again["key"] != content["key"]
    assert not set(again["known"][0]["records"]) & set(known["records"])


def test_the_file_holds_the_smallest_keyed_digests_as_ever_and_hashes_each_record_once(tmp_path: Path) -> None:
    digests = records(0, 3000).copy()
    told = Remembered(digests)
    for run in ("one", "two"):
        with Register().entering(told, ledger(tmp_path, "first"), False, run):
            ledger(tmp_path, "first").enter(run, RUN, 1e-5)
        digests[:] = 0
    content = json.loads(register_path().read_text())
    (known,) = content["known"]
    keyed = {hmac.digest(bytes.fromhex(content["key"]), one, "sha256")[:8].hex() for one in records(0, 3000)}
    assert known["records"] == sorted(keyed)[:SAMPLE]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9, "key": "00", "known": []}', '{"format": 1, "key": "0"}'])
def test_what_is_no_register_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    register_path().parent.mkdir(parents=True)
    register_path().write_text(text)
    with pytest.raises(PrivacyError, match="is no register of data sets: restore it"):
        Register().check(Remembered(records(0, 5)), ledger(tmp_path, "first"), False)
    assert register_path().read_text() == text


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(PrivacyError, match=r"cannot be written \(Not a directory\): set XDG_STATE_HOME"):
        Register().check(Remembered(records(0, 5)), ledger(tmp_path, "first"), False)


def test_without_the_variable_it_lies_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for value in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert register_path() == Path("/home/somebody/.local/state/private-evolution-toolkit/data-sets.json")
