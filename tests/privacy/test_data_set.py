import json
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from pe.errors import BudgetExceeded, PrivacyError
from pe.histogram import count_votes, histogram_releases
from pe.privacy.accounting import delta, epsilon
from pe.privacy.data_set import DataSetLedger, for_a_record
from pe.privacy.ledger import Budget
from pe.privacy.mechanisms import gaussian_epsilon
from pe.privacy.release import Poisson, Relation, Release
from pe.private.embeddings import PrivateEmbeddings

RUN = histogram_releases(8.0, 3)


def test_runs_over_one_data_set_add_up(tmp_path: Path) -> None:
    budget = DataSetLedger.beside(tmp_path / "scans")
    assert budget.path == tmp_path.resolve() / "scans.ledger.json"
    first = budget.enter("one", RUN, 1e-5)
    both = budget.enter("two", RUN, 1e-5)
    assert first == {"epsilon": epsilon(RUN, 1e-5), "delta": 1e-5, "runs": 1}
    assert both == {"epsilon": epsilon(RUN + RUN, 1e-5), "delta": 1e-5, "runs": 2}


def test_a_run_that_goes_on_counts_once(tmp_path: Path) -> None:
    budget = DataSetLedger.beside(tmp_path / "scans")
    assert budget.enter("one", RUN, 1e-5) == budget.enter("one", RUN, 1e-5)


def test_a_cap_refuses_the_run_that_would_exceed_it_and_does_not_enter_it(tmp_path: Path) -> None:
    budget = DataSetLedger.beside(tmp_path / "scans")
    budget.cap(Budget(epsilon(RUN + RUN, 1e-6) + 1e-9, 1e-6))
    budget.enter("one", RUN, 1e-5)
    budget.enter("two", RUN, 1e-5)
    with pytest.raises(BudgetExceeded, match="above the cap of"):
        budget.enter("three", RUN, 1e-5)
    assert budget.read()["runs"].keys() == {"one", "two"}
    budget.cap(None)
    assert budget.enter("three", RUN, 1e-5)["runs"] == 3


@pytest.mark.parametrize(
    "kind", [{"relation": Relation.REPLACE_ONE}, {"relation": Relation.ZERO_OUT}, {"unit": "patient"}]
)
def test_runs_of_several_kinds_are_totalled_for_a_record_that_is_replaced(tmp_path: Path, kind: dict[str, Any]) -> None:
    budget = DataSetLedger.beside(tmp_path / "scans")
    other = Release("votes", "discrete_gaussian", 1.0, 40.0, grid=2**20, **kind)
    assert "for" not in budget.enter("one", RUN, 1e-5)
    total = budget.enter("two", [other], 1e-5)
    assert total["for"].startswith("for one record replaced by another")
    moved = 1 if other.relation is Relation.REPLACE_ONE else 2  # to replace is to take away and to add
    moved *= 1 if other.unit == "record" else 2  # from one unit to another
    mus = [2 / release.noise_multiplier for release in RUN] + [moved / 40.0]
    assert total["epsilon"] == pytest.approx(gaussian_epsilon(math.hypot(*mus), 1e-5))
    assert total["epsilon"] > epsilon(RUN, 1e-5) + epsilon([other], 1e-5) / 2


def test_a_record_that_moves_to_another_patient_moves_the_votes_by_no_more_than_the_total_says(tmp_path: Path) -> None:
    candidates, labels = np.array([[0, 0], [9, 9]], np.float32), np.zeros(2, np.int32)

    def votes(at: float, unit: int) -> npt.NDArray[np.float64]:
        vectors = np.array([[0, 0], [at, at]], np.float32)  # patient 0 has the first record
        private = PrivateEmbeddings(vectors, np.zeros(2, np.int32), np.array([0, unit]), ("all",))
        return count_votes(private, candidates, labels, 2**20) / 2**20

    moved = float(np.linalg.norm(votes(0, 1) - votes(9, 0)))
    assert moved == pytest.approx(1.474, abs=1e-3)  # above √2, a patient's
    budget, sigma = DataSetLedger(tmp_path / "b.json"), 2.0
    votes_of = {"mechanism": "discrete_gaussian", "grid": 2**20, "relation": Relation.REPLACE_ONE}
    patients = Release("votes", sensitivity=2**0.5, noise_multiplier=sigma, unit="patient", **votes_of)
    weak = Release("votes", sensitivity=2**0.5, noise_multiplier=1e3, **votes_of)
    budget.enter("one", [patients], 1e-5)
    total = budget.enter("two", [weak], 1e-5)
    assert total["epsilon"] >= gaussian_epsilon(moved / (2**0.5 * sigma), 1e-5)
    assert "of the same unit or not" in total["for"]


def test_two_sampled_units_are_no_better_off_than_the_total_says() -> None:
    """Either is seen with probability 1 − (1 − q)², which one unit of twice the sensitivity does not cover."""
    q, std, z = 0.1, 0.5, np.linspace(-8, 8, 40_001)
    sampled = Release("x", "discrete_gaussian", 2.0, std / 2, Relation.REPLACE_ONE, "patient", Poisson(q), 1, 2**20)
    one_unit = replace(sampled, sensitivity=4.0, noise_multiplier=std / 4)
    seen = [(1 - q) ** 2, 2 * q * (1 - q), q * q]
    before, after = (sum(p * norm.pdf(z, at * k, std) for k, p in enumerate(seen)) for at in (-1, 1))
    covers = []
    for budget in (0.01, 0.1, 1.0):
        true = float(np.maximum(after - math.exp(budget) * before, 0).sum() * (z[1] - z[0]))
        assert delta([for_a_record(sampled)], budget) >= true * 0.999
        covers.append(delta([one_unit], budget) >= true * 0.999)
    assert not all(covers)


def test_runs_by_patients_that_differ_in_relation_are_totalled_for_a_patient(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    for run, relation in (("one", Relation.ADD_REMOVE), ("two", Relation.REPLACE_ONE)):
        total = budget.enter(run, [Release("v", "discrete_gaussian", 1.0, 40.0, relation, "patient", grid=2**20)], 1e-5)
    assert total["for"].startswith("for one patient replaced by another")
    assert total["epsilon"] == pytest.approx(gaussian_epsilon(math.hypot(2, 1) / 40, 1e-5))


def test_runs_that_start_together_are_all_counted(tmp_path: Path) -> None:
    budget = DataSetLedger.beside(tmp_path / "scans")
    threads = [threading.Thread(target=budget.enter, args=(str(i), RUN, 1e-5)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(budget.read()["runs"]) == 12


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 9, "cap": null, "runs": {}}',
        '{"format": 1, "cap": 3, "runs": {}}',
        '{"format": 1, "cap": null, "runs": {}, "runs": {}}',
        '{"format": 1, "cap": {"epsilon": 1, "epsilon": 9, "delta": 1e-6}, "runs": {}}',
    ],
)
def test_what_is_no_ledger_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.path.write_text(text)
    with pytest.raises(PrivacyError, match="not a ledger file"):
        budget.enter("one", RUN, 1e-5)
    assert budget.path.read_text() == text


@pytest.mark.parametrize("use", ["check", "drew", "strike"])
def test_what_is_refused_leaves_no_empty_file(tmp_path: Path, use: str) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    with suppress(PrivacyError):
        if use == "check":
            budget.check(RUN)
        elif use == "drew":
            budget.drew("one", 0)
        else:
            budget.strike("one")
    assert not budget.path.exists()
    budget.path.touch()  # by the owner, whose rights it has
    budget.check(RUN)
    assert budget.path.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"name another with private\.ledger_file"):
        DataSetLedger(tmp_path / "none" / "b.json").enter("one", RUN, 1e-5)


def test_the_file_holds_releases_and_deltas_and_nothing_else(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.enter("one", RUN, 1e-5)
    content = json.loads(budget.path.read_text())
    runs = {"one": [release.to_dict() for release in RUN]}
    assert content == {"format": 1, "cap": None, "runs": runs, "deltas": {"one": 1e-5}}
    assert budget.path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_loses_no_run_that_was_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.enter("one", RUN, 1e-5)
    before = budget.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", full)
        with pytest.raises(PrivacyError, match=r"cannot be written \(No space left on device\)"):
            budget.enter("two", RUN, 1e-5)
    assert budget.path.read_bytes() == before
    assert budget.enter("two", RUN, 1e-5)["runs"] == 2


def test_a_link_to_the_file_stays_one_and_so_do_its_rights(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.enter("one", RUN, 1e-5)
    budget.path.chmod(0o660)
    (tmp_path / "link").symlink_to(budget.path)
    assert DataSetLedger(tmp_path / "link").enter("two", RUN, 1e-5) == budget.total(1e-5)
    assert (tmp_path / "link").is_symlink()
    assert budget.path.stat().st_mode & 0o777 == 0o660


def test_a_run_is_struck_out_only_before_it_begins_to_draw(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.enter("one", RUN, 1e-5)
    budget.enter("two", RUN, 1e-5)
    budget.drew("two", 0)
    budget.strike("one")
    assert budget.total(1e-5) == {"epsilon": epsilon(RUN, 1e-5), "delta": 1e-5, "runs": 1}
    for run, sentence in (("one", "does not hold this run"), ("two", "has begun to draw noise")):
        with pytest.raises(PrivacyError, match=sentence):
            budget.strike(run)


def test_a_run_that_was_struck_out_draws_only_after_it_was_entered_again(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    budget.enter("one", RUN, 1e-5)
    budget.strike("one")
    with pytest.raises(PrivacyError, match="was struck out of it, so nothing is drawn"):
        budget.drew("one", 0)
    assert budget.enter("one", RUN, 1e-5)["runs"] == 1
    budget.drew("one", 1)


def test_a_run_is_either_struck_out_or_begins_to_draw_never_both(tmp_path: Path) -> None:
    budget, outcomes = DataSetLedger(tmp_path / "b.json"), []

    def attempt(act: Callable[[], None], what: str) -> None:
        with suppress(PrivacyError):
            act()
            outcomes.append(what)

    for i in range(20):
        budget.enter(f"{i}", RUN, 1e-5)
        outcomes.clear()
        acts = [(partial(budget.strike, f"{i}"), "struck"), (partial(budget.drew, f"{i}", 0), "drew")]
        threads = [threading.Thread(target=attempt, args=act) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 1
        assert (f"{i}" in budget.read()["runs"]) == (outcomes == ["drew"])


def test_what_a_cap_would_refuse_is_told_from_the_file_alone(tmp_path: Path) -> None:
    budget = DataSetLedger(tmp_path / "b.json")
    assert budget.refusal(RUN) == ""
    assert not budget.path.exists()
    budget.cap(Budget(epsilon(RUN, 1e-6) + 1e-9, 1e-6))
    assert budget.refusal(RUN) == ""
    budget.enter("one", RUN, 1e-5)
    assert "above the cap of" in budget.refusal(RUN)
