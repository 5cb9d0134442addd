"""Several servers that give the same answers: the least busy is asked, and one in trouble is left alone for a while."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.http import Connection, Endpoints
from tests.endpoints.asking import CANARY
from tests.endpoints.faults import respond


class App:
    """Answers every request after a while; counts how many it had, and at once, by which keys."""

    def __init__(self, seconds=0.01, status=200, *headers):
        self._seconds, self._status, self._headers = seconds, status, list(headers)
        self.had, self.at_once, self._inside = 0, 0, 0
        self.keys: Counter[str] = Counter()

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        self.keys[dict(scope["headers"]).get(b"authorization", b"").decode()] += 1
        self.had += 1
        self._inside += 1
        self.at_once = max(self.at_once, self._inside)
        await asyncio.sleep(self._seconds)
        self._inside -= 1
        await respond(send, self._status, b"done", self._headers)


def ask(times, *urls, concurrency=4):
    endpoints = Endpoints(urls, Connection(key_env="THE_KEY", timeout=20, tries=4), concurrency)

    def one(_):
        return endpoints.ask("/x", lambda response: response.content, content=b"body").result

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(times))) == [b"done"] * times


def test_the_one_with_the_fewest_under_way_is_asked(serve):
    slow, fast = App(0.2), App()
    ask(60, serve(slow), serve(fast))
    assert slow.had + fast.had == 60
    assert fast.had > 3 * slow.had
    assert slow.at_once <= 4
    assert slow.keys + fast.keys == {f"Bearer {CANARY}": 60}


@pytest.mark.parametrize("trouble", [App(0, 503), App(0, 429, (b"retry-after", b"30"))], ids=["broken", "full"])
def test_one_in_trouble_is_left_alone_and_the_other_answers(trouble, serve):
    sound = App()
    ask(40, serve(trouble), serve(sound), concurrency=8)
    assert trouble.had <= 8  # those that were on their way when the first came back
    assert sound.had == 40
