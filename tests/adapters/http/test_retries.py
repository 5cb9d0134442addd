"""The policy of all endpoints: what is retried, how long is waited, how many go at once, and to
which of several.
"""

import asyncio
import functools
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.http import Connection, Endpoints, Fault, Policy, Rejected, retries
from adapters.http.retries import ConcurrencyLimiter
from pe.errors import Interrupted, Unavailable
from pe.plugins.protocols import Failed, Refused
from tests.endpoints.asking import CANARY
from tests.endpoints.faults import respond


class Sender:
    """Fails as it is told, then answers."""

    def __init__(self, *faults):
        self.faults, self.calls = list(faults), 0

    def __call__(self):
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        return "answer"


def policy(concurrency=4, clean=str, **settings):
    return Policy("the.endpoint", Connection(**settings), concurrency, clean)


def ending():
    """Raise after a while in threads that would wait for ever."""
    end = time.monotonic() + 30
    return lambda: raising() if time.monotonic() > end else None


def raising():
    raise Interrupted("it waits for ever")


HEALING = [
    Fault("no connection"),
    *(Fault("busy", status) for status in (408, 409, 424, 429, 500, 502, 503, 529)),
]


@pytest.mark.parametrize("fault", HEALING, ids=lambda fault: str(fault.status))
def test_what_may_heal_is_asked_again_and_every_call_is_counted(fault):
    sender = Sender(fault, fault)
    outcome = policy().call(sender, str)
    assert (outcome.result, outcome.calls, sender.calls) == ("answer", 3, 3)


@pytest.mark.parametrize("where", ["send", "read"])
def test_a_whole_answer_that_is_not_what_was_asked_is_not_asked_for_again(where):
    def read(sent):
        raise Fault("it has the keys ['detail']", 200)

    sender = Sender(*[Fault("a page", 203)] * (where == "send"))
    outcome = policy().call(sender, read)
    assert (outcome.result, outcome.calls, sender.calls) == (None, 1, 1)
    assert isinstance(outcome.miss, Failed)
    assert outcome.miss.retryable


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejected_request_is_a_failure_of_its_items_alone(status):
    sender = Sender(Fault("the prompt is too long", status))
    outcome = policy().call(sender, str)
    assert (outcome.result, outcome.calls, sender.calls) == (None, 1, 1)
    assert outcome.miss == Failed(f"HTTP {status}: the prompt is too long", rejected=True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 429])
def test_what_cannot_heal_stops_the_run_in_the_server_s_words(status):
    sender = Sender(Fault("your quota is used up", status, "insufficient_quota"))
    with pytest.raises(
        Rejected, match=rf"the.endpoint rejects the request with HTTP {status}: your quota"
    ):
        policy().call(sender, str)
    assert sender.calls == 1


@pytest.mark.parametrize(
    "fault",
    [Fault("no", 400, "moderation_blocked"), Fault("blocked by the content filter", 403)],
    ids=["400", "403"],
)
def test_a_refusal_is_an_outcome(fault):
    outcome = policy().call(Sender(fault), str)
    assert (outcome.result, outcome.calls, outcome.miss) == (None, 1, Refused(fault.words))


class Server:
    """Is away at first, for `times` requests; knows how many came at once after `noticed` of them.

    By then its absence is noticed, and what was under way has come back.
    """

    def __init__(self, fault, times, noticed):
        self.fault, self.times, self.noticed = fault, times, noticed
        self.calls, self.inside, self.most = 0, 0, 0
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.calls += 1
            away, probe = self.calls <= self.times, self.calls > self.noticed
            self.inside += 1
            self.most = max(self.most, self.inside if probe and away else 0)
        time.sleep(0.005)
        with self._lock:
            self.inside -= 1
        if away:
            raise Fault(self.fault.words, self.fault.status)
        return "answer"


@pytest.mark.parametrize("status", [None, 429, 503])
def test_a_server_that_is_away_is_asked_by_one_request_at_a_time_until_it_is_back(status):
    shared, server = policy(tries=2), Server(Fault("Loading model", status), times=30, noticed=12)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(
            pool.map(lambda check_stop: shared.call(server, str, check_stop), [ending()] * 8)
        )
    assert [outcome.result for outcome in outcomes] == ["answer"] * 8
    assert server.calls == sum(outcome.calls for outcome in outcomes) == 38
    assert server.most <= 1
    assert shared.wait == ""


@pytest.mark.parametrize(
    "fault", [Fault("no connection"), Fault("Loading model", 503), Fault("slow down", 429)]
)
def test_a_server_that_stays_away_stops_the_run_in_words_on_it_and_is_waited_for_anew(fault):
    asked, sender = policy(patience=0.15), Sender(*[fault] * 10_000)
    for _ in range(2):
        before = sender.calls
        with pytest.raises(
            Unavailable, match=rf"the.endpoint gave no answer for 0 s \(the last fault: {fault}\)"
        ):
            asked.call(sender, str)
        assert sender.calls > before + 1
    sender.faults.clear()
    assert asked.call(sender, str).result == "answer"


@pytest.mark.parametrize("status", [None, 500, 503])
def test_a_request_that_fails_while_others_are_answered_has_failed_after_twice_the_tries(status):
    shared, calls = policy(tries=2), []

    def poisoned():
        calls.append(shared.call(Sender(), str).result)  # meanwhile others succeed
        raise Fault("out of memory", status)

    outcome = shared.call(poisoned, str)
    assert outcome.miss == Failed(str(Fault("out of memory", status)), rejected=True)
    assert outcome.calls == len(calls) == 4


def test_a_request_that_is_throttled_while_others_are_answered_never_fails():
    shared, sender = policy(tries=2), Sender(*[Fault("slow down", 429)] * 20)

    def throttled():
        shared.call(Sender(), str)
        return sender()

    assert shared.call(throttled, str).result == "answer"


def test_faults_of_an_outage_do_not_count_as_faults_of_a_request_alone():
    shared, sender = policy(tries=2), Sender(*[Fault("down", 503)] * 30)
    assert shared.call(sender, str).calls == 31


def test_the_last_request_of_all_gets_another_seed_without_another_wait():
    asked, sender = policy(tries=2, patience=0.1), Sender(*[Fault("out of memory", 500)] * 10_000)
    assert asked.call(sender, str).miss == Failed("HTTP 500: out of memory")
    assert asked.call(sender, str).calls == 1
    sender.faults.clear()
    assert asked.call(sender, str).result == "answer"


def test_an_outage_is_noticed_by_the_faults_of_all_workers_together():
    shared, server = (
        policy(concurrency=8),
        Server(Fault("down", 503), times=60, noticed=24),
    )
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(
            pool.map(lambda check_stop: shared.call(server, str, check_stop), [ending()] * 16)
        )
    assert [outcome.result for outcome in outcomes] == ["answer"] * 16
    assert server.most <= 1


def test_who_has_no_patience_is_told_after_the_tries():
    outcome = policy(tries=3).call(Sender(*[Fault("down", 503)] * 99), str, is_patient=False)
    assert (outcome.calls, str(outcome.fault)) == (3, "HTTP 503: down")
    assert policy().call(Sender(Fault("later", 503, wait=500)), str, is_patient=False).calls == 1


def test_an_answer_that_is_there_is_never_given_up_for_another_seed():
    shared = policy(tries=2, patience=0.1)

    def lost(_):
        shared.call(Sender(), str)
        raise Fault("the picture cannot be fetched", 500)

    with pytest.raises(Unavailable, match="cannot be fetched"):
        shared.call(Sender(), lost)


@pytest.mark.parametrize(
    "fault", [Fault("down", 503), Fault("down", 503, wait=500), Fault("slow down", 429, wait=500)]
)
def test_who_waits_is_told_to_stop(fault):
    def check_stop():
        if time.monotonic() > started + 0.1:
            raise Interrupted("stop")

    started = time.monotonic()
    with pytest.raises(Interrupted):
        policy(tries=2).call(Sender(*[fault] * 10_000), str, check_stop)


def test_no_message_holds_the_key():
    clean = functools.partial(re.sub, "sk-canary", "[key]")
    with pytest.raises(Rejected, match=r"Incorrect API key: \[key\]"):
        policy(clean=clean).call(Sender(Fault("Incorrect API key: sk-canary", 401)), str)
    with pytest.raises(Unavailable, match=r"\[key\] is busy"):
        policy(clean=clean, tries=1, patience=0.05).call(
            Sender(*[Fault("sk-canary is busy", 503)] * 99), str
        )


def test_the_wait_that_the_server_asks_for_holds_all_workers_back():
    throttled, others = policy(), []
    sender = Sender(Fault("slow down", 429, wait=0.3))
    started = time.monotonic()
    first = threading.Thread(target=lambda: throttled.call(sender, str))
    first.start()
    time.sleep(0.1)
    throttled.call(lambda: others.append(time.monotonic() - started), str)
    first.join()
    assert min(others) >= 0.3


def test_a_wait_beyond_all_patience_is_not_waited_for():
    sender = Sender(*[Fault("come back tomorrow", 429, wait=86400)] * 3)
    with pytest.raises(Unavailable, match="come back tomorrow"):
        policy().call(sender, str)
    assert sender.calls == 1


@pytest.mark.parametrize(("wait", "told"), [(999_999_999, "999,999,999 s"), (86_400.0, "86,400 s")])
def test_a_wait_beyond_all_patience_is_told(wait, told):
    with pytest.raises(
        Unavailable, match=rf"the.endpoint asks to wait for {told} \(HTTP 429: slow down\)\.$"
    ):
        policy().call(Sender(Fault("slow down", 429, wait=wait)), str)


def test_a_wait_that_the_server_names_is_waited_for_beyond_the_patience_with_others(monkeypatch):
    assert (
        policy(patience=0.05).call(Sender(Fault("in a while", 429, wait=0.2)), str).result
        == "answer"
    )
    sender = Sender(*[Fault("again", 429, wait=0.2)] * 9)
    monkeypatch.setattr(retries, "LONGEST", 0.3)
    with pytest.raises(Unavailable):
        policy(patience=0.05).call(sender, str)
    assert sender.calls <= 3


def test_a_wait_is_told_until_it_is_over(monkeypatch, caplog):
    monkeypatch.setattr(retries, "WORTH_TELLING", 0.1)
    caplog.set_level("INFO", "adapters")
    asked = policy()
    asked.call(Sender(Fault("slow down", 429, wait=0.05)), str)
    assert asked.wait == ""
    words = r"no answer from the server \(HTTP 503: Loading model\), trying again at \d\d:\d\d:\d\d"
    waiting = threading.Thread(
        target=asked.call, args=(Sender(Fault("Loading model", 503, wait=0.3)), str)
    )
    waiting.start()
    while not asked.wait and waiting.is_alive():
        time.sleep(0.01)
    assert re.fullmatch(words, asked.wait)
    assert f"the.endpoint: {asked.wait}" in caplog.text
    waiting.join()
    assert asked.wait == ""


def test_one_burst_of_429_reduces_the_concurrency_by_a_fifth_once_and_success_raises_it_again():
    limiter = ConcurrencyLimiter(20)
    for _ in range(20):
        limiter.throttle(since=0, pause=0)
    assert limiter.width == 16
    limiter.throttle(since=1, pause=0)
    assert limiter.width == 12
    for _ in range(13):  # a whole round
        limiter.succeed()
    assert limiter.width == 13
    for _ in range(200):
        limiter.succeed()
    assert limiter.width == 20


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


@pytest.mark.parametrize(
    "trouble", [App(0, 503), App(0, 429, (b"retry-after", b"30"))], ids=["broken", "full"]
)
def test_one_in_trouble_is_left_alone_and_the_other_answers(trouble, serve):
    sound = App()
    ask(40, serve(trouble), serve(sound), concurrency=8)
    assert trouble.had <= 8  # those that were on their way when the first came back
    assert sound.had == 40


def test_one_that_rejects_everything_is_left_alone_though_it_is_the_least_busy(serve):
    wrong, sound = App(0, 400), App()
    endpoints = Endpoints([serve(wrong), serve(sound)], Connection(timeout=20), 4)
    outcomes = [
        endpoints.ask("/x", lambda response: response.content, content=b"body") for _ in range(20)
    ]
    assert [outcome.result for outcome in outcomes] == [None, *[b"done"] * 19]
    assert (wrong.had, sound.had) == (1, 19)
