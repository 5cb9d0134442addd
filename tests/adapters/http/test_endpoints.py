"""Several servers that give the same answers: the least busy is asked, and one in trouble is left alone for a while."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from adapters.http import Connection, Endpoints, Rejected
from pe.errors import Unavailable
from tests.endpoints.serving import serving


class App:
    """Answers every request after a while, with a status; counts how many it had, and at once."""

    def __init__(self, seconds: float = 0.0, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._seconds, self._status, self._headers = seconds, status, headers or {}
        self._lock = threading.Lock()
        self.had, self.at_once, self._inside = 0, 0, 0
        self.keys: Counter[str] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.keys[dict(scope["headers"]).get(b"authorization", b"").decode()] += 1
        self.had += 1
        self._inside += 1
        self.at_once = max(self.at_once, self._inside)
        await asyncio.sleep(self._seconds)
        self._inside -= 1
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "the-key")


def ask(endpoints: Endpoints, times: int, threads: int = 8) -> list[bytes | None]:
    def one(_: int) -> bytes | None:
        return endpoints.ask("/x", lambda response: response.content, content=b"body").result

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(times)))


def endpoints(*urls: str, concurrency: int = 4, tries: int = 4) -> Endpoints:
    return Endpoints(urls, Connection(key_env="THE_KEY", timeout=20, tries=tries), concurrency)


def test_the_one_with_the_fewest_under_way_is_asked() -> None:
    slow, fast = App(0.3), App(0.01)
    with serving(slow) as one, serving(fast) as other:
        assert ask(endpoints(one, other), 60) == [b"done"] * 60
    assert slow.had + fast.had == 60
    assert fast.had > 3 * slow.had
    assert slow.at_once <= 4
    assert slow.keys + fast.keys == {"Bearer the-key": 60}


def test_one_that_fails_is_left_alone_and_the_other_answers() -> None:
    broken, sound = App(status=503), App(0.01)
    with serving(broken) as one, serving(sound) as other:
        assert ask(endpoints(one, other), 40) == [b"done"] * 40
    assert broken.had <= 8  # those that were on their way when the first came back
    assert sound.had == 40


def test_one_that_is_full_holds_up_nobody_but_itself() -> None:
    full, sound = App(status=429, headers={"Retry-After": "30"}), App(0.01)
    with serving(full) as one, serving(sound) as other:
        assert ask(endpoints(one, other, concurrency=8), 40) == [b"done"] * 40
    assert full.had <= 8
    assert sound.had == 40


def test_what_will_not_heal_is_not_asked_of_the_other() -> None:
    wrong, other_one = App(status=400), App(status=400)
    with serving(wrong) as one, serving(other_one) as other, pytest.raises(Rejected):
        ask(endpoints(one, other), 1)
    assert wrong.had + other_one.had == 1


def test_when_all_are_away_they_are_waited_for() -> None:
    with serving(App(status=503)) as one, pytest.raises(Unavailable, match="HTTP 503"):
        Endpoints([one, one], Connection(tries=3, patience=0.3), 4).ask("/x", lambda response: response.content)
