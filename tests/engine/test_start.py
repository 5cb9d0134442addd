"""`pe.evolve` from Python: real adapters, real runs on disk."""

from __future__ import annotations

import getpass
import html
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.report import write_report
from pe.errors import BudgetExceeded, RecipeError
from pe.planning.forecast import forecast
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import Budget
from pe.privacy.release import Release
from pe.progress import Progress
from pe.recipe.schema import Recipe
from tests.generators import Mean, Shades

SETTINGS = {"delta": 1e-5, "population": 20, "iterations": 2, "lookahead": 2}


@pytest.fixture
def private(tmp_path: Path) -> pe.ImageNpz:
    rng = np.random.default_rng(0)
    images = np.concatenate([rng.integers(0, 60, (60, 4, 4, 1)), rng.integers(190, 255, (60, 4, 4, 1))])
    labels = np.array(["dark"] * 60 + ["light"] * 60)
    np.savez(tmp_path / "private.npz", images=images.astype(np.uint8), labels=labels)
    return pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["dark", "light"], declared_size=100)


def evolve(private: pe.ImageNpz, out: Path, api: object | None = None, **changes: object) -> pe.Run:
    settings = {"embedding": Mean(), "epsilon": 50.0, **SETTINGS, **changes}
    return pe.evolve(private, api or Shades(), out=out, **settings)


def test_the_population_moves_to_the_private_records(private: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolve(private, tmp_path / "run", iterations=6, population=40, degree=0.3)
    shades = run.synthetic.samples.array.mean(axis=(1, 2, 3))
    labels = run.synthetic.labels
    assert shades[labels == 0].mean() < 80
    assert shades[labels == 1].mean() > 170


def test_the_certificate_states_what_was_asked_for(private: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolve(private, tmp_path / "run", epsilon=2.0)
    assert run.guarantee["delta"] == 1e-5
    assert 1.999 < run.guarantee["epsilon"] <= 2
    assert "ε = 2 at δ = 1e-05" in run.certificate
    assert [release["state"] for release in run.guarantee["releases"]] == ["released", "released"]


def test_export_is_the_run_without_its_confidential_side(private: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolve(private, tmp_path / "run")
    out = run.export(tmp_path / "out")
    shared = {path.relative_to(run.folder) for path in run.folder.rglob("*") if path.is_file()}
    shared = {path for path in shared if path.parts[0] != "confidential"}
    assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == shared
    assert {file["file"] for file in run.guarantee["covered"]} == {
        path.as_posix() for path in shared if not path.name.startswith("certificate")
    }
    assert (run.folder / "confidential").stat().st_mode & 0o777 == 0o700


def test_without_iterations_the_run_is_random_samples_at_no_cost(private: pe.ImageNpz, tmp_path: Path) -> None:
    api = Shades()
    run = evolve(private, tmp_path / "run", api, iterations=0)
    assert api.variation_requests == []
    assert len(run.synthetic) == 20
    assert run.guarantee["epsilon"] == 0


def test_synthetic_npz_serves_as_a_source_again(private: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolve(private, tmp_path / "run")
    with np.load(run.folder / "synthetic.npz") as archive:
        assert archive["images"].shape == (20, 4, 4, 1)
        assert archive["label_names"].tolist() == ["dark", "light"]
        np.testing.assert_array_equal(archive["labels"], run.synthetic.labels)


def test_all_but_the_noise_is_reproducible(private: pe.ImageNpz, tmp_path: Path) -> None:
    first, second = (evolve(private, tmp_path / name, seed=5) for name in "ab")
    np.testing.assert_array_equal(first.population(0).samples.array, second.population(0).samples.array)
    votes = [np.load(run.folder / "releases" / "histogram-1.npy") for run in (first, second)]
    assert (votes[0] != votes[1]).all()


def test_an_adapter_sees_no_private_record(private: pe.ImageNpz, tmp_path: Path) -> None:
    api = Shades()
    evolve(private, tmp_path / "run", api)
    with np.load(tmp_path / "private.npz") as archive:
        secrets = {image.tobytes() for image in archive["images"]}
    requests = [*api.random_requests, *api.variation_requests]
    received = b"".join(repr(request.labels).encode() + request.seeds.tobytes() for request in requests)
    for request in api.variation_requests:
        received += request.samples.array.tobytes()
        received += b"".join(column.tobytes() for column in request.conditions.values())
    assert len(received) > 5000
    assert not any(secret in received for secret in secrets)


def test_a_delta_that_allows_to_publish_a_record_is_warned_about(private: pe.ImageNpz, tmp_path: Path) -> None:
    told: list[str] = []

    class Listener(Progress):
        def warn(self, message: str) -> None:
            told.append(message)

    run = evolve(private, tmp_path / "run", delta=0.02, progress=Listener())
    assert any("δ = 0.02 is not below 1/100" in message for message in told)
    assert "δ = 0.02 is not below 1/100" in run.certificate


def test_plan_console_certificate_and_report_warn_alike(private: pe.ImageNpz, tmp_path: Path) -> None:
    told: list[str] = []

    class Listener(Progress):
        def warn(self, message: str) -> None:
            told.append(message)

    run = evolve(private, tmp_path / "run", delta=0.02, population=2000, max_images=None, progress=Listener())
    recipe = Recipe.load(run.folder / "recipe.yaml")
    planned = [one for one in forecast(recipe, Shades()).warnings if not one.startswith("Requests go to")]
    assert [one.split(" ")[0] for one in planned] == ["δ", "ε", "The"]  # delta, epsilon, a population that is too large
    assert told[:3] == run.guarantee["warnings"] == planned
    assert all(one in run.certificate for one in planned)
    page = html.unescape(re.sub(r"<[^>]+>", "", write_report(run.folder).read_text(encoding="utf-8")))
    assert all(page.count(one) == 1 for one in planned)
    (run.folder / "certificate.json").unlink()  # as of a run that is not finished
    page = html.unescape(re.sub(r"<[^>]+>", "", write_report(run.folder).read_text(encoding="utf-8")))
    assert all(page.count(one) == 1 for one in planned)


def test_every_label_empty_still_runs(tmp_path: Path) -> None:
    """Whether a label has private records is private: a label without any runs on noise alone."""
    np.savez(tmp_path / "p.npz", images=np.zeros((3, 4, 4, 1), np.uint8), labels=np.array(["a", "a", "a"]))
    source = pe.ImageNpz(tmp_path / "p.npz", size=4, channels=1, classes=["a", "b"])
    run = evolve(source, tmp_path / "run", threshold=1000.0)
    assert len(run.synthetic) == 20


def test_a_warning_about_the_threshold_holds_released_numbers_only(private: pe.ImageNpz, tmp_path: Path) -> None:
    warnings: list[str] = []

    class Listener(Progress):
        def warn(self, message: str) -> None:
            warnings.append(message)

    run = evolve(private, tmp_path / "run", threshold=1e6, progress=Listener())
    votes = np.load(run.folder / "releases" / "histogram-1.npy") / run.guarantee["releases"][0]["grid"]
    told = [one for one in warnings if one.startswith("Iteration")]
    assert len(told) == 4
    assert f"highest {votes[:10].max():.1f}" in told[0]


def test_importing_pe_is_light() -> None:
    import subprocess
    import sys

    heavy = ["torch", "faiss", "dp_accounting", "pydantic", "scipy", "sklearn", "numpy", "httpx", "jinja2"]
    code = f"import sys, pe; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out.replace("'", '"')) == []


def test_estimated_label_sizes_are_charged_and_followed(private: pe.ImageNpz, tmp_path: Path) -> None:
    with np.load(tmp_path / "private.npz") as archive:
        images, labels = archive["images"], archive["labels"]
    kept = np.r_[0:60, 60:80]  # 60 dark, 20 light
    np.savez(tmp_path / "uneven.npz", images=images[kept], labels=labels[kept])
    source = pe.ImageNpz(tmp_path / "uneven.npz", size=4, channels=1, classes=["dark", "light"])
    run = evolve(source, tmp_path / "run", estimate_label_sizes=0.4, epsilon=20.0, population=40)
    assert [release["name"] for release in run.guarantee["releases"]] == ["class_counts", "histogram/1", "histogram/2"]
    assert run.guarantee["epsilon"] <= 20
    assert 25 <= np.count_nonzero(run.synthetic.labels == 0) <= 34
    noisy = np.load(run.folder / "releases" / "class_counts.npy")
    assert noisy.shape == (2,)


def test_a_budget_schedule_gives_each_iteration_its_share(private: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolve(private, tmp_path / "run", schedule=[1, 4])
    first, second = (release["noise_multiplier"] for release in run.guarantee["releases"])
    assert first == pytest.approx(2 * second)
    with pytest.raises(RecipeError, match=r"schedule has 3 entries, and evolution\.iterations is 2"):
        evolve(private, tmp_path / "other", schedule=[1, 2, 3])


def test_the_certificate_states_the_data_set_s_total_over_all_runs(private: pe.ImageNpz, tmp_path: Path) -> None:
    first, second = (evolve(private, tmp_path / name, epsilon=1.0).guarantee for name in "ab")
    assert first["data_set"] == {"epsilon": pytest.approx(1, rel=1e-3), "delta": 1e-5, "runs": 1}
    assert second["data_set"]["runs"] == 2
    assert 1.4 < second["data_set"]["epsilon"] < 2


def test_a_cap_on_the_data_set_refuses_the_next_run_before_its_first_release(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    DataSetLedger.beside(tmp_path / "private.npz").cap(Budget(1.3, 1e-5))
    evolve(private, tmp_path / "a", epsilon=1.0)
    api = Shades()
    with pytest.raises(BudgetExceeded, match="above the cap"):
        evolve(private, tmp_path / "b", api, epsilon=1.0)
    assert api.asked == 0
    assert not (tmp_path / "b").exists()


def test_the_record_for_the_data_protection_officer_is_confidential_and_whole(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    run = evolve(private, tmp_path / "run")
    record = json.loads((run.confidential / "audit-record.json").read_text())
    assert [entry["event"] for entry in record["when"]] == ["started", "finished"]
    assert record["declared data"]["declared size"] == 100
    assert [entry["hosts"] for entry in record["recipients"]] == ["none: it runs on this machine", "not stated by Mean"]
    assert record["recipients"][0]["data"].endswith("no private record")
    assert [release["drawn"] for release in record["releases"]] == [True, True]


def test_a_user_without_a_name_on_the_system_is_recorded_by_number(
    private: pe.ImageNpz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)  # as in a container that is run by an arbitrary user
    record = json.loads((evolve(private, tmp_path / "run").confidential / "audit-record.json").read_text())
    assert record["who"]["user"] == str(os.getuid())


def test_who_sees_private_images_is_as_the_embedding_declares_and_else_told_as_not_declared(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    class Sends(Mean):
        info = pe.PluginInfo(hosts=("vectors.example",))

    class Keeps(Mean):
        info = pe.PluginInfo(hosts=())

    cases = [
        (Mean(), "not declared", "does not declare it"),
        (Sends(), "vectors.example", "un-noised"),
        (Keeps(), None, ""),
    ]
    for number, (embedding, sent_to, words) in enumerate(cases):
        run = evolve(private, tmp_path / f"run{number}", embedding=embedding)
        assert run.guarantee["private_data_sent_to"] == sent_to
        assert words in run.guarantee["not_covered"][0]
        assert words in run.certificate
    assert pe.embedding("pixels").kind == "pixels"
    assert evolve(private, tmp_path / "pixels", embedding="pixels").guarantee["private_data_sent_to"] is None


def test_the_certificate_covers_what_the_run_wrote_and_no_file_that_was_put_there(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    class Leaving(Shades):
        def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
            (tmp_path / "run" / "notes.txt").write_text("clean counts: 7 3 1")
            return super().variation_api(request)

    run = evolve(private, tmp_path / "run", Leaving())
    covered = {file["file"] for file in run.guarantee["covered"]}
    assert {"recipe.yaml", "synthetic.npz", "evolution.png", "releases/histogram-1.npy"} < covered
    assert "notes.txt" not in covered
    assert not (run.export(tmp_path / "out") / "notes.txt").exists()


def test_a_run_that_was_entered_meanwhile_is_in_the_data_set_s_total(private: pe.ImageNpz, tmp_path: Path) -> None:
    class Entering(Shades):
        def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
            other = Release("votes", "discrete_gaussian", 1.0, 1.0, grid=2**20)
            DataSetLedger.beside(private.path).enter("other", [other], 1e-5)
            return super().variation_api(request)

    run = evolve(private, tmp_path / "run", Entering())
    assert run.guarantee["data_set"] == DataSetLedger.beside(private.path).total(1e-5)
    assert run.guarantee["data_set"]["runs"] == 2
