"""What a run writes, certifies and tells: `pe.evolve` over real files."""

import getpass
import json
import logging
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from PIL import Image

import pe
from pe.engine.execution import stored_recipe
from pe.engine.private_side import PrivateSide
from pe.errors import RunError
from pe.histogram import count_votes
from pe.privacy.data_set import DataSetLedger
from pe.privacy.release import Release
from pe.private.embeddings import PrivateEmbeddings
from pe.store import places
from pe.store.writer import read_journal
from tests.contracts.fitted import KINDS
from tests.engine.small import Told, but, evolve, records_in
from tests.generators import Mean, Shades


def test_the_population_moves_to_the_private_records(private, tmp_path):
    run = evolve(private, tmp_path / "run", iterations=6, population=40, degree=0.3, lookahead=2)
    shades = run.synthetic.samples.array.mean(axis=(1, 2, 3))
    assert shades[run.synthetic.labels == 0].mean() < 80
    assert shades[run.synthetic.labels == 1].mean() > 170


def test_the_certificate_states_what_was_asked_for_and_covers_what_an_export_holds(made, tmp_path):
    run, _ = made
    assert 1.999 < run.guarantee["epsilon"] <= 2
    assert "ε = 2 at δ = 1e-05" in run.certificate
    assert [release["state"] for release in run.guarantee["releases"]] == ["released", "released"]
    out = run.export(tmp_path / "out")
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    shared = {name for name in files if not name.startswith("confidential")}
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == shared
    covered = {file["file"] for file in run.guarantee["covered"]}
    assert covered == {name for name in shared if not name.startswith("certificate")}
    assert (run.folder / "confidential").stat().st_mode & 0o777 == 0o700


def test_the_audit_record_is_confidential_and_whole(made):
    record = json.loads((made[0].confidential / "audit-record.json").read_text())
    assert [entry["event"] for entry in record["when"]] == ["started", "finished"]
    assert record["declared data"]["declared size"] == 60
    assert [entry["hosts"] for entry in record["recipients"]] == [
        "none: it runs on this machine",
        "not stated by Mean",
    ]
    assert record["recipients"][0]["data"].endswith("no private record")
    assert [release["drawn"] for release in record["releases"]] == [True, True]


def test_an_adapter_sees_no_private_record(made):
    run, api = made
    with np.load(run.folder.parent / "private.npz") as archive:
        secrets = {image.tobytes() for image in archive["images"]}
    received = b"".join(
        request.seeds.tobytes() for request in [*api.random_requests, *api.variation_requests]
    )
    for request in api.variation_requests:
        received += request.samples.array.tobytes() + repr(request.labels).encode()
        received += b"".join(column.tobytes() for column in request.conditions.values())
    assert len(received) > 5000
    assert not any(secret in received for secret in secrets)


def test_all_but_the_noise_is_reproducible(made, tmp_path):
    again = evolve(records_in(tmp_path), tmp_path / "run", epsilon=2.0, lookahead=2, seed=5)
    np.testing.assert_array_equal(
        made[0].population(0).samples.array, again.population(0).samples.array
    )
    votes = [np.load(run.folder / "releases" / "histogram-1.npy") for run in (made[0], again)]
    assert (votes[0] != votes[1]).all()


def test_a_warning_about_the_threshold_holds_released_numbers_only(private, tmp_path):
    told = Told()
    run = evolve(private, tmp_path / "run", threshold=1e6, progress=told)
    votes = (
        np.load(run.folder / "releases" / "histogram-1.npy") / run.guarantee["releases"][0]["grid"]
    )
    warned = [one for one in told.warnings if one.startswith("Iteration")]
    assert len(warned) == 4
    assert f"highest {votes[:10].max():.1f}" in warned[0]


def test_importing_pe_is_light():
    heavy = {
        "torch",
        "faiss",
        "dp_accounting",
        "pydantic",
        "scipy",
        "sklearn",
        "numpy",
        "httpx",
        "jinja2",
    }
    code = "import sys, pe; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert not heavy & set(loaded.split())


def test_a_user_without_a_name_on_the_system_is_recorded_by_number(private, tmp_path, monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(
        getpass, "getuser", nameless
    )  # as in a container that is run by an arbitrary user
    run = evolve(private, tmp_path / "run", iterations=0)
    assert json.loads((run.confidential / "audit-record.json").read_text())["who"]["user"] == str(
        os.getuid()
    )


def test_a_certificate_covers_no_file_that_was_put_there_and_counts_a_run_that_was_entered_meanwhile(
    private, tmp_path
):
    class Meanwhile(Shades):
        def variation_api(self, request):
            (tmp_path / "run" / "notes.txt").write_text("clean counts: 7 3 1")
            other = Release("votes", "discrete_gaussian", 1.0, 1.0, grid=2**20)
            DataSetLedger.beside(private.path).enter("other", [other], 1e-5)
            return super().variation_api(request)

    run = evolve(private, tmp_path / "run", Meanwhile())
    covered = {file["file"] for file in run.guarantee["covered"]}
    assert {"recipe.yaml", "synthetic.npz", "evolution.png", "releases/histogram-1.npy"} < covered
    assert "notes.txt" not in covered
    assert not (run.export(tmp_path / "out") / "notes.txt").exists()
    assert run.guarantee["data_set"] == DataSetLedger.beside(private.path).total(1e-5)
    assert run.guarantee["data_set"]["runs"] == 2


# The public clock of a run, and when it is named.


class Timed(Shades):
    """Notes when it was asked."""

    info = pe.PluginInfo(hosts=("api.example",))

    def __init__(self):
        super().__init__(max_chunk=100)
        self.times = []

    def random_api(self, request):
        self.times.append(time.monotonic())
        return super().random_api(request)

    def variation_api(self, request):
        self.times.append(time.monotonic())
        return super().variation_api(request)


@pytest.mark.parametrize(("clock", "waits"), [("auto", True), ("off", False)])
def test_private_work_between_requests_that_leave_the_machine_ends_at_its_deadline(
    private, tmp_path, monkeypatch, clock, waits
):
    monkeypatch.setattr(
        "pe.planning.deadlines._AT_LEAST", 1.0
    )  # far from what a loaded machine takes without a clock
    api = Timed()
    run = evolve(private, tmp_path / "run", api, iterations=1, hold=clock, max_images=99)
    assert (api.times[1] - api.times[0] >= 1) == waits
    with read_journal(run) as journal:
        assert not [event for _, event in journal.events() if "overran" in event]


def test_private_work_that_misses_its_deadline_is_told_and_noted_in_the_audit_record(
    private, tmp_path, monkeypatch
):
    monkeypatch.setattr("pe.planning.deadlines._AT_LEAST", 0.01)
    monkeypatch.setattr("pe.planning.deadlines._SLACK", 1.0)

    seen = []

    def stall(samples):
        """Take time over the first private images, whose pixels are all below 60 or from 190 on."""
        pixels = samples.pixels
        if pixels.any() and not ((pixels >= 60) & (pixels < 190)).any() and not seen:
            seen.append(samples)
            time.sleep(2.5)  # late on a loaded machine, too
        return Mean().embed(samples)

    told = Told()
    changes = {"iterations": 1, "progress": told, "max_images": 99}
    run = evolve(private, tmp_path / "run", Timed(), embedding=but(Mean(), embed=stall), **changes)
    late = "Private work (embedding) took longer than its public deadline of "
    (warning,) = (
        one for one in told.warnings if one.startswith(late)
    )  # on a loaded machine releases are late, too
    assert "Set `privacy.hold` to more seconds" in warning
    events = [
        one["event"]
        for one in json.loads((run.confidential / "audit-record.json").read_text())["when"]
    ]
    assert (events[0], events[1], events[-1]) == ("started", "overran embedding", "finished")


def test_a_run_is_named_when_the_private_records_have_been_read(private, tmp_path, monkeypatch):
    happened = []

    def telling(what, function):
        return lambda *arguments: (happened.append(what), function(*arguments))[1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PrivateSide, "preflight", telling("read", PrivateSide.preflight))
    monkeypatch.setattr(places, "new_name", telling("named", places.new_name))
    evolve(private, None, iterations=0)
    assert happened == ["read", "named"]


SHAPE = {"size": 4, "channels": 1, "declared_size": 40}


class Picky(Mean):
    """Has no vector for what is dark."""

    def embed(self, samples):
        vectors = super().embed(samples)
        vectors[vectors < 20] = np.nan
        return vectors


def readable(folder, one):
    for i in range(3):
        (folder / f"{i}.png").write_bytes(b"no image")
    return in_a_folder(folder, one, on_bad_record="skip")


def in_a_folder(folder, one, **settings):
    if one:
        Image.new("L", (4, 4), 200).save(folder / "0.png")
    return pe.ImageFolder(folder, **SHAPE, **settings), Mean()


def with_a_vector(folder, one):
    np.savez(
        folder / "p.npz", images=np.array([0, 200 * one], np.uint8).repeat(16).reshape(2, 4, 4, 1)
    )
    return pe.ImageNpz(folder / "p.npz", **SHAPE), Picky()


@pytest.mark.parametrize("world", [readable, in_a_folder, with_a_vector])
def test_a_run_tells_and_ends_as_its_neighbour_does(tmp_path, world, capfd):
    told = []
    for one in (False, True):
        folder, listener = tmp_path / "private", Told()
        folder.mkdir()
        source, embedding = world(folder, one)
        run = evolve(
            source,
            tmp_path / str(one) / "run",
            embedding=embedding,
            progress=listener,
            iterations=1,
        )
        told.append(
            (
                vars(listener),
                capfd.readouterr(),
                run.guarantee["statement"],
                run.guarantee["warnings"],
            )
        )
        assert ("all votes are noise" in (run.confidential / "log.txt").read_text()) is not one
        folder.rename(tmp_path / f"{one}-was")
        for path in tmp_path.glob("private*.json"):
            path.unlink()
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["central_images", "dp_gaussian", "dpdm"])
def test_a_fit_needs_no_record(tmp_path, kind):
    np.savez(tmp_path / "p.npz", images=np.zeros((0, 8, 8, 1), np.uint8), labels=np.zeros(0, "<U3"))
    source = pe.ImageNpz(tmp_path / "p.npz", **SHAPE | {"size": 8}, classes=["ell", "oh"])
    api, settings = (
        pe.api(kind, **KINDS.get(kind, {})),
        {"epsilon": 30.0, "delta": 1e-3, "iterations": 0},
    )
    run = evolve(source, tmp_path / "run", api, embedding=None, population=8, **settings)
    assert run.synthetic.samples.array.shape == (8, 8, 8, 1)


def test_what_the_log_says_is_the_same_whatever_the_private_records(caplog):
    candidates = np.eye(5, 8, dtype=np.float32)
    with caplog.at_level(logging.INFO, logger="pe"):
        for vectors in (
            np.zeros((0, 8)),
            np.zeros((1, 8)),
            np.full((70, 8), np.nan),
            np.full((70, 8), 1e30),
        ):
            labels, units = np.zeros(len(vectors), np.int32), np.arange(len(vectors))
            private = PrivateEmbeddings(vectors.astype(np.float32), labels, units, ("a",))
            count_votes(private, candidates, np.zeros(5, np.int32), 2**10)
    assert len({record.message for record in caplog.records}) == 1


def test_the_recipe_of_an_earlier_version_is_read_or_refused_by_a_sentence_that_names_this_version(
    private, tmp_path
):
    run = evolve(private, tmp_path / "run")
    file = run.folder / "confidential" / "recipe.yaml"
    content = yaml.safe_load(file.read_text())
    usual = {"private_sets": "may_overlap", "public_clock": "auto", "clock_slack": 3.0}
    file.write_text(yaml.safe_dump(content | {"privacy": content["privacy"] | usual}))
    assert stored_recipe(run.folder).privacy.hold == "auto"
    file.write_text(
        yaml.safe_dump(content | {"privacy": content["privacy"] | {"private_sets": "disjoint"}})
    )
    with pytest.raises(
        RunError,
        match=rf"This is version {re.escape(pe.__version__)}, which cannot read the recipe",
    ):
        stored_recipe(run.folder)
