"""The live page of a run, and what the server of `pe view` answers, to its owner and to others."""

import base64
import fcntl
import io
import json
import os
import re
import signal
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import numpy as np
import pytest
from PIL import Image

import pe
from pe.data.images import Images
from pe.engine.viewing import LivePieces, ViewServer
from pe.errors import LimitReached
from pe.plugins.protocols import Answer
from pe.report.live import LivePage
from pe.store.journal import Journal
from pe.store.places import RECIPE
from pe.store.run import Run
from tests.durability import driver
from tests.generators import Mean, Shades
from tests.report.conftest import make_run

SECRET, MAGENTA = "Doe^Jane", (255, 0, 255)
PLACES = [
    "",
    "run/",
    "run/pieces",
    "run/report",
    "run/confidential",
    "compare?run=run&run=run",
    "run/stop",
]
PLACES += [
    f"run/{place}"
    for place in (
        RECIPE,
        f"confidential/{RECIPE}",
        "../confidential/log.txt",
        "../private.npz",
        "a.png",
    )
]


@contextmanager
def writing(run, pid):
    """The run is being written, by a process of this id of another container, which counts its
    processes anew.
    """
    with (run / "confidential" / "lock").open("w") as lock:
        lock.write(f"{pid}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(run):
    """Be the process that writes the run, and count the signals that ask it to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with writing(run, os.getpid()), (run / "signals").open("a", buffering=1) as signals:
        while True:
            signals.write(f"{signal.sigwait({signal.SIGTERM})}\n")


@contextmanager
def served(run, confidential=False):
    with ViewServer([run], confidential) as server:
        yield server


def wait_for(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_process_that_writes_the_run_is_asked_to_stop_once(run):
    feed, signals = LivePieces(LivePage(Run.open(run))), run / "signals"
    assert feed.stop() == "The run does not go on: there is nothing to stop."
    process = driver.forked(write, run)
    wait_for(signals.exists)
    assert feed.stop().startswith("It stops when the requests under way are answered")
    wait_for(lambda: signals.read_text())
    assert feed.stop().startswith(
        "It was asked to stop already"
    )  # a second signal would end it at once
    process.kill()
    process.join()
    assert signals.read_text() == f"{signal.SIGTERM}\n"


def test_a_process_that_does_not_write_the_run_is_not_stopped(run):
    with subprocess.Popen(["sleep", "60"]) as other, writing(run, other.pid):
        told = LivePieces(LivePage(Run.open(run))).stop()
        assert (
            told
            == "The process that writes the run is not one of this machine: stop it where it runs."
        )
        assert other.poll() is None
        other.kill()


def get(server, path, method="GET", **headers):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    named = {"Host": server.hosts[0]} | {
        name.capitalize(): value for name, value in headers.items()
    }
    connection.request(method, path, headers=named)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_nobody_else_is_answered(run):
    with served(run) as server:
        here, own = f"/{server.token}/run/", f"http://{server.hosts[0]}"
        status, page, headers = get(
            server, here, host=server.hosts[1], origin=f"http://{server.hosts[1]}"
        )
        assert (status, "<h1>" in page) == (200, True)
        assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "script-src 'nonce-" in headers["Content-Security-Policy"]
        assert "unsafe-inline'; script" not in headers["Content-Security-Policy"]
        assert get(server, f"{here}pieces")[0] == 200
        assert get(server, f"/{server.token}/")[0] == get(server, f"{here}report")[0] == 200
        for place in (
            "/",
            f"/{server.token}",
            f"/{server.token[:-1]}/",
            f"{here}page",
            f"{here}confidential",
        ):
            assert get(server, place)[:2] == (404, "Not found.")
        for host in ("rebound.example", f"rebound.example:{server.server_port}", "127.0.0.1", ""):
            assert get(server, here, host=host)[0] == 403
        for origin in ("http://rebound.example", "null", f"https://{server.hosts[0]}"):
            assert get(server, here, origin=origin)[0] == 403
            assert get(server, f"{here}stop", "POST", origin=origin)[0] == 403
        assert get(server, f"{here}stop", "POST")[0] == 403
        assert get(server, "/wrong/stop", "POST", origin=own)[0] == 404
        answer = get(server, f"{here}stop", "POST", origin=own)[:2]
        assert answer == (200, "The run does not go on: there is nothing to stop.")


class Greys(Shades):
    """Draws in RGB, and no colour."""

    def random_api(self, request):
        answer = super().random_api(request)
        return Answer(Images(answer.samples.array.repeat(3, axis=-1)), answer.conditions)

    def variation_api(self, request):
        return Answer(
            Images(super().variation_api(request).samples.array.repeat(3, axis=-1)),
            request.conditions,
        )


def plant(folder):
    """A run over magenta records, both in a folder of a patient's name, stopped while S_1
    arrived.
    """
    folder.mkdir()
    np.savez(
        folder / "private.npz",
        images=np.full((60, 4, 4, 3), MAGENTA, np.uint8),
        labels=["a", "b"] * 30,
    )
    data = pe.ImageNpz(folder / "private.npz", size=4, classes=["a", "b"], declared_size=60)
    given = {
        "population": 20,
        "iterations": 1,
        "lookahead": 0,
        "epsilon": 9,
        "delta": 1e-5,
        "max_images": 35,
    }
    with pytest.raises(LimitReached):
        pe.evolve(data, Greys(), embedding=Mean(), out=folder / "run", **given)
    (folder / "run" / "confidential" / "log.txt").write_text(SECRET)
    return folder / "run"


def all_answers(server):
    """Every byte that is answered, headers included, whatever is asked for."""
    found, host = b"", server.hosts[0]
    for method, place in [
        (method, place) for method in ("GET", "POST", "HEAD") for place in PLACES
    ]:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
            lines = [
                f"{method} /{server.token}/{place} HTTP/1.1",
                f"Host: {host}",
                f"Origin: http://{host}",
                "",
                "",
            ]
            connection.sendall("\r\n".join(lines).encode())
            found += connection.makefile("rb").read()
    return found


def leaks(answered):
    """What of the planted records is in these bytes: where they lie, their pixels, and these in a
    picture.
    """
    found = {word for word in (SECRET, "private.npz") if word.encode() in answered}
    for kind, data in re.findall(rb"data:(\w+)/[\w+]+;base64,([\w+/=]+)", answered):
        content = base64.b64decode(data)
        answered += content
        if kind == b"image":
            red, green, blue = np.moveaxis(
                np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), np.int64), -1, 0
            )
            if (np.minimum(red, blue) - green > 30).any():
                found.add("picture")
    return found | ({"pixels"} if bytes(MAGENTA) * 4 in answered else set())


def test_no_byte_that_is_served_without_confidential_is_of_a_private_record(tmp_path):
    run = plant(tmp_path / SECRET)
    with closing(Journal(run / "confidential" / "journal.sqlite")) as journal:
        journal.add_event(f"overran {SECRET}")
        times = [at for at, _ in journal.events()]
    with served(run) as server, served(run, confidential=True) as owned:
        with writing(run, pid=1):
            answered = all_answers(server)
        assert b'data-state=\\"running' in answered
        assert b"arriving, 14 of 20" in answered
        assert answered.count(b"data:image/png") > 3
        assert leaks(answered) == set()
        assert not [at for at in times if at.encode() in answered]
        assert leaks(all_answers(owned)) == {SECRET}
        column = run / "populations" / "000" / "images.npy"
        np.save(column, np.broadcast_to(np.uint8(MAGENTA), np.load(column).shape))
        feed = server.feed(Run.open(run))
        feed.page._cache.clear()
        feed.pieces(fresh=True)
        assert leaks(all_answers(server)) == {"picture"}  # what was planted would be seen
    with served(run) as server:
        column.unlink()
        column.mkdir()  # an error that names its place
        for _ in range(2):
            server.feed(Run.open(run)).pieces(fresh=True)
        assert b"cannot be read" in (answered := all_answers(server))
        assert leaks(answered) == set()


def test_a_page_gets_what_has_changed_since_it_last_asked(run):
    with served(run) as server:
        here = f"/{server.token}/run/pieces?since="
        first = json.loads(get(server, f"{here}0")[1])
        assert {"fault", "standing", "votes", "S0"} <= first["pieces"].keys()
        again = json.loads(get(server, f"{here}{first['version']}")[1])
        assert again == {"version": first["version"], "pieces": {}}
        with writing(run, pid=1):
            server.feed(Run.open(run)).pieces(fresh=True)
            changed = json.loads(get(server, f"{here}{first['version']}")[1])
        assert changed["version"] > first["version"]
        assert changed["pieces"].keys() == {"standing"}


def test_votes_show_when_something_after_them_was_asked(tmp_path):
    with pytest.raises(LimitReached):
        make_run(tmp_path, iterations=1, degree=0.5, lookahead=0, population=50, max_images=50)
    assert (
        tmp_path / "run" / "releases" / "histogram-1.npy"
    ).is_file()  # drawn, and its deadline may lie ahead
    pieces = LivePage(Run.open(tmp_path / "run")).pieces("running", waits="for its endpoint")
    assert pieces["votes"] == ""
    assert "private records vote first" in pieces["standing"]
    assert "for its endpoint" in pieces["standing"]


@pytest.mark.parametrize("confidential", [False, True])
def test_a_run_that_cannot_be_read_is_told_and_where_it_lies_to_its_owner_alone(run, confidential):
    feed = LivePieces(LivePage(Run.open(run), confidential))
    shown = feed.pieces(fresh=True)
    (run / "populations" / "002" / "labels.npy").write_bytes(b"no labels")
    assert feed.pieces(fresh=True) == shown  # a file may just be replaced
    found = feed.pieces(fresh=True)
    assert found["fault"].startswith("The run cannot be read just now")
    assert found["standing"] == shown["standing"]
    (run / "confidential" / "journal.sqlite").write_bytes(b"no journal" * 500)
    assert (str(run) in feed.pieces(fresh=True)["fault"]) == confidential
