"""Waiting for a host's job: the one that is noted, or one that is started now; it is noted before anybody waits."""

from __future__ import annotations

import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit
from weakref import finalize

from adapters.http.answers import Addresses, HostName, PictureRule, Pixels, answer_of
from adapters.http.client import fetched, object_of, open_client, respond
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.generator import Asked, PromptedGenerator
from adapters.http.policy import Gate, Outcome, Policy
from adapters.http.settings import Concurrent, Prompted, Seconds
from adapters.prompts import Ladder, Texts
from pe.plugins.protocols import Answer, Capabilities, Failed, JobNote, PluginInfo, RandomRequest, VariationRequest
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2


Found = TypeVar("Found")

log = logging.getLogger(__name__)

GRACE = 15.0
"""Seconds for which a host may not know a job before the job counts as forgotten: hosts have several machines."""

RARER = 1.5, 10.0
"""By what factor each wait for a job exceeds the one before, and the longest the first."""


class Ended(Exception):  # no Fault: the policy would make the request again
    """A job that ended without a result.

    Args:
        words: why.
        refused: a content filter ended it, though the words may not say so.

    Attributes:
        fault: why; perhaps a refusal.
    """

    def __init__(self, words: str, *, refused: bool = False) -> None:
        super().__init__(words)
        fault = Fault(words, 400, "content_filter" if refused else "")
        self.fault = fault if fault.refusal else Fault(words)


def for_free(ask: Callable[[], Found]) -> Found:
    """Call `ask`, and mark its faults as free: asking again costs nothing."""
    try:
        return ask()
    except Fault as fault:
        fault.free = True
        raise


@dataclass(frozen=True)
class Look:
    """What a host says of a job that has not failed.

    Attributes:
        state: `waiting`: it is queued or at work; `unknown`: the host knows of none; `done`: it has a result.
        answer: the host's words on one that is done.
        wait: seconds that the host asks to wait.
    """

    state: Literal["waiting", "unknown", "done"]
    answer: Mapping[str, Any] = field(default_factory=dict)
    wait: float | None = None


@dataclass(frozen=True)
class Watch:
    """How a job is started, looked at and given up.

    Attributes:
        host: what messages call the host.
        note: where the job is noted.
        start: has the host start a job, and notes it; raises `Fault` where it is not started.
        look: what the host says of a job; raises `Ended` where it has no result, `Fault` where the host does not say.
        cancel: tells the host that nobody waits for a job any longer.
        policy: by which the host is looked at; one that is away is waited for.
        poll: seconds before the job is first looked at; later looks come up to ten times as rarely.
        timeout: seconds that it is waited for; infinity: until the host ends it.
    """

    host: str
    note: JobNote
    start: Callable[[], None]
    look: Callable[[str], Look]
    cancel: Callable[[str], None]
    policy: Policy
    poll: float
    timeout: float

    def wait(self) -> Mapping[str, Any]:
        """The host's words on the job once it is done: on the one that is noted, or on one that is started now.

        Raises:
            Ended: it has no result, or not in time.
            Fault: it cannot be started, or the host will not say.
        """
        note, end, gate = self.note, time.monotonic() + self.timeout, Gate(1)  # the job has passed the endpoint's
        if found := bool(note.job):
            log.info("%s: waiting for the job %s, which is noted", self.host, note.job)
        else:
            self.start()
        pause, known = self.poll, time.monotonic()
        while True:
            look_began = time.monotonic()
            look = self._look(gate)
            now = time.monotonic()
            end, known = end + now - look_began, known + now - look_began  # no time in which the host was away
            if look.state == "done":
                return look.answer
            if look.state == "waiting":
                known = now
            elif now - known >= GRACE:
                if not found:
                    raise Ended(f"the host does not know the job {note.job}, which it has taken")
                log.warning("%s does not know the job %s: it is submitted again.", self.host, note.job)
                self.start()
                found, pause, known = False, self.poll, time.monotonic()
                continue
            if now >= end:
                with suppress(Fault):
                    self.cancel(note.job)
                raise Ended(f"the job {note.job} did not end within job_timeout, {self.timeout:g} s")
            time.sleep(min(max(look.wait or 0.0, random.uniform(pause / 2, pause)), end - now))
            pause = min(pause * RARER[0], self.poll * RARER[1])

    def _look(self, gate: Gate) -> Look:
        """Ask the host about the job."""

        def look() -> Look:
            return for_free(lambda: self.look(self.note.job))

        outcome = self.policy.call_one_of(lambda: (gate, look), lambda found: found, self.note.check_stop)
        if outcome.result is None:
            assert outcome.fault is not None
            raise outcome.fault
        return outcome.result


# The one policy for hosts that answer by jobs: submit, note the job, look until it has ended, fetch what it made.
#
# A job is noted before anybody waits for it. The same request, made again after a kill, looks at the job that is
# noted.


class ByJobs(Prompted):
    """A host that answers by jobs.

    Attributes:
        base_url: of the host.
        poll: seconds before a job is first looked at; later looks come up to ten times as rarely.
        job_timeout: seconds that a job is waited for, before its samples count as failed.
        result_hosts: names of hosts that images may be fetched from, besides `base_url`'s; None: the documented ones.
        wordings: degree → text; see `openai_images`. None: those shipped, unless the degree is sent as a number.
        concurrency: jobs at once, at the most.
    """

    base_url: str
    poll: Seconds = 1.0
    job_timeout: Seconds = 1800.0
    result_hosts: list[HostName] | None = None
    wordings: dict[float, Texts] | None = None
    concurrency: Count = 4

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(self.wordings)


Given = TypeVar("Given", bound=ByJobs)


@dataclass(frozen=True)
class Finished:
    """A job that has a result.

    Attributes:
        asked: what it was asked for.
        answer: the host's words on it.
    """

    asked: Asked
    answer: Mapping[str, Any]


class JobClient:
    """Requests to a host, with credentials; and for images, without.

    Args:
        given: how the host is reached.
        credentials: who asks.
        keyed: what may be asked with credentials.
        results: where images are fetched.
    """

    def __init__(self, given: ByJobs, credentials: Credentials, keyed: Addresses, results: Addresses) -> None:
        self._base, self._credentials = given.base_url.rstrip("/"), credentials
        self._keyed, self.results = keyed, results
        self._pool = open_client(given, given.concurrency, credentials)
        self._pictures = open_client(given, given.concurrency)
        for client in (self._pool, self._pictures):
            finalize(self, client.close)

    def ask(self, method: str, where: str, **request: Any) -> httpx2.Response:
        """The response of the host; `where` is a path, or an address that the host named.

        Raises:
            Fault: none came, or one with an error status.
            Rejected: the address is not one of the host's.
        """
        url = f"{self._base}{where}" if where.startswith("/") else where
        if refusal := self._keyed.refusal(url):
            raise Rejected(f"{urlsplit(self._base).netloc} {refusal}, because the key would go there")
        return self._credentials.ask(lambda: respond(self._pool, method, url, **request))

    def read(self, url: str) -> httpx2.Response:
        """The response of an address that the recipe names, asked without credentials; a `Fault` where none comes."""
        return respond(self._pictures, "GET", url)

    def picture(self, url: object, asked: Asked, rule: PictureRule) -> Pixels | Failed:
        """The image of a data URI, or of an address that is asked without credentials; see `fetched`."""
        if not isinstance(url, str) or url.startswith("data:"):
            return rule.decode_text(url)
        if refusal := self.results.refusal(url):
            return Failed(f"the host {refusal} (result_hosts names others)")
        data = fetched(url, lambda: self.read(url), asked.fetched)
        return data if isinstance(data, Failed) else rule.decode(data)


class JobGenerator(PromptedGenerator[Given, JobClient, Finished]):
    """RANDOM_API and VARIATION_API by a host that answers by jobs; a request is one job.

    A kind says how to submit, how to look, and how to read a result.

    Attributes:
        key_hosts: names of hosts that are asked with the key, besides `base_url`'s, where the host names an address.
        result_hosts: where images are fetched, as the host documents it.
    """

    info = PluginInfo(
        machine_settings=(*Concurrent.model_fields, "poll", "job_timeout", "result_hosts"),
        code_settings=("key_command",),
    )
    key_hosts: ClassVar[tuple[str, ...]] = ()
    result_hosts: ClassVar[tuple[str, ...]] = ()

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request; a job at a time for each worker."""
        return Capabilities(self._most, self._given.concurrency, "parent", self._ladder.degree, deterministic=False)

    @property
    def _most(self) -> int:
        """Most images of one job."""
        return 1

    def _connect(self, credentials: Credentials) -> JobClient:
        given = self._given
        results = self.result_hosts if given.result_hosts is None else tuple(given.result_hosts)
        keyed, fetched = Addresses(given.url, self.key_hosts), Addresses(given.url, results)
        return JobClient(given, credentials, keyed, fetched)

    def _find(self, client: JobClient, where: str) -> dict[str, Any] | None:
        """What the host says at an address; None: there is nothing there."""
        try:
            return object_of(client.ask("GET", where))
        except Fault as fault:
            if fault.status != 404:
                raise
            return None

    @abstractmethod
    def _submit(self, client: JobClient, asked: Asked) -> None:
        """Have the host start a job and write its id to `asked.job`: before it is sent, where the id is ours."""

    @abstractmethod
    def _look(self, client: JobClient, job: str) -> Look:
        """What the host says of a job; `Ended` where it has none to give, a `Fault` where it does not say."""

    def _cancel(self, client: JobClient, job: str) -> None:
        """Tell the host that nobody waits for a job any longer, where it can be told."""
        return

    def _ask(self, request: RandomRequest | VariationRequest, asked: Callable[[], Asked]) -> Answer:
        try:
            answer = super()._ask(request, asked)
        except Ended as ended:
            clean = self._opened.get()[2].clean
            fault = ended.fault
            fault.words = clean(fault.words)
            answer = answer_of(len(request), Outcome(None, fault, 0), self._rule, request.conditions)
        usage = answer.usage
        return answer if usage is None else replace(answer, usage=replace(usage, calls=request.job.calls))

    def _send(self, client: JobClient, asked: Asked) -> Finished:
        """The job's result: of the one that is noted, or of one that is submitted now.

        Raises:
            Ended: there is none, or not in time.
            Fault: it cannot be submitted, or the host will not say.
        """
        given = self._given
        watch = Watch(
            self._host,
            asked.job,
            start=lambda: self._start(client, asked),
            look=lambda job: self._look(client, job),
            cancel=lambda job: self._cancel(client, job),
            policy=self._opened.get()[1],
            poll=given.poll,
            timeout=given.job_timeout,
        )
        return Finished(asked, watch.wait())

    def _start(self, client: JobClient, asked: Asked) -> None:
        asked.job.calls += 1
        self._submit(client, asked)
