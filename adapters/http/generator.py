"""What the generators share that ask an endpoint for images of a prompt, and for variations of such images."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from adapters.http.answers import PictureRule, Received, answer_of, encoded
from adapters.http.client import Content, HTTPClient, OnFirstUse
from adapters.http.credentials import Credentials, check_key
from adapters.http.faults import Fault
from adapters.http.policy import CheckStop, Gate, Outcome, Policy, policy_of
from adapters.http.settings import Concurrent, Connection, Profile, Prompted
from adapters.prompts import Prompts, prompts_of
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions
from pe.plugins.protocols import Answer, JobNote, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest
from pe.plugins.settings import read_settings

if TYPE_CHECKING:
    import httpx2


log = logging.getLogger(__name__)

Given = TypeVar("Given", bound=Prompted)
Client = TypeVar("Client")
Sent = TypeVar("Sent")


@dataclass(frozen=True)
class Asked:
    """What a call asks for.

    Attributes:
        prompt: of all its images; of variations, with the wording of their degree.
        seeds: uint64, one per image.
        parents: PNG files to be varied, one per image; none: new images.
        told: the field that tells the degree of variations, where the endpoint has one.
        job: where a host's job, or an answer that names images by their addresses, is noted.
        fetched: address → image that an earlier try has brought.
    """

    prompt: str
    seeds: Seeds
    parents: Sequence[bytes] = ()
    told: Mapping[str, float] = field(default_factory=dict)
    job: JobNote = field(default_factory=JobNote)
    fetched: dict[str, bytes] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """For an endpoint that takes one, of 31 bits."""
        return int(self.seeds[0] % 2**31)


class PromptedGenerator(ABC, Generic[Given, Client, Sent]):
    """RANDOM_API and VARIATION_API by an endpoint that draws from prompts, which samples carry as condition `prompt`.

    A kind says how to open the endpoint, what to send, and how to read the answer.

    Args:
        settings: see the kind's `Settings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings: type[Given]

    info = PluginInfo(machine_settings=tuple(Concurrent.model_fields), code_settings=("key_command",))

    def __init__(self, **settings: Any) -> None:
        given = read_settings(self.Settings, settings, type(self).__name__)
        self._given = given = given.served_by(given.profile)
        self._prompts, self._ladder = Prompts.of(given.prompts), given.ladder
        self._rule = PictureRule(*given.image_size, given.channels, given.resize, given.drawn, given.kept)
        self._opened, self._settled = OnFirstUse(self._open), OnFirstUse(self._settle)
        self._host = urlsplit(given.url).netloc
        self.info = replace(
            self.info,
            hosts=(self._host,),
            by_label=self._prompts.by_label,
            shape=self._rule.shape,
            drawn=self._asked_size,
            kept=given.kept,
        )

    @property
    def _asked_size(self) -> tuple[int, int] | None:
        """(height, width) that new images are asked for, whatever comes; None: the endpoint's own."""
        return self._given.drawn

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """What a degree comes to here."""
        return self._ladder.describe(degree)

    def describe_wait(self) -> str:
        """What requests wait for now; empty: for nothing."""
        opened = self._opened.made
        return "" if opened is None else opened[1].wait

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there: see `check_key`."""
        check_key(self._given)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt."""
        self._prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of the request's one prompt.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
            APIError: an image that it has made cannot be fetched for now.
        """
        return self._ask(request, lambda: Asked(_prompt(request), request.seeds, job=request.job))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent, as it was drawn if that is kept; at degree 0 the parents, without a call.

        Raises:
            Rejected: see `random_api`.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        drawn = request.conditions.get(DRAWN) if self._rule.kept else None
        parents = encoded(request.samples if drawn is None else Images(drawn))

        def asked() -> Asked:
            prompt, told = self._ladder.tell(request.degree, _prompt(request), int(request.seeds[0] >> 8))
            return Asked(prompt, request.seeds, parents, told, request.job)

        return self._ask(request, asked)

    @abstractmethod
    def _connect(self, credentials: Credentials) -> Client:
        """Open the endpoint, without retries of its own, over clients that send these credentials."""

    @abstractmethod
    def _send(self, client: Client, asked: Asked) -> Sent:
        """Make one call; a `Fault` where it brings nothing."""

    @abstractmethod
    def _read(self, client: Client, sent: Sent) -> Received:
        """What an answer holds; a `Fault` where that is no image."""

    def _recognise(self, client: Client) -> Profile | None:
        """Which server answers, by what it says of itself; a `Fault` where there is no answer."""
        return None

    def _ask(self, request: RandomRequest | VariationRequest, asked: Callable[[], Asked]) -> Answer:
        """The answer to a request, which is put together once it is known who answers."""
        client, policy, credentials = self._opened.get()
        once = cache(asked)

        def send() -> Sent:
            self._settled.get()
            return self._send(client, once())

        check_stop = request.job.check_stop
        outcome = policy.call(lambda: credentials.ask(send), lambda sent: self._read(client, sent), check_stop)
        answer, calls = answer_of(len(request), outcome, self._rule, request.conditions), request.job.calls
        return replace(answer, usage=replace(answer.billed, calls=calls)) if calls else answer

    def _settle(self) -> bool:
        """Take the settings of the server that answers, where it is to be asked."""
        if self._given.asks:
            found = self._recognise(self._opened.get()[0])
            log.info("%s: %s", self._host, "not recognised" if found is None else f"recognised as {found.title}")
            self._given = given = self._given.served_by(found, named=False)
            self._ladder = given.ladder
        return True

    def _open(self) -> tuple[Client, Policy, Credentials]:
        given, credentials = self._given, self._credentials()
        policy = policy_of(given, self._host, given.concurrency, credentials)
        return self._connect(credentials), policy, credentials

    def _credentials(self) -> Credentials:
        """Who asks."""
        return Credentials(self._given)


def stated(**fields: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _prompt(request: RandomRequest | VariationRequest) -> str:
    """The one prompt of all items of a request."""
    return str(prompts_of(request.conditions, len(request))[0])


# Several endpoints that give the same answers: each request goes to the one with the fewest under way.


Result = TypeVar("Result")

REST = 10.0
"""Seconds that an endpoint which did not answer is left alone while another does."""


class Endpoints:
    """Servers of one kind behind several addresses, under one policy; each has its own connections and gate.

    Args:
        urls: their addresses, at least one.
        connection: how each is reached, under the same key.
        concurrency: requests at once, at the most, to each.

    Raises:
        RecipeError: what a setting of the connection names is not there.
    """

    def __init__(self, urls: Sequence[str], connection: Connection, concurrency: int) -> None:
        self._credentials = credentials = Credentials(connection)
        self._places = [
            _Place(HTTPClient(url, connection, concurrency, credentials), Gate(concurrency)) for url in urls
        ]
        name = ", ".join(urlsplit(url).netloc for url in urls)
        self._policy = policy_of(connection, name, concurrency * len(urls), credentials)
        self._choosing = Lock()

    def ask(
        self,
        path: str,
        read: Callable[[httpx2.Response], Result],
        content: Content = None,
        kind: str = "",
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """GET, or POST `content`; see `HTTPClient.ask` and, for `read` and what is raised, `Policy.call_one_of`."""

        def choose() -> tuple[Gate, Callable[[], httpx2.Response]]:
            place = self._chosen()
            return place.gate, lambda: self._asked(place, path, content, kind)

        return self._policy.call_one_of(choose, read, check_stop)

    @property
    def wait(self) -> str:
        """See `Policy.wait`."""
        return self._policy.wait

    def _chosen(self) -> _Place:
        """The place with the fewest requests chosen for it, those that rest last; the request counts from now on."""
        with self._choosing:
            now = time.monotonic()
            place = min(self._places, key=lambda each: (each.rests_until > now, each.under_way))
            place.under_way += 1
            return place

    def _asked(self, place: _Place, path: str, content: Content, kind: str) -> httpx2.Response:
        try:
            return self._credentials.ask(lambda: place.client.ask(path, content, kind))
        except Fault as fault:
            if fault.heals:
                place.rests_until = time.monotonic() + (REST if fault.wait is None else fault.wait)
            raise
        finally:
            with self._choosing:
                place.under_way -= 1


@dataclass(eq=False)
class _Place:
    """One address."""

    client: HTTPClient
    gate: Gate
    under_way: int = 0
    rests_until: float = 0.0


# Lines that the starting recipes of endpoints share; see `HasStarter` of pe/recipe/starting.py.


PROMPTED = """\
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
"""

KEEPS = "  keep_size: 512\t# samples are varied at this size, at the price of disk; false: at image_size\n"
PRICED = "  # price: {{image: 0.01, currency: USD}}\t# yours to state; then state limits.max_cost, too\n"


def hosted(*lines: str) -> str:
    """The starting lines of a hosted model: its own, then what all share."""
    return "".join(f"  {line}\n" for line in lines) + PROMPTED + KEEPS + PRICED
