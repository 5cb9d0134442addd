"""Hosts that answer by jobs.

A job is noted before anybody waits for it, so that a killed run does not pay for it again.
"""

from __future__ import annotations

import logging
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

from adapters.http.answers import Pixels, Received
from adapters.http.client import HostName, object_of
from adapters.http.faults import Fault
from adapters.http.host import Host, ImageCall
from adapters.http.retries import ConcurrencyLimiter, Outcome, Policy, sleep
from adapters.http.settings import Concurrent, Prompted, Seconds
from adapters.prompts import Texts
from pe.plugins.protocols import Capabilities, Failed, JobNote, PluginInfo
from pe.plugins.settings import Count

Value = TypeVar("Value")
JobStatus = Literal["waiting", "unknown"] | Mapping[str, Any]
"""The state of a job: queued or at work, not known to the host, or, once it is done, what the host
says of it."""

log = logging.getLogger(__name__)

GRACE = 15.0
"""Seconds that a job may be unknown before it counts as forgotten: not all machines of a host know
it at once."""

RARER = 1.5
"""Factor from each wait for a job to the next."""

RAREST = 10.0
"""The longest wait for a job, in units of the first."""


class Ended(Exception):  # no Fault: the policy would make the request again
    """A job that ended without a result.

    `is_refusal`: a content filter withheld it, even if `words` do not say so.
    """

    def __init__(self, words: str, *, is_refusal: bool = False) -> None:
        super().__init__(words)
        fault = Fault(words, 400, "content_filter" if is_refusal else "")
        self.fault = fault if fault.refusal else Fault(words)


def for_free(ask: Callable[[], Value]) -> Value:
    """Return what `ask` returns.

    Mark a Fault that it raises as free, since asking again costs nothing.
    """
    try:
        return ask()
    except Fault as fault:
        fault.free = True
        raise


def wait_for_job(
    note: JobNote,
    policy: Policy,
    *,
    start: Callable[[], None],
    look: Callable[[str], JobStatus],
    poll: float,
    timeout: float = float("inf"),
    cancel: Callable[[str], None] = lambda job: None,
) -> Mapping[str, Any]:
    """Wait for the noted job, or start one and wait for that.

    Return what the host says of the job once it is done.

    Args:
        note: where the job is noted.
        policy: the policy for asking the host about the job; a host that is away is waited for.
        start: makes the host start a job, and notes that job.
        look: returns a job's state; raises `Ended` if the job ended without a result, `Fault` if
            the host does not say.
        poll: seconds before the first look at the job; the pauses between looks grow, up to ten
            times as long.
        timeout: seconds that the job is waited for, before `Ended` is raised; infinity: until the
            host ends it.
        cancel: tells the host that nobody waits for a job any longer.
    """
    limiter = ConcurrencyLimiter(1)  # the job has passed the endpoint's

    def ask() -> JobStatus:
        def send() -> JobStatus:
            return for_free(lambda: look(note.job))

        outcome = policy.call_one_of(
            lambda: (limiter, send), lambda status: status, note.check_stop
        )
        if outcome.result is None:
            assert outcome.fault is not None
            raise outcome.fault
        return outcome.result

    is_old = bool(note.job)
    if is_old:
        log.info(
            "%s: waiting for the job %s, which is noted",
            policy.name,
            note.job,
        )
    else:
        start()
    pause = poll
    waited = 0.0  # time in which the host was away does not count
    unknown = 0.0
    while True:
        status = ask()
        if status == "waiting":
            unknown = 0.0
        elif status != "unknown":
            return status
        elif unknown >= GRACE:
            if not is_old:
                raise Ended(f"the host does not know the job {note.job}, which it has taken")
            words = "%s does not know the job %s: it is submitted again."
            log.warning(words, policy.name, note.job)
            start()
            is_old = False
            pause = poll
            unknown = 0.0
            continue
        if waited >= timeout:
            with suppress(Fault):
                cancel(note.job)
            raise Ended(f"the job {note.job} did not end within job_timeout, {timeout:g} s")
        seconds = min(random.uniform(pause / 2, pause), timeout - waited)
        sleep(seconds, note.check_stop)
        waited += seconds
        unknown += seconds
        pause = min(pause * RARER, poll * RAREST)


class ByJobs(Prompted):
    """Settings of a host that answers by jobs.

    Attributes:
        base_url: the host's address.
        poll: seconds before the first look at a job; the pauses between looks grow, up to ten times
            as long.
        job_timeout: seconds that a job is waited for, before its samples count as failed.
        result_hosts: hosts, besides that in `base_url`, from which images may be fetched; None: the
            documented hosts.
        wordings: degree → text, as for `openai_images`; None: the shipped ones, or none if the
            degree goes as a number.
        concurrency: most jobs at once.
    """

    base_url: str
    poll: Seconds = 1.0
    job_timeout: Seconds = 1800.0
    result_hosts: list[HostName] | None = None
    wordings: dict[float, Texts] | None = None
    concurrency: Count = 4


Config = TypeVar("Config", bound=ByJobs)


class JobHost(Host[Config]):
    """RANDOM_API and VARIATION_API by a host that answers by jobs. A request is one job.

    `response` reads what the host says of a finished job. After a Fault of `job_status` the host is
    asked again.

    Attributes:
        job_field: the field, in the answer to a request, that names the job.
        result_hosts: the hosts from which images are fetched, as documented.
    """

    info = PluginInfo(
        machine_settings=(*Concurrent.model_fields, "poll", "job_timeout", "result_hosts"),
        code_settings=("key_command",),
    )
    shares = "parent"
    job_field: ClassVar[str] = "id"
    result_hosts: ClassVar[tuple[str, ...]] = ()

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request.

        Each of `concurrency` workers waits for one job at a time.
        """
        return replace(super().capabilities, concurrency=self._config.concurrency)

    @abstractmethod
    def job_status(self, job: str) -> JobStatus:
        """Return the state of a job.

        Raise Ended if the job ended without a result, Fault if the host does not say.
        """

    def cancel(self, job: str) -> None:
        """Tell the host that nobody waits for a job any longer. This class tells it nothing."""
        return

    def _submit(self, call: ImageCall) -> None:
        """Make the host start a job, and note it.

        An override that chooses the job's id notes it before sending.
        """
        answer = object_of(super()._send(call))
        job = answer.get(self.job_field)
        if not isinstance(job, str):
            raise Fault.of_object(answer, f"the answer names no {self.job_field}")
        call.job.write(job)

    def _send(self, call: ImageCall) -> Mapping[str, Any]:
        def start() -> None:
            call.job.calls += 1
            self._submit(call)

        return wait_for_job(
            call.job,
            self._client.policy,
            start=start,
            look=self.job_status,
            poll=self._config.poll,
            timeout=self._config.job_timeout,
            cancel=self.cancel,
        )

    def _outcome(self, call: ImageCall) -> Outcome[Received]:
        try:
            outcome = super()._outcome(call)
        except Ended as ended:
            ended.fault.words = self._client.policy.clean(ended.fault.words)
            outcome = Outcome(None, ended.fault)
        # A job that an earlier process started is not billed again.
        return replace(outcome, calls=call.job.calls)

    def _image(self, call: ImageCall, url: object) -> Pixels | Failed:
        """Return the pixels of a data URI, or of an address, or Failed.

        The address must be at one of the `result_hosts`.
        """
        hosts = self._config.result_hosts
        stated = self.result_hosts if hosts is None else hosts
        return self._image_at(call, url, self._config.url, stated)
