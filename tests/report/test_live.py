"""The live page: in a real browser while a run goes, and what its server answers to others."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from pe.engine.execution import Surroundings
from pe.engine.signals import SIGNALS, stop_on_signals
from pe.engine.start import resume_run, run_recipe
from pe.engine.watching import Feed, LiveServer
from pe.errors import LimitReached
from pe.planning.build import object_kind
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.report.live import LivePage
from pe.store.journal import Journal
from pe.store.places import RECIPE
from pe.store.run import Run
from tests.durability import driver
from tests.generators import Mean, Shades
from tests.report.test_browser import CONTRAST, findings, show

SECRET = "Doe^Jane"


class Stepwise(Shades):
    """Answers as many requests as the file `gate` says, and waits meanwhile."""

    def __init__(self, gate: Path, max_chunk: int = 25) -> None:
        super().__init__(max_chunk=max_chunk)
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


def carry_out(folder: Path, population: int, limit: int | None = None) -> None:
    """A run with two labels, new or resumed, that a signal stops as it stops `pe run`."""
    gate, out = folder / "gate", folder / "run"
    with stop_on_signals(SIGNALS, print, os._exit) as stop:  # type: ignore[arg-type]
        given = Surroundings(api=Stepwise(gate), embedding=Mean(), stop=stop)
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
def running(folder: Path, requests: int) -> Iterator[BaseProcess]:
    """The run in a process of its own, of which so many requests are answered for now."""
    let(folder, requests)
    process = driver.forked(carry_out, folder, 200)
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
    WebDriverWait(browser, 30, poll_frequency=0.05, ignored_exceptions=(Exception,)).until(lambda _: true())


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


@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 390)])
def test_it_can_be_read_by_all(browser: Chrome, run: Path, scheme: str, width: int) -> None:
    with served(run, confidential=True) as server:
        show(browser, server.address, scheme, width)
        see(browser, lambda: caption(browser).startswith("S3"))
        assert min(browser.execute_script(CONTRAST))[0] >= 4.5
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert all(one.get_attribute("alt") for one in browser.find_elements(By.CSS_SELECTOR, "img"))
        assert browser.find_element(By.CSS_SELECTOR, ".banner").text.startswith("Confidential.")
        browser.execute_script("scrollTo(0, document.body.scrollHeight)")
        assert browser.execute_script("return document.querySelector('.banner').getBoundingClientRect().top") == 0
        assert not browser.get_log("browser")
        assert findings(browser) == []


def test_a_process_that_does_not_write_the_run_is_not_stopped(run: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other, (run / "confidential" / "lock").open("w") as lock:
        lock.write(f"{other.pid}\n")  # as of another container, which counts its processes anew
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
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


def everything(page: LivePage) -> str:
    """All that is served of a run."""
    return page.page("once") + json.dumps(page.pieces(running=False, waits=""))


def test_only_the_owner_s_page_holds_what_is_private(run: Path) -> None:
    journal = Journal(run / "confidential" / "journal.sqlite")
    journal.add_event(f"overran {SECRET}")
    times = [at for at, _ in journal.events()]
    journal.close()
    (run / "confidential" / "log.txt").write_text(SECRET)
    whole = (run / "confidential" / RECIPE).read_text(encoding="utf-8")
    (run / "confidential" / RECIPE).write_text(f"# {SECRET}\n{whole}", encoding="utf-8")
    shared, owned = everything(LivePage(Run.open(run))), everything(LivePage(Run.open(run), confidential=True))
    assert SECRET not in shared
    assert "private.npz" not in shared
    assert not [at for at in times if at in shared]
    assert SECRET in owned


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
