"""AUTOMATIC1111's /sdapi/v1, which stable-diffusion.cpp's server and Xinference speak too: a true strength."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from adapters.http import (
    Asked,
    Credentials,
    HTTPClient,
    Prompted,
    PromptedGenerator,
    Received,
    Scalar,
    Seconds,
    Size,
    object_of,
    workers_for,
)
from adapters.http.answers import images_in
from adapters.http.servers import asker, look_at, recognised
from adapters.http.settings import Profile, SDServer, profile
from adapters.prompts import Ladder
from pe.plugins.protocols import Capabilities, Finding
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2


class SDSettings(Prompted):
    """What a recipe says of such a server.

    Attributes:
        base_url: of the server, without /sdapi.
        server: which software answers: it stands for `several_parents` and `data_uri` where they are not given; `auto`:
            it is asked before the first request, and sent one parent a request whoever it is (docs/endpoints.md). None:
            none of those known; nothing is asked.
        size: height and width that the server draws at; None: `image_size`.
        batch: most images of one request: new ones of one prompt, or variations of one parent.
        several_parents: send up to `batch` parents of one prompt in a request of variations: only for a server that
            varies each of them (AUTOMATIC1111, Forge); others vary the first alone, and nothing in their answer tells.
        negative_prompt: sent with every request.
        steps: denoising steps.
        cfg_scale: guidance.
        sampler: the sampler's name; None: the server's default.
        data_uri: send parents as data URIs, which some servers want.
        extra: further fields, sent as they are.
    """

    base_url: str
    server: SDServer | None = "auto"
    timeout: Seconds = 300.0
    size: Size | None = None
    batch: Count = 1
    several_parents: bool = False
    negative_prompt: str = ""
    steps: Count = 20
    cfg_scale: float = 7.0
    sampler: str | None = None
    data_uri: bool = False
    extra: dict[str, Scalar] | None = None

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(None, "denoising_strength", exact=True)

    @property
    def drawn(self) -> tuple[int, int]:
        """(height, width) that the server is asked for."""
        return self.size or self.image_size

    @property
    def profile(self) -> Profile | None:
        """What is known of the server without asking it."""
        return None if self.server is None else profile("sdapi", self.server)

    @property
    def asks(self) -> bool:
        """Whether the server is to be asked who it is."""
        return self.server == "auto"


class SDAPI(PromptedGenerator[SDSettings, HTTPClient, "httpx2.Response"]):
    """RANDOM_API by txt2img, VARIATION_API by img2img with denoising_strength = degree.

    A request holds up to `batch` items, new ones of one prompt or variations of one parent; its images come from the
    seeds s, s + 1, … of which s is the first item's, so a sample depends on the request that it came in.
    """

    Settings = SDSettings
    starter = """\
  base_url: http://127.0.0.1:7860\t# without /sdapi
  server: auto\t# asked once who it is; or its name (docs/endpoints.md)
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  # negative_prompt: text, watermark
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  size: 512\t# height and width that the server draws at
  keep_size: true\t# vary samples as they were drawn, at the price of disk
  batch: 4\t# most images of one request
  steps: 20
  cfg_scale: 7
  # basic_auth_env: SD_USER\t# the environment variable that holds user:password
"""

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `LooksAtEndpoint.look`."""
        return look_at(cls.Settings, settings)

    @property
    def capabilities(self) -> Capabilities:
        """One prompt per request, and one parent unless the server takes several; the degree is the strength."""
        given, workers = self._given, workers_for(self._given.concurrency)
        shares: Literal["condition", "parent"] = "condition" if given.several_parents else "parent"
        return Capabilities(given.batch, workers, shares, "exact", deterministic=False)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """What a degree comes to here."""
        if degree == 0:
            return "the parent itself, without a call"
        steps = self._given.steps
        return f"denoising_strength = {degree:g}, about {max(1, int(degree * steps))} of {steps} steps"

    def _connect(self, credentials: Credentials) -> HTTPClient:
        return HTTPClient(self._given.base_url, self._given, self._given.concurrency, credentials)

    def _recognise(self, client: HTTPClient) -> Profile | None:
        return recognised("sdapi", self._given.base_url, asker(client.pool))

    def _send(self, client: HTTPClient, asked: Asked) -> httpx2.Response:
        given = self._given
        height, width = given.drawn
        body: dict[str, Any] = {
            "negative_prompt": given.negative_prompt,
            "steps": given.steps,
            "cfg_scale": given.cfg_scale,
            "height": height,
            "width": width,
            **({} if given.sampler is None else {"sampler_name": given.sampler}),
            **(given.extra or {}),
            "prompt": asked.prompt,
            "seed": asked.seed,
            "batch_size": len(asked.seeds),
            "n_iter": 1,
        }
        if not asked.parents:
            return client.ask("/sdapi/v1/txt2img", body)
        head = "data:image/png;base64," if given.data_uri else ""
        several = asked.parents if given.several_parents else asked.parents[:1]
        parents = [head + base64.b64encode(data).decode() for data in several]
        return client.ask("/sdapi/v1/img2img", body | {"init_images": parents, **asked.told})

    def _read(self, client: HTTPClient, sent: httpx2.Response) -> Received:
        return [self._rule.decode_text(text) for text in images_in(object_of(sent), "images")], None
