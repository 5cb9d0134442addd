"""`pe verify`, `pe export`, `pe purge`, `pe epsilon` and `pe ledger` on real runs."""

import json

import pytest

from pe.errors import RunError
from pe.histogram import histogram_releases
from pe.privacy.certificate import verify
from pe.privacy.data_set import DataSetLedger
from pe.store.durable import RunLock
from pe.store.export import examine
from tests.cli.conftest import evolved
from tests.cli.typed import assert_one_sentence
from tests.cli.typed import pe as command


def test_a_finished_run_verifies(run, tmp_path):
    result = command("verify", run.folder, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    assert "ε = 5 at δ = 1e-05" in result.stdout
    page = run.folder / "certificate.md"
    page.write_text(
        page.read_text().replace("`pe verify`", "`pe privacy`")
    )  # as the command was called
    assert (
        json.loads(command("verify", run.folder, "--json", cwd=tmp_path).stdout)["problems"] == []
    )


def test_what_is_not_as_certified_is_named_with_status_1(run, tmp_path):
    def found(problem):
        result = command("verify", run.folder, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (1, "")
        assert any(
            problem in line for line in result.stdout.splitlines() if line.startswith("✗ ")
        ), result.stdout
        return result.stdout

    page, certificate = run.folder / "certificate.md", run.folder / "certificate.json"
    (run.folder / "recipe.yaml").rename(tmp_path / "recipe.yaml")
    found("'recipe.yaml' is covered but missing")
    (tmp_path / "recipe.yaml").rename(run.folder / "recipe.yaml")
    page.write_text(page.read_text().replace("ε = 5", "ε = 0.1"))
    assert "ε = 0.1" not in found(
        "'certificate.md' is missing, or does not say what certificate.json says"
    )
    certificate.write_text("{")
    found("certificate.json is damaged: restore it from a copy.")
    certificate.unlink()
    assert_one_sentence(command("verify", run.folder, cwd=tmp_path), "not finished")


def test_a_certificate_that_is_no_json_of_finite_numbers_is_damaged(run, tmp_path):
    texts = (
        "[1]",
        '{"covered": 3}',
        '{"epsilon": Infinity}',
        '{"epsilon": 1e400}',
        f'{{"n": {"9" * 400}}}',
    )
    for text in (*texts, '{"n": 1, "n": 1}', "[" * 200_000):
        (run.folder / "certificate.json").write_text(text)
        assert any("is damaged" in problem for problem in examine(run.folder)[1]), text[:40]
        with pytest.raises(RunError, match="damaged"):
            run.export(tmp_path / "out")


@pytest.mark.parametrize("handed", [False, True])
def test_the_releases_that_are_listed_are_those_that_are_there(run, tmp_path, handed):
    folder = run.export(tmp_path / "out") if handed else run.folder
    certificate = json.loads((folder / "certificate.json").read_text())
    *others, last = certificate["releases"]
    assert verify(certificate, folder) == []
    for releases, sentence in (
        (others, "'releases/histogram-2.npy' is covered, but it belongs to no release"),
        ([*others, last | {"state": "planned"}], "is covered, but it belongs to no release"),
        (
            [*others, last, last | {"name": "x/9"}],
            "listed as made, but 'releases/x-9.npy' is not cove",
        ),
    ):
        assert any(
            sentence in problem for problem in verify(certificate | {"releases": releases}, folder)
        )


def test_an_export_is_told_and_a_purge_is_asked_about(run, tmp_path):
    told = command("export", run.folder, "out", "--format", "parquet", cwd=tmp_path)
    assert told.stdout == "Exported to out.\nnext: pe verify out\n"
    with RunLock(run.confidential / "lock"):
        writing = command("purge", run.folder, "--yes", cwd=tmp_path)
    assert_one_sentence(writing, r"is being written by process \d+", writing.returncode)
    kept = command("purge", run.folder, cwd=tmp_path, typed="n\n")
    assert (kept.returncode, kept.stdout.splitlines()[-1].endswith("Nothing was deleted.")) == (
        1,
        True,
    )
    unanswered = command("purge", run.folder, cwd=tmp_path)
    assert (unanswered.returncode, "Give `--yes`" in unanswered.stderr) == (2, True)
    assert run.confidential.is_dir()
    assert command("purge", run.folder, cwd=tmp_path, typed="y\n").returncode == 0
    assert not run.confidential.exists()
    assert examine(run.folder)[1] == []


def test_epsilon_by_noise_and_noise_by_epsilon_are_each_other_s_inverse(tmp_path):
    flags = ["--iterations", 7, "--delta", 3e-6, "--json"]
    found = json.loads(command("epsilon", "--noise-multiplier", 1.381, *flags, cwd=tmp_path).stdout)
    assert found == {"epsilon": pytest.approx(10.0, abs=5e-3)}
    back = json.loads(
        command("epsilon", "--epsilon", found["epsilon"], *flags, cwd=tmp_path).stdout
    )
    assert 1.381 * (1 - 1e-9) <= back["noise_multiplier"] < 1.381 * (1 + 1e-6)


def told(folder, *words):
    return json.loads(command("ledger", *words, "--json", cwd=folder).stdout)


def test_the_ledger_adds_up_the_runs_over_the_data_and_has_a_cap(run, tmp_path):
    found = told(tmp_path, "private.npz")
    assert (found["epsilon"], found["delta"], found["runs"]) == (
        pytest.approx(5, rel=1e-3),
        1e-5,
        1,
    )
    reached = command(
        "ledger", "private.npz", "--cap-epsilon", 4, "--cap-delta", 1e-6, cwd=tmp_path
    )
    assert "Cap: ε = 4 at δ = 1e-06" in reached.stdout
    assert "warning: the runs there are have reached the cap" in reached.stderr


def test_the_total_is_stated_at_the_runs_own_delta(run, data, tmp_path):
    evolved(data, tmp_path / "other", noise_multiplier=1.0, delta=1e-9, iterations=1)
    at_own = told(tmp_path, "private.npz")
    assert (at_own["delta"], at_own["runs"]) == (1e-9, 2)
    assert told(tmp_path, "private.npz", "--delta", 1e-5)["epsilon"] < at_own["epsilon"]
    file = tmp_path / "private.npz.ledger.json"
    file.write_text(file.read_text().replace('"deltas"', '"others"'))  # as older ones lack it
    asked = command("ledger", "private.npz", cwd=tmp_path)
    assert (asked.returncode, "at which δ its runs were made. Give `--delta`" in asked.stderr) == (
        2,
        True,
    )


def test_a_total_over_different_units_says_why_it_is_high_and_what_keeps_it_low(run, tmp_path):
    DataSetLedger(tmp_path / "private.npz.ledger.json").enter(
        "x", histogram_releases(8.0, 1, unit="patient"), 1e-5
    )
    shown = command("ledger", "private.npz", cwd=tmp_path).stdout
    assert "since the runs protect different units (patient, record)." in shown
    assert (
        "give all runs over the same records one `private.privacy_unit` and one `privacy.relation`"
        in shown
    )


def test_where_no_ledger_is_that_is_said_and_none_is_made(tmp_path):
    (tmp_path / "scans").mkdir()
    shown = command("ledger", "scans", "--no-cap", cwd=tmp_path).stdout
    assert shown.startswith(
        f"There is no ledger file {tmp_path / 'scans.ledger.json'}, so no run is counted"
    )
    assert not (tmp_path / "scans.ledger.json").exists()
    for words, sentence in (
        (["nowhere"], "nowhere does not exist"),
        (
            ["scans", "--cap-epsilon", 1],
            "Give `--cap-epsilon` and `--cap-delta` together, or `--no-cap`",
        ),
    ):
        assert sentence in command("ledger", *words, cwd=tmp_path).stderr
