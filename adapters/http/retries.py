"""Retries, rates and outages, the same for every endpoint. No library below may retry by itself."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Condition, get_ident
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from adapters.http.faults import Fault, Rejected
from adapters.http.settings import Connection
from pe.errors import Unavailable
from pe.plugins.devices import import_library
from pe.plugins.protocols import Failed, Refused
from pe.progress import WORTH_TELLING

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Result = TypeVar("Result")
Item = TypeVar("Item")
CheckStop = Callable[[], None]

EVERY = 0.5
"""Seconds between two checks, by a waiting request, of whether the run is to stop."""

FIRST = 0.5
MOST = 30.0
"""Most seconds of the random wait before the second try, and before any later try."""

SHRINK = 0.8
"""Factor of the concurrency after a 429."""

LONGEST = 6 * 3600.0
"""Seconds of the longest wait that a server may name."""


def workers_for(concurrency: int) -> int:
    """Return how many threads keep `concurrency` requests under way.

    It allows for threads that read and decode answers meanwhile.
    """
    return concurrency + max(1, concurrency // 8)


class ConcurrencyLimiter:
    """Lets at most `width` requests through at once, at first `most` ≥ 1.

    Shared by all workers of an endpoint.

    A throttled request reduces the width by a fifth, unless the request had started before the last
    reduction. As many successes as the width raise it by one (as TCP does: Chiu and Jain, 1989).
    During a pause no request passes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = float(most)
        self._inside = 0
        self._reductions = 0
        self._pause_ends = 0.0
        self._condition = Condition()

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return max(1, int(self._width))

    @contextmanager
    def passing(self, check_stop: CheckStop) -> Iterator[int]:
        """Wait for a place, unless `check_stop` raises.

        Yield the number of reductions so far, for `throttle`.
        """
        with self._condition:
            rest = self._pause_ends - time.monotonic()
            while rest > 0 or self._inside >= self.width:
                self._condition.wait(_until_check(rest))
                check_stop()
                rest = self._pause_ends - time.monotonic()
            self._inside += 1
            since = self._reductions
        try:
            yield since
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify()

    def succeed(self) -> None:
        """Raise the width by 1 / width, so that as many successes as the width raise it by one."""
        with self._condition:
            self._width = min(float(self._most), self._width + 1 / self._width)
            self._condition.notify()

    def throttle(self, since: int, pause: float) -> None:
        """Reduce the width, unless it was since `passing` gave `since`.

        Let nothing pass for `pause` seconds.
        """
        with self._condition:
            if since == self._reductions:
                self._width = max(1.0, self._width * SHRINK)
                self._reductions += 1
            self._pause_ends = max(self._pause_ends, time.monotonic() + pause)


class CircuitBreaker:
    """Holds requests back while a server is away. Shared by all workers of an endpoint.

    Closed, it lets every request pass. After `limit` faults in a row, of any requests, it is open:
    one request at a time is made as a probe, after waits that double from FIRST to MOST. An answer
    to any request closes it.

    Attributes:
        answers: how many requests were answered.
        is_over: whether the server was away for `patience` seconds at the last fault; a wait that
            it named is added.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._condition = Condition()
        self._prober: int | None = None  # the thread that makes the probe
        self._next_probe = 0.0
        self._faults = 0  # in a row
        self._first_fault = 0.0
        self._patience_ends = 0.0
        self.answers = 0
        self.is_over = False

    @property
    def is_open(self) -> bool:
        """True if the server counts as away."""
        return self._faults >= self._limit

    @property
    def rest(self) -> float:
        """Seconds until the next probe."""
        return self._next_probe - time.monotonic() if self.is_open else 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the first of the faults in a row."""
        return time.monotonic() - self._first_fault

    @contextmanager
    def passing(self, check_stop: CheckStop) -> Iterator[None]:
        """Wait while the circuit is open and it is not this thread's turn to probe.

        `check_stop` may end the wait by raising.
        """
        me = get_ident()
        with self._condition:
            # A probe may make further requests: it asks for the state of the job that it has
            # started.
            while self.is_open and (self.rest > 0 or self._prober not in (None, me)):
                self._condition.wait(_until_check(self.rest))
                check_stop()
            is_probe = self.is_open and self._prober is None
            if is_probe:
                self._prober = me
        try:
            yield
        finally:
            if is_probe:
                with self._condition:
                    self._prober = None
                    self._condition.notify_all()

    def succeed(self) -> None:
        """Note that the server answered a request."""
        with self._condition:
            self.answers += 1
            self.reset()

    def reset(self) -> None:
        """Forget the faults, so that the next request waits for the server anew."""
        with self._condition:
            self._faults = 0
            self.is_over = False
            self._condition.notify_all()

    def fail(self, wait: float | None) -> None:
        """Note a fault that may heal.

        `wait` is how many seconds the server asks to wait before the next request.
        """
        with self._condition:
            now = time.monotonic()
            if not self._faults:
                self._first_fault = now
                self._patience_ends = now + self._patience
            self._faults += 1
            self.is_over = now >= self._patience_ends
            self._patience_ends = max(self._patience_ends, now + (wait or 0.0))
            if self.is_open:
                self._next_probe = now + (
                    backoff(self._faults - self._limit) if wait is None else wait
                )


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The outcome of a request."""

    result: Result | None  # what was made of the answer; None: the request failed
    fault: Fault | None  # why the request failed; None: there is a result
    calls: int = 0  # calls made for the request; each may have been billed
    alone: bool = False  # it failed in all tries, while others were answered

    def fill(self, items: list[Item], count: int, noun: str) -> list[Item | Refused | Failed]:
        """Return `count` entries: the answer's items, then the reason why others are missing."""
        missing = self.miss or Failed(
            f"the endpoint sent {len(items)} {noun} where {count} were asked for"
        )
        return [*items[:count], *[missing] * (count - len(items))]

    @property
    def miss(self) -> Refused | Failed | None:
        """The fault as `Refused` or `Failed`, for every item of the request.

        It is None without a fault.
        """
        if self.fault is None:
            return None
        if self.fault.refusal:
            return Refused(self.fault.words)
        return Failed(str(self.fault), rejected=self.alone or self.fault.rejects)


@dataclass
class _Request:
    """What happened to a request so far.

    It holds no fault, whose traceback would be a cycle of references.
    """

    answers: int  # of the endpoint, at the request's start or last fault
    is_patient: bool
    calls: int = 0
    alone: int = 0  # faults, each after another request was answered
    has_answer: bool = False  # the answer is there, and may be paid


class Policy:
    """One endpoint's rate and patience, shared by all of its workers.

    A request whose fault may pass (`Fault.heals`) is made again, after a random wait that doubles
    from FIRST to MOST, or the wait that the server asked for. A 429 slows all workers down, and its
    wait holds all of them back.

    A request can end in two ways without a result. Either its items failed: they were refused or
    rejected, or the request failed 2 × `tries` times while others were answered. Or the run stops,
    and can be resumed: the server was away for `patience` seconds, or no request will succeed.

    Args:
        name: what messages call the endpoint.
        connection: says `tries` and `patience`.
        concurrency: most requests at once.
        clean: redacts secrets from messages.
    """

    def __init__(
        self, name: str, connection: Connection, concurrency: int, clean: Callable[[str], str]
    ) -> None:
        self.name = name
        self.clean = clean
        self.limiter = ConcurrencyLimiter(concurrency)
        self._breaker = CircuitBreaker(connection.tries, connection.patience)
        self._tries = connection.tries
        self._patience = connection.patience
        self._wait = ""
        self._wait_ends = 0.0
        self._under_way = set[int]()

    @property
    def wait(self) -> str:
        """The reason why requests wait now, in a clause.

        It is empty if no request waits long.
        """
        return self._wait if self._breaker.is_open or time.monotonic() < self._wait_ends else ""

    def call(
        self,
        send: Callable[[], Sent],
        read: Callable[[Sent], Result],
        check_stop: CheckStop = lambda: None,
        *,
        is_patient: bool = True,
    ) -> Outcome[Result]:
        """Make a request until it is answered, refused or given up: see `call_one_of`."""
        return self.call_one_of(
            lambda: (self.limiter, send), read, check_stop, is_patient=is_patient
        )

    def call_one_of(
        self,
        choose: Callable[[], tuple[ConcurrencyLimiter, Callable[[], Sent]]],
        read: Callable[[Sent], Result],
        check_stop: CheckStop,
        *,
        is_patient: bool = True,
    ) -> Outcome[Result]:
        """Make a request as `call` does, to one of several endpoints.

        Each has a limiter of its own, and all give the same answer.

        Args:
            choose: for each try, the limiter to pass and the function that makes the request, or
                raises `Fault`.
            read: makes the result from the answer, after the limiter's place is free again, or
                raises `Fault`.
            check_stop: called by a request that waits; raises what ends the waiting.
            is_patient: false to return the fault after `tries`, even if the server is away.

        Raises:
            Rejected: neither this request nor any other will succeed (401, 402, 403, 404, a spent
                quota …).
            Unavailable: the server was away, or throttled, for longer than the patience.
        """
        tenacity = import_library(
            "tenacity",
            "http",
            "Calling an endpoint",
        )
        request = _Request(self._breaker.answers, is_patient)
        # Tenacity only repeats: whether and when is decided here, as it depends on all workers.
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, Fault) and error.heals
            ),
            stop=lambda state: self._gives_up(state, request),
            wait=self._pause,
            before_sleep=self._tell,
            sleep=lambda seconds: sleep(seconds, check_stop),
            reraise=True,
        )
        self._under_way.add(id(request))
        try:
            result = retrying(self._try, request, choose, read, check_stop)
            return Outcome(result, None, request.calls)
        except Fault as fault:
            return self._end(fault.with_traceback(None), request)
        finally:
            self._under_way.remove(id(request))

    def _try(
        self,
        request: _Request,
        choose: Callable[[], tuple[ConcurrencyLimiter, Callable[[], Sent]]],
        read: Callable[[Sent], Result],
        check_stop: CheckStop,
    ) -> Result:
        request.has_answer = False
        with self._breaker.passing(check_stop):
            try:
                limiter, send = choose()
                with limiter.passing(check_stop) as since:
                    # Counted before it is sent: whatever comes back may have been billed.
                    request.calls += 1
                    try:
                        answer = send()
                    except Fault as fault:
                        if fault.is_throttle:
                            limiter.throttle(since, min(fault.wait or 0.0, LONGEST))
                        raise
                request.has_answer = True
                result = read(answer)
                limiter.succeed()
            except Fault as fault:
                self._note(fault, request)
                raise
            self._breaker.succeed()
            return result

    def _note(self, fault: Fault, request: _Request) -> None:
        """Enter a fault in what is known of the server and of the request."""
        fault.words = self.clean(fault.words)
        if not fault.heals:  # the server is there
            self._breaker.succeed()
            return
        if not fault.is_throttle:
            request.alone += self._breaker.answers != request.answers
        request.answers = self._breaker.answers
        self._breaker.fail(fault.wait)

    def _gives_up(self, state: RetryCallState, request: _Request) -> bool:
        """Return whether a request that failed, with a fault that may heal, is not made again."""
        wait = _fault_of(state).wait or 0.0
        if not request.is_patient:
            return state.attempt_number >= self._tries or wait > MOST
        if wait > LONGEST or self._breaker.is_over:
            return True
        # An answer that is there may be paid, so it is not given up as quickly.
        is_quick = not request.has_answer or (state.seconds_since_start or 0.0) > self._patience
        return is_quick and self._is_alone(request)

    def _is_alone(self, request: _Request) -> bool:
        return request.alone >= 2 * self._tries

    def _end(self, fault: Fault, request: _Request) -> Outcome[Result]:
        """Return the outcome of a request whose items failed.

        Otherwise raise what stops the run, which can be resumed.
        """
        failed = Outcome[Result](None, fault, request.calls)
        if fault.refusal or fault.whole or fault.rejects:
            return failed
        if fault.bad_certificate:
            raise Rejected(
                f"{self.name} is not trusted ({fault}). Name its authority's file in "
                "SSL_CERT_FILE, or give the address that its certificate is for."
            ) from None
        if not fault.heals:
            raise Rejected(f"{self.name} rejects the request with {fault}") from None
        if not request.is_patient:
            return failed
        if (fault.wait or 0.0) > LONGEST:
            raise Unavailable(
                f"{self.name} asks to wait for {fault.wait:,.0f} s ({fault})."
            ) from None
        if not request.has_answer:
            if self._is_alone(request):
                return Outcome(None, fault, request.calls, alone=True)
            # No other request tells whether the server is away for all. Another seed may help; the
            # circuit stays open, so that a server that is away is not waited for once more.
            is_own = fault.status not in (None, 429, 502, 503)  # the server answered this one
            if is_own and len(self._under_way) == 1:
                return failed
        seconds = self._breaker.seconds
        self._breaker.reset()
        duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        raise Unavailable(
            f"{self.name} gave no answer for {duration} (the last fault: {fault})."
        ) from None

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds until a request is made again."""
        fault = _fault_of(state)
        if self._breaker.is_open:
            return 0.0  # the circuit breaker holds the request back
        if fault.wait is not None:
            return 0.0 if fault.is_throttle else fault.wait  # the limiter holds throttled ones back
        return backoff(0 if fault.is_throttle else state.attempt_number - 1)

    def _tell(self, state: RetryCallState) -> None:
        """Log when the next try is, and show it if the server is away or the wait is long."""
        fault = _fault_of(state)
        is_away = self._breaker.is_open
        reason = f"no answer from the server ({fault}), trying again at"
        seconds = max(state.upcoming_sleep, self._breaker.rest)
        if fault.is_throttle:
            reason = "rate limited by the server until"
            seconds = max(seconds, fault.wait or 0.0)
        words = f"{reason} {datetime.now() + timedelta(seconds=seconds):%H:%M:%S}"
        level = logging.WARNING if is_away else logging.INFO  # a warning shows at once
        log.log(level, "%s: %s", self.name, words)
        if is_away or seconds >= WORTH_TELLING:
            self._wait = words
            self._wait_ends = time.monotonic() + seconds


def backoff(faults: int) -> float:
    """Return the seconds of a random wait.

    It doubles with each fault before the last one, from FIRST to MOST.
    """
    longest = min(MOST, FIRST * 2 ** min(faults, 30))
    return random.uniform(longest / 4, longest)


def _until_check(rest: float) -> float:
    """Return the seconds to sleep until the next look at a condition.

    The condition may hold after `rest` seconds.
    """
    return min(EVERY, rest) if rest > 0 else EVERY


def sleep(seconds: float, check_stop: CheckStop) -> None:
    """Sleep, unless `check_stop` raises what ends the sleep."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check_stop()
        time.sleep(min(EVERY, max(0.0, end - time.monotonic())))


def _fault_of(state: RetryCallState) -> Fault:
    """Return the fault of the last try."""
    assert state.outcome is not None
    return cast(Fault, state.outcome.exception())
