"""The base class of hosts.

`request` says what to send, `response` reads the answer, and the engine here does the rest.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from adapters.http.answers import PictureRule, Pixels, Received, answer_of, encode_picture
from adapters.http.client import HTTPClient, OnFirstUse, why_not_followed
from adapters.http.credentials import Credentials, check_key
from adapters.http.faults import Fault
from adapters.http.retries import CheckStop, ConcurrencyLimiter, Outcome, Policy, workers_for
from adapters.http.settings import Concurrent, Connection, Prompted
from adapters.prompts import Prompts, prompts_of
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    Generator,
    JobNote,
    PluginInfo,
    RandomRequest,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.settings import read_settings

if TYPE_CHECKING:
    import httpx2

Config = TypeVar("Config", bound=Prompted)
Result = TypeVar("Result")
Request = RandomRequest | VariationRequest
Sending = tuple[str, dict[str, Any]]
"""Path of a POST, and its headers, content, form or files, as `httpx2.Client.request` takes
them."""

REST = 10.0
"""Seconds that an endpoint which did not answer is left alone while another does."""

_ALL_SHARE = """\
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  keep_size: 512\t# samples are varied at this size, at the price of disk; false: at image_size
  # price: {{image: 0.01, currency: USD}}\t# yours to state; then state limits.max_cost, too
"""


def hosted_starter(*lines: str) -> str:
    """Return a hosted model's `Generator.starter`: `lines`, then the lines that all hosts share."""
    return "".join(f"  {line}\n" for line in lines) + _ALL_SHARE


def non_null(**fields: object) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def sides(size: tuple[int, int] | None) -> dict[str, int]:
    """Return a size as the fields `height` and `width`, or no fields if it is None."""
    return {} if size is None else {"height": size[0], "width": size[1]}


@dataclass(frozen=True)
class ImageCall:
    """One call for images."""

    # the prompt of all its images; for variations it includes the wording of the degree
    prompt: str
    seeds: Seeds  # uint64, one per image
    parents: Sequence[bytes] = ()  # PNG files to be varied, one per image; empty for new images
    # field → degree of the variations; empty if no field of the endpoint takes the degree as a
    # number
    degree: Mapping[str, float] = field(default_factory=dict)
    # where a host's job, or an answer that names images by their addresses, is noted
    job: JobNote = field(default_factory=JobNote)
    # address → file that an earlier try has fetched
    images: dict[str, bytes] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The first image's seed in 31 bits, for an endpoint that takes one seed."""
        return int(self.seeds[0] % 2**31)


class Host(Generator, ABC, Generic[Config]):
    """RANDOM_API and VARIATION_API by an endpoint that draws from prompts.

    Samples carry their prompt as the condition `prompt`.

    Attributes:
        shares: what all images of one request have in common: their prompt (condition), or their
            parent, too.
        batch: name of the setting that holds the most images of one request; empty: a request is
            for one image.
        key_hosts: names of further hosts that are asked with the key, at addresses that the
            endpoint names.
        key_header: the header that holds the key.
        key_scheme: the word before the key in the header Authorization.
    """

    Settings: type[Config]
    shares: ClassVar[Literal["condition", "parent"]] = "condition"
    batch: ClassVar[str] = ""
    key_hosts: ClassVar[tuple[str, ...]] = ()
    key_header: ClassVar[str] = "Authorization"
    key_scheme: ClassVar[str] = "Bearer"
    info = PluginInfo(
        machine_settings=tuple(Concurrent.model_fields), code_settings=("key_command",)
    )

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(
            self.Settings,
            settings,
            type(self).__name__,
        )
        self._prompts = Prompts.of(config.prompts)
        self._ladder = config.ladder
        sizes = (config.fixed_size, config.kept_size)
        self._rule = PictureRule(
            *config.image_size,
            config.channels,
            config.resize,
            *sizes,
        )
        self._clients = OnFirstUse(self._open)
        self._host = urlsplit(config.url).netloc
        self.info = replace(
            self.info,
            hosts=(self._host,),
            by_label=self._prompts.by_label,
            shape=(*config.image_size, config.channels),
            drawn=self._requested_size,
            kept=config.kept_size,
        )

    @abstractmethod
    def request(self, call: ImageCall) -> Sending:
        """Return the path and the content of the POST for a call."""

    @abstractmethod
    def response(self, call: ImageCall, answer: Any) -> Received:
        """Return the images of an answer, which is what `_send` returned.

        Raise Fault if it holds none.
        """

    @property
    def capabilities(self) -> Capabilities:
        """One prompt, or one parent, per request."""
        most = getattr(self._config, self.batch) if self.batch else 1
        workers = workers_for(self._config.concurrency)
        return Capabilities(
            most,
            workers,
            self.shares,
            self._ladder.degree,
            deterministic=False,
        )

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._ladder.describe(degree)

    def describe_wait(self) -> str:
        """Return the reason why requests wait now, or an empty text."""
        client = self._clients.value
        return "" if client is None else client.policy.wait

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there: see `check_key`."""
        check_key(self._config)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt."""
        self._prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw new images of the request's one prompt. Errors: see `Policy.call_one_of`."""
        return self._ask(request, ImageCall(_prompt(request), request.seeds, job=request.job))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent, from its copy at the drawn size if that is kept.

        Degree 0 returns the parents without a call.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        pixels = request.conditions.get(DRAWN) if self._rule.kept_size else None
        parents = encode_picture(request.samples if pixels is None else Images(pixels))

        prompt, degree = self._ladder.tell(
            request.degree, _prompt(request), int(request.seeds[0] >> 8)
        )
        return self._ask(request, ImageCall(prompt, request.seeds, parents, degree, request.job))

    @property
    def _client(self) -> HTTPClient:
        return self._clients.get()

    @property
    def _requested_size(self) -> tuple[int, int] | None:
        """(height, width) asked for new images, though they may come in another size.

        None: the endpoint's default.
        """
        return self._config.fixed_size

    def _credentials(self) -> Credentials:
        return Credentials(self._config, header=self.key_header, scheme=self.key_scheme)

    def _open(self) -> HTTPClient:
        config = self._config
        return HTTPClient(
            config.url, config, config.concurrency, self._credentials(), self.key_hosts
        )

    def _send(self, call: ImageCall) -> Any:
        """Make a call and return its answer.

        Raise Fault if there is none.
        """
        path, request = self.request(call)
        return self._client.ask("POST", path, **request)

    def _image_at(
        self, call: ImageCall, url: object, base: str, hosts: Sequence[str] = ()
    ) -> Pixels | Failed:
        """Return the pixels of a data URI, or of an address, or Failed.

        The address is asked without credentials, if `why_not_followed` finds no fault with it.
        """
        if not isinstance(url, str) or url.startswith("data:"):
            return self._rule.decode_text(url)
        why = why_not_followed(url, base, hosts)
        if why:
            return Failed(f"the host {why}{' (`result_hosts` names others)' if hosts else ''}")
        return self._rule.fetch(
            url,
            lambda: self._client.read(url),
            call.images,
        )

    def _outcome(self, call: ImageCall) -> Outcome[Received]:
        """Make a call under the policy."""
        outcome = self._client.policy.call(
            lambda: self._send(call),
            lambda answer: self.response(call, answer),
            call.job.check_stop,
        )
        return replace(outcome, calls=call.job.calls or outcome.calls)

    def _ask(self, request: Request, call: ImageCall) -> Answer:
        return answer_of(
            len(request),
            self._outcome(call),
            self._rule,
            request.conditions,
        )


def _prompt(request: Request) -> str:
    """Return the one prompt of all items of a request."""
    return str(prompts_of(request.conditions, len(request))[0])


class Endpoints:
    """Servers of one kind at several addresses, with one key and one policy.

    `concurrency` is per server.
    """

    def __init__(self, urls: Sequence[str], connection: Connection, concurrency: int) -> None:
        credentials = Credentials(connection)
        self._places = [
            _Place(HTTPClient(url, connection, concurrency, credentials)) for url in urls
        ]
        name = ", ".join(urlsplit(url).netloc for url in urls)
        self._policy = Policy(
            name,
            connection,
            concurrency * len(urls),
            credentials.clean,
        )
        self._choosing = Lock()

    def ask(
        self,
        path: str,
        read: Callable[[httpx2.Response], Result],
        check_stop: CheckStop = lambda: None,
        **request: Any,
    ) -> Outcome[Result]:
        """POST `request`, or GET if it is empty, at the least busy server.

        Return what `Policy.call_one_of` does.
        """

        def choose() -> tuple[ConcurrencyLimiter, Callable[[], httpx2.Response]]:
            with self._choosing:
                now = time.monotonic()
                place = min(self._places, key=lambda each: (each.rests_until > now, each.under_way))
                place.under_way += 1
            return place.client.policy.limiter, lambda: self._ask(place, path, request)

        return self._policy.call_one_of(choose, read, check_stop)

    @property
    def wait(self) -> str:
        """See `Policy.wait`."""
        return self._policy.wait

    def _ask(self, place: _Place, path: str, request: dict[str, Any]) -> httpx2.Response:
        try:
            return place.client.ask(
                "POST" if request else "GET",
                path,
                **request,
            )
        except Fault as fault:
            if fault.heals or fault.rejects:  # of another server it may be taken
                place.rests_until = time.monotonic() + (REST if fault.wait is None else fault.wait)
            raise
        finally:
            with self._choosing:
                place.under_way -= 1


@dataclass(eq=False)
class _Place:
    """One server, its requests under way, and when it may be asked again after a fault."""

    client: HTTPClient
    under_way: int = 0
    rests_until: float = 0.0
