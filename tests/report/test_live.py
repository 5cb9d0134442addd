"""The live page: in a real browser while a run goes, and what its server answers to others."""

from __future__ import annotations

import base64
import fcntl
import io
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import pe
from pe.data.images import Images
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.process import SIGNALS, stop_on_signals
from pe.engine.watching import Feed, LiveServer
from pe.errors import LimitReached
from pe.planning.build import object_kind
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.report.live import LivePage
from pe.store.journal import Journal
from pe.store.places import RECIPE
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability import driver
from tests.generators import Mean, Moody, Shades
from tests.report.test_browser import CONTRAST, findings, look, show

SECRET = "Doe^Jane"
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1100, 390)]


class Stepwise(Moody):
    """Answers as many requests as the file `gate` says, and waits meanwhile."""

    def __init__(self, gate: Path, refuse: int = 0) -> None:
        super().__init__(max_chunk=25, refuse=refuse)
        self._gate = gate

    def _wait(self) -> None:
        while len(self.random_requests) + len(self.variation_requests) >= int(self._gate.read_text()):
            time.sleep(0.01)

    def random_api(self, request: RandomRequest) -> Answer:
        self._wait()
        return super().random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        self._wait()
        return super().variation_api(request)


def carry_out(folder: Path, population: int, limit: int | None = None, refuse: int = 0) -> None:
    """A run with two labels, new or resumed, that a signal stops as it stops `pe run`."""
    gate, out = folder / "gate", folder / "run"
    with stop_on_signals(SIGNALS, print, os._exit) as stop:  # type: ignore[arg-type]
        given = Surroundings(api=Stepwise(gate, refuse), embedding=Mean(), stop=stop)
        if out.exists():
            resume_run(out, given)
            return
        driver.make_private(folder / "private.npz")
        content = driver.recipe(folder / "private.npz").model_dump(mode="json", exclude_none=True)
        content["evolution"] |= {"population": population, "iterations": 1, "lookahead": 0}
        content["api"] = {"kind": object_kind(Stepwise(gate)), "price": {"image": 0.5}}
        recipe = Recipe.parse(content | {"limits": {"max_cost": 1000, "max_images": limit}}, "the test")
        run_recipe(recipe, out, given)


def let(folder: Path, requests: int) -> None:
    """Let so many requests be answered; the run reads the file meanwhile, and never a half of it."""
    (folder / "new").write_text(str(requests))
    (folder / "new").replace(folder / "gate")


@contextmanager
def running(folder: Path, requests: int, refuse: int = 0) -> Iterator[BaseProcess]:
    """The run in a process of its own, of which so many requests are answered for now."""
    let(folder, requests)
    process = driver.forked(carry_out, folder, 200, None, refuse)
    try:
        yield process
    finally:
        process.kill()
        process.join()


@contextmanager
def served(run: Path, confidential: bool = False) -> Iterator[LiveServer]:
    deadline = time.monotonic() + 60
    while not (run / "confidential" / "journal.sqlite").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with LiveServer(LivePage(Run.open(run), confidential)) as server:
        yield server


def see(browser: Chrome, true: Callable[[], object]) -> None:
    WebDriverWait(browser, 60, poll_frequency=0.05, ignored_exceptions=(Exception,)).until(lambda _: true())


def state(browser: Chrome) -> str | None:
    return browser.find_element(By.ID, "standing").get_attribute("data-state")


def caption(browser: Chrome) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".generation:not([hidden])").get_attribute("data-name") or ""


def test_images_arrive_while_a_run_goes_that_is_killed_and_resumed(browser: Chrome, tmp_path: Path) -> None:
    with running(tmp_path, 3) as process, served(tmp_path / "run") as server:
        browser.get(server.address)
        see(browser, lambda: "arriving, 75 of 200" in caption(browser))
        first = len(browser.find_elements(By.CSS_SELECTOR, ".generation img"))
        let(tmp_path, 5)
        see(browser, lambda: "arriving, 125 of 200" in caption(browser))
        assert (first, len(browser.find_elements(By.CSS_SELECTOR, ".generation img"))) == (1, 2)  # the second label's
        assert "62.50" in browser.find_element(By.CSS_SELECTOR, ".facts").text
        process.kill()
        see(browser, lambda: state(browser) == "stopped")
    with running(tmp_path, 100) as process:  # its page was closed: the browser comes again by itself
        with LiveServer(LivePage(Run.open(tmp_path / "run")), server.server_port) as again:
            again.token = server.token
            see(browser, lambda: state(browser) == "finished")
            see(browser, lambda: browser.find_element(By.ID, "link").text == "The run is finished.")
            see(browser, lambda: caption(browser).startswith("S1, after 1 round of votes"))
            assert browser.find_element(By.CSS_SELECTOR, "svg[aria-label]").is_displayed()
            assert not browser.find_element(By.ID, "stop").is_displayed()
            slider = browser.find_element(By.ID, "iteration")
            slider.send_keys(Keys.HOME)
            assert slider.get_attribute("aria-valuetext") == caption(browser) == "S0, straight from the generator"
        process.join(60)


def test_the_button_stops_the_run_after_its_chunk(browser: Chrome, tmp_path: Path) -> None:
    with running(tmp_path, 3) as process, served(tmp_path / "run") as server:
        browser.get(server.address)
        button = browser.find_element(By.ID, "stop")
        see(browser, lambda: "arriving, 75 of 200" in caption(browser))
        button.send_keys(Keys.ENTER)
        told = browser.find_element(By.ID, "told")
        see(browser, lambda: told.text.startswith("It stops when the requests under way are answered"))
        button.send_keys(Keys.ENTER)  # a second signal would end it at once
        see(browser, lambda: told.text.startswith("It was asked to stop already"))
        let(tmp_path, 100)
        see(browser, lambda: state(browser) == "stopped")
        process.join(60)
        assert process.exitcode == 1  # Interrupted
        assert server.feed.stop() == "The run does not go on: there is nothing to stop."


def check_readable(browser: Chrome) -> None:
    """What holds of the page that is shown, by day and by night, wide and on a phone."""
    for scheme, width in LOOKS:
        look(browser, scheme, width)
        assert min(browser.execute_script(CONTRAST))[0] >= 4.5
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert findings(browser) == []
    assert all(one.get_attribute("alt") for one in browser.find_elements(By.CSS_SELECTOR, "img"))
    assert not browser.get_log("browser")


@pytest.mark.parametrize("confidential", [False, True], ids=["shareable", "confidential"])
def test_it_can_be_read_by_all(browser: Chrome, run: Path, confidential: bool) -> None:
    with served(run, confidential) as server:
        show(browser, server.address)
        see(browser, lambda: caption(browser).startswith("S3"))
        check_readable(browser)
        banners = browser.find_elements(By.CSS_SELECTOR, ".banner")
        assert [one.text.startswith("Confidential.") for one in banners] == [True] * confidential
        if confidential:
            browser.execute_script("scrollTo(0, document.body.scrollHeight)")
            assert browser.execute_script("return document.querySelector('.banner').getBoundingClientRect().top") == 0


PACE = re.compile(r"([\d.]+) samples a (second|minute), as this page has seen it; about (\d+) (s|min) left at most")


def fact(browser: Chrome, name: str) -> str:
    facts = (one.text.splitlines() for one in browser.find_elements(By.CSS_SELECTOR, ".facts li"))
    return next(value for value, told in facts if told == name)


def test_a_run_that_goes_shows_its_rate_and_refusals_and_can_be_read_by_all(browser: Chrome, tmp_path: Path) -> None:
    with running(tmp_path, 3, refuse=5), served(tmp_path / "run") as server:
        show(browser, server.address)
        see(browser, lambda: "arriving" in caption(browser))
        let(tmp_path, 5)
        see(browser, lambda: PACE.match(browser.find_element(By.ID, "pace").text))
        told, left = browser.execute_script("return [at('pace').textContent, at('standing').dataset.left]")
        rate, per, time_left, unit = PACE.match(told).groups()  # type: ignore[union-attr]
        seconds = int(left) / float(rate) * (60 if per == "minute" else 1)
        assert int(time_left) * (60 if unit == "min" else 1) == pytest.approx(seconds, rel=0.1, abs=1)
        with read_journal(Run.open(tmp_path / "run")) as journal:
            see(browser, lambda: fact(browser, "refused") == str(journal.totals().refused) != "0")
        check_readable(browser)
        assert "arriving" in caption(browser)


@contextmanager
def writing(run: Path, pid: int) -> Iterator[None]:
    """The run is being written, by a process of this id of another container, which counts its processes anew."""
    with (run / "confidential" / "lock").open("w") as lock:
        lock.write(f"{pid}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_process_that_does_not_write_the_run_is_not_stopped(run: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other, writing(run, other.pid):
        told = Feed(LivePage(Run.open(run))).stop()
        assert told == "The process that writes the run is not one of this machine: stop it where it runs."
        assert other.poll() is None
        other.kill()


def get(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    named = {"Host": server.hosts[0]} | {name.capitalize(): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    answer = connection.getresponse()
    told = answer.read(1) if answer.headers["Content-Type"].startswith("text/event-stream") else answer.read()
    return answer.status, told.decode(), dict(answer.headers)


def test_nobody_else_is_answered(browser: Chrome, run: Path) -> None:
    with served(run) as server:
        here, own = f"/{server.token}/", f"http://{server.hosts[1]}"
        status, page, headers = get(server, here, host=server.hosts[1], origin=own)
        assert (status, "<h1>" in page) == (200, True)
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "script-src 'nonce-" in headers["Content-Security-Policy"]
        assert "unsafe-inline'; script" not in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        assert get(server, f"{here}events")[0] == 200
        told = {get(server, path)[:2] for path in ("/", f"/{server.token}", f"/{server.token[:-1]}/", f"{here}page")}
        assert told == {(404, "Not found.")}
        for host in ("rebound.example", f"rebound.example:{server.server_port}", "127.0.0.1", ""):
            assert get(server, here, host=host)[0] == 403
        for origin in ("http://rebound.example", "null", f"https://{server.hosts[0]}"):
            assert get(server, here, origin=origin)[0] == 403
            assert get(server, f"{here}stop", "POST", origin=origin)[0] == 403
        assert get(server, f"{here}stop", "POST")[0] == 403
        assert get(server, "/wrong/stop", "POST", origin=f"http://{server.hosts[0]}")[0] == 404
        status, answer, _ = get(server, f"{here}stop", "POST", origin=f"http://{server.hosts[0]}")
        assert (status, answer) == (200, "The run does not go on: there is nothing to stop.")
        browser.get("data:text/html,another site")
        script = "fetch(arguments[0]).then(() => 'read', () => 'refused').then(arguments[1])"
        assert browser.execute_async_script(script, server.address) == "refused"


class Greys(Shades):
    """Draws in RGB, and no colour."""

    def random_api(self, request: RandomRequest) -> Answer:
        answer = super().random_api(request)
        return Answer(Images(answer.samples.array.repeat(3, axis=-1)), answer.conditions)

    def variation_api(self, request: VariationRequest) -> Answer:
        answer = super().variation_api(request)
        return Answer(Images(answer.samples.array.repeat(3, axis=-1)), request.conditions)


MAGENTA = (255, 0, 255)


def plant(folder: Path) -> tuple[Path, list[str]]:
    """A run over magenta records, both below a folder of a patient's name, stopped while S_1 arrived; its times."""
    (folder / SECRET).mkdir()
    images = np.full((60, 4, 4, 3), MAGENTA, np.uint8)
    np.savez(folder / SECRET / "private.npz", images=images, labels=["a", "b"] * 30)
    data = pe.ImageNpz(folder / SECRET / "private.npz", size=4, classes=["a", "b"], declared_size=60)
    given = {"population": 20, "iterations": 1, "lookahead": 0, "epsilon": 9, "delta": 1e-5, "max_images": 35}
    run = folder / SECRET / "run"
    with pytest.raises(LimitReached):
        pe.evolve(data, Greys(), embedding=Mean(), out=run, **given)
    (run / "confidential" / "log.txt").write_text(SECRET)
    journal = Journal(run / "confidential" / "journal.sqlite")
    journal.add_event(f"overran {SECRET}")
    times = [at for at, _ in journal.events()]
    journal.close()
    return run, times


PLACES = ["", "events", "stop", RECIPE, f"confidential/{RECIPE}", "../confidential/log.txt", "../private.npz", "a.png"]


def all_answers(server: LiveServer) -> bytes:
    """Every byte that is answered, headers included, whatever is asked for; of the events the first."""
    found, host = b"", server.hosts[0]
    for method, place in [(method, place) for method in ("GET", "POST", "HEAD") for place in PLACES]:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
            lines = [f"{method} /{server.token}/{place} HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            for line in connection.makefile("rb"):
                found += line
                if place == "events" and line.startswith(b"data:"):
                    break
    return found


def leaks(served: bytes) -> set[str]:
    """What of the planted records is in these bytes: where they lie, their pixels, and these in a picture."""
    found = {word for word in (SECRET, "private.npz") if word.encode() in served}
    for kind, data in re.findall(rb"data:(\w+)/[\w+]+;base64,([\w+/=]+)", served):
        content = base64.b64decode(data)
        served += content
        if kind == b"image":
            red, green, blue = np.moveaxis(np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), np.int64), -1, 0)
            if (np.minimum(red, blue) - green > 30).any():
                found.add("picture")
    if bytes(MAGENTA) * 4 in served:
        found.add("pixels")
    return found


def test_no_byte_that_is_served_without_confidential_is_of_a_private_record(tmp_path: Path) -> None:
    run, times = plant(tmp_path)
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
        server.page._cache.clear()
        server.feed.pieces(fresh=True)
        assert leaks(all_answers(server)) == {"picture"}  # what was planted would be seen
    with served(run) as server:
        column.unlink()
        column.mkdir()  # an error that names its place
        for _ in range(2):
            server.feed.pieces(fresh=True)
        assert b"cannot be read" in (answered := all_answers(server))
        assert leaks(answered) == set()


def test_votes_show_when_something_after_them_was_asked(tmp_path: Path) -> None:
    let(tmp_path, 100)
    with pytest.raises(LimitReached):
        carry_out(tmp_path, 50, limit=50)
    assert (tmp_path / "run" / "releases" / "histogram-1.npy").is_file()  # drawn, and its deadline may lie ahead
    pieces = LivePage(Run.open(tmp_path / "run")).pieces(running=True, waits="for its endpoint")
    assert pieces["votes"] == ""
    assert "private records vote first" in pieces["standing"]
    assert "for its endpoint" in pieces["standing"]


@pytest.mark.parametrize("confidential", [False, True])
def test_a_run_that_cannot_be_read_is_told_and_where_it_lies_to_its_owner_alone(run: Path, confidential: bool) -> None:
    feed = Feed(LivePage(Run.open(run), confidential))
    shown = feed.pieces(fresh=True)
    (run / "populations" / "002" / "labels.npy").write_bytes(b"no labels")
    assert feed.pieces(fresh=True) == shown  # a file may just be replaced
    found = feed.pieces(fresh=True)
    assert found["fault"].startswith("The run cannot be read just now")
    assert found["standing"] == shown["standing"]
    (run / "confidential" / "journal.sqlite").write_bytes(b"no journal" * 500)
    assert (str(run) in feed.pieces(fresh=True)["fault"]) == confidential
