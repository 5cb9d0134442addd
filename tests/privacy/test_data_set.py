import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
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
PLAIN = RUN[0].to_dict()


@pytest.fixture
def budget(tmp_path):
    return DataSetLedger.beside(tmp_path / "scans")


def test_runs_over_one_data_set_add_up_and_one_that_goes_on_counts_once(budget, tmp_path):
    assert budget.path == tmp_path.resolve() / "scans.ledger.json"
    first = budget.enter("one", RUN, 1e-5)
    assert (
        budget.enter("one", RUN, 1e-5)
        == first
        == {"epsilon": epsilon(RUN, 1e-5), "delta": 1e-5, "runs": 1}
    )
    both = budget.enter("two", RUN, 1e-5)
    assert (
        both
        == {"epsilon": epsilon(RUN + RUN, 1e-5), "delta": 1e-5, "runs": 2}
        == budget.total(1e-5)
    )
    runs = {run: [release.to_dict() for release in RUN] for run in ("one", "two")}
    deltas = {"one": 1e-5, "two": 1e-5}
    content = {"format": 1, "cap": None, "runs": runs, "deltas": deltas, "drawn": {}}
    assert json.loads(budget.path.read_text()) == content  # and nothing else
    assert budget.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("longer", [0, 1])
def test_a_run_in_two_files_counts_once_with_the_larger_plan(longer, tmp_path):
    """One of the files is a copy from before the run was extended."""
    files = [DataSetLedger.beside(tmp_path / name) for name in ("scans", "copy")]
    for i, file in enumerate(files):
        file.enter("one", RUN + RUN[: i == longer], 1e-5)
        file.drew("one", 1 + (i == longer))
    files[0].add(files[1])
    assert files[0].total(1e-5) == {
        "epsilon": epsilon(RUN + RUN[:1], 1e-5),
        "delta": 1e-5,
        "runs": 1,
    }
    assert files[0].draw_count("one") == 2


def test_a_cap_refuses_the_run_that_would_exceed_it_and_does_not_enter_it(budget):
    assert budget.refusal(RUN) == ""
    assert not budget.path.exists()
    budget.cap(Budget(epsilon(RUN + RUN, 1e-6) + 1e-9, 1e-6))
    budget.enter("one", RUN, 1e-5)
    assert budget.refusal(RUN) == ""
    budget.enter("two", RUN, 1e-5)
    assert "above the cap of" in budget.refusal(RUN)
    for refused in (lambda: budget.enter("three", RUN, 1e-5), lambda: budget.check(RUN)):
        with pytest.raises(BudgetExceeded, match="above the cap of"):
            refused()
    noiseless = [Release("votes", "none", 1.0, 0.0)]
    with pytest.raises(BudgetExceeded, match="adds no noise"):
        budget.enter("three", noiseless, 1e-5)
    assert budget.read()["runs"].keys() == {"one", "two"}
    budget.cap(None)
    assert budget.enter("three", RUN, 1e-5)["runs"] == 3
    assert budget.enter("four", noiseless, 1e-5) == {"epsilon": None, "delta": None, "runs": 4}


@pytest.mark.parametrize(
    ("kinds", "whom", "moved"),
    [
        # to replace is to take away and to add; another unit's record may take its place
        ([{}, {"relation": Relation.REPLACE_ONE}], "one record replaced by another", [2, 1]),
        ([{}, {"relation": Relation.ZERO_OUT}], "one record replaced by another", [2, 2]),
        (
            [{}, {"unit": "patient"}],
            "one record replaced by another, of the same unit or not",
            [2, 4],
        ),
        (
            [{"unit": "p"}, {"unit": "p", "relation": Relation.REPLACE_ONE}],
            "one p replaced by another",
            [2, 1],
        ),
    ],
)
def test_runs_of_several_kinds_are_totalled_for_a_record_or_unit_that_is_replaced(
    budget, kinds, whom, moved
):
    releases = [
        Release("votes", "discrete_gaussian", 1.0, 40.0, grid=2**20, **kind) for kind in kinds
    ]
    assert "for" not in budget.enter("one", releases[:1], 1e-5)
    total = budget.enter("two", releases[1:], 1e-5)
    assert total["for"].startswith(f"for {whom}")
    assert total["epsilon"] == pytest.approx(gaussian_epsilon(math.hypot(*moved) / 40, 1e-5))


def test_a_record_that_moves_to_another_patient_moves_the_votes_by_no_more_than_the_total_says(
    budget,
):
    candidates, labels = np.array([[0, 0], [9, 9]], np.float32), np.zeros(2, np.int32)

    def votes(at, unit):
        vectors = np.array([[0, 0], [at, at]], np.float32)  # patient 0 has the first record
        private = PrivateEmbeddings(vectors, np.zeros(2, np.int32), np.array([0, unit]), ("all",))
        return count_votes(private, candidates, labels, 2**20) / 2**20

    moved = float(np.linalg.norm(votes(0, 1) - votes(9, 0)))
    assert moved == pytest.approx(1.474, abs=1e-3)  # above √2, a patient's
    sigma = 2.0
    votes_of = {"mechanism": "discrete_gaussian", "grid": 2**20, "relation": Relation.REPLACE_ONE}
    patients = Release(
        "votes", sensitivity=2**0.5, noise_multiplier=sigma, unit="patient", **votes_of
    )
    weak = Release("votes", sensitivity=2**0.5, noise_multiplier=1e3, **votes_of)
    budget.enter("one", [patients], 1e-5)
    total = budget.enter("two", [weak], 1e-5)
    assert total["epsilon"] >= gaussian_epsilon(moved / (2**0.5 * sigma), 1e-5)
    assert "of the same unit or not" in total["for"]


def test_two_sampled_units_are_no_better_off_than_the_total_says():
    """Either is seen with probability 1 − (1 − q)², which one unit of twice the sensitivity does
    not cover.
    """
    q, std, z = 0.1, 0.5, np.linspace(-8, 8, 40_001)
    sampled = Release(
        "x",
        "discrete_gaussian",
        2.0,
        std / 2,
        Relation.REPLACE_ONE,
        "patient",
        Poisson(q),
        1,
        2**20,
    )
    one_unit = replace(sampled, sensitivity=4.0, noise_multiplier=std / 4)
    seen = [(1 - q) ** 2, 2 * q * (1 - q), q * q]
    before, after = (
        sum(p * norm.pdf(z, at * k, std) for k, p in enumerate(seen)) for at in (-1, 1)
    )
    covers = []
    for budget in (0.01, 0.1, 1.0):
        true = float(np.maximum(after - math.exp(budget) * before, 0).sum() * (z[1] - z[0]))
        assert delta([for_a_record(sampled)], budget) >= true * 0.999
        covers.append(delta([one_unit], budget) >= true * 0.999)
    assert not all(covers)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"format": 9, "cap": null, "runs": {}}',
        '{"format": 1, "cap": 3, "runs": {}}',
        '{"format": 1, "cap": {"epsilon": 1, "epsilon": 9, "delta": 1e-6}, "runs": {}}',
        '{"format": 1, "cap": null, "runs": {"one": []}, "deltas": {"one": "x"}}',
        '{"format": 1, "cap": null, "runs": {"one": []}, "deltas": {"one": 2}}',
        '{"format": 1, "cap": null, "runs": {"one": []}, "drawn": {"one": "x"}}',
        *(
            json.dumps({"format": 1, "cap": None, "runs": {"one": [changed]}})
            for changed in (
                *(
                    {key: one for key, one in PLAIN.items() if key != left_out}
                    for left_out in ("relation", "unit")
                ),
                *(
                    PLAIN | change
                    for change in ({"unit": ["a"]}, {"name": {"a": 1}}, {"sensitivity": 1e308})
                ),
            )
        ),
    ],
)
def test_what_is_no_ledger_file_is_refused_left_alone_and_counted_nowhere(budget, text, tmp_path):
    budget.path.write_text(text)
    with pytest.raises(PrivacyError, match="not a ledger file"):
        budget.enter("one", RUN, 1e-5)
    assert budget.path.read_text() == text
    mine = DataSetLedger.beside(tmp_path / "mine")
    mine.enter("two", RUN, 1e-5)
    before = mine.path.read_bytes()
    with pytest.raises(PrivacyError, match="not a ledger file"):
        mine.add(budget)
    assert mine.path.read_bytes() == before


def test_what_is_refused_leaves_no_empty_file(budget):
    for use in (
        partial(budget.check, RUN),
        partial(budget.drew, "one", 0),
        partial(budget.strike, "one"),
    ):
        with suppress(PrivacyError):
            use()
        assert not budget.path.exists()
    budget.path.touch()  # by the owner, whose rights it has
    budget.check(RUN)
    assert budget.path.exists()


def test_a_full_disk_loses_no_run_that_was_entered_and_a_place_that_cannot_be_written_is_named(
    budget, tmp_path, monkeypatch
):
    budget.enter("one", RUN, 1e-5)
    before = budget.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", full)
        with pytest.raises(PrivacyError, match=r"cannot be written \(No space left on device\)"):
            budget.enter("two", RUN, 1e-5)
    assert budget.path.read_bytes() == before
    assert budget.enter("two", RUN, 1e-5)["runs"] == 2
    with pytest.raises(PrivacyError, match=r"Name another file in `private\.ledger_file`"):
        DataSetLedger(tmp_path / "none" / "b.json").enter("one", RUN, 1e-5)


def test_a_link_to_the_file_stays_one_and_so_do_its_rights(budget, tmp_path):
    budget.enter("one", RUN, 1e-5)
    budget.path.chmod(0o660)
    (tmp_path / "link").symlink_to(budget.path)
    assert DataSetLedger(tmp_path / "link").enter("two", RUN, 1e-5) == budget.total(1e-5)
    assert (tmp_path / "link").is_symlink()
    assert budget.path.stat().st_mode & 0o777 == 0o660


def test_a_run_is_struck_out_only_before_it_begins_to_draw_and_draws_only_after_it_was_entered_again(
    budget,
):
    budget.enter("one", RUN, 1e-5)
    budget.enter("two", RUN, 1e-5)
    budget.drew("two", 0)
    budget.strike("one")
    assert budget.total(1e-5) == {"epsilon": epsilon(RUN, 1e-5), "delta": 1e-5, "runs": 1}
    for run, sentence in (("one", "does not list this run"), ("two", "has begun to draw noise")):
        with pytest.raises(PrivacyError, match=sentence):
            budget.strike(run)
    with pytest.raises(PrivacyError, match=r"Nothing is drawn, because .* does not list the run"):
        budget.drew("one", 0)
    assert budget.enter("one", RUN, 1e-5)["runs"] == 2
    budget.drew("one", 1)
    assert budget.draw_count("one") == 1


def test_a_run_is_either_struck_out_or_begins_to_draw_never_both(budget):
    def attempt(act, *given):
        with suppress(PrivacyError):
            act(*given)
            outcomes.append(act.__name__)

    for i in range(20):
        budget.enter(f"{i}", RUN, 1e-5)
        outcomes = []
        with ThreadPoolExecutor(2) as pool:
            pool.submit(attempt, budget.strike, f"{i}")
            pool.submit(attempt, budget.drew, f"{i}", 0)
        assert len(outcomes) == 1
        assert (f"{i}" in budget.read()["runs"]) == (outcomes == ["drew"])


def test_a_ledger_whose_total_would_never_end_is_not_counted(tmp_path):
    mine, theirs = DataSetLedger(tmp_path / "mine.json"), DataSetLedger(tmp_path / "theirs.json")
    release = {
        "name": "x",
        "mechanism": "discrete_laplace",
        "sensitivity": 1.0,
        "noise_multiplier": 1.0,
    }
    release |= {
        "relation": "add_remove",
        "unit": "record",
        "sampling": None,
        "count": 10**9,
        "grid": 1024,
    }
    theirs.path.write_text(json.dumps({"format": 1, "cap": None, "runs": {"r": [release]}}))
    with pytest.raises(PrivacyError, match="is not a ledger file"):
        mine.add(theirs)
    assert not mine.path.exists()
