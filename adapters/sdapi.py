"""AUTOMATIC1111's /sdapi/v1, which stable-diffusion.cpp's server and Xinference speak, too.

It takes a strength.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapters.http import (
    ImageCall,
    Received,
    Scalar,
    Seconds,
    Sending,
    Size,
    base64_of,
    images_in,
    non_null,
    object_of,
)
from adapters.http.servers import Served, ServedHost
from adapters.http.settings import SDServer
from pe.plugins.protocols import Capabilities
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2


class SDSettings(Served):
    """Settings of `sdapi`.

    Attributes:
        base_url: the server's address, without /sdapi.
        server: the software that answers, as `pe doctor` names it; it sets `several_parents` and
            `data_uri` where they are not given. None: software that is not known.
        size: height and width that the server draws at; None: `image_size`.
        batch: most images of one request: new ones of one prompt, or variations of one parent.
        several_parents: send up to `batch` parents of one prompt in a request of variations: only
            for a server that varies each of them (AUTOMATIC1111, Forge); others vary the first
            alone, and their answer does not show it.
        negative_prompt: sent with every request.
        steps: denoising steps.
        cfg_scale: classifier-free guidance scale.
        sampler: the sampler's name; None: the server's default.
        data_uri: send parents as data URIs, which some servers want.
        extra: further fields of a request, sent unchanged.
    """

    api = "sdapi"
    strength_field = "denoising_strength"
    base_url: str
    server: SDServer | None = None
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
    def fixed_size(self) -> tuple[int, int]:
        """(height, width) that every image must have."""
        return self.size or self.image_size


class SDAPI(ServedHost[SDSettings]):
    """Your own AUTOMATIC1111, Forge or SD.Next with any checkpoint.

    The degree is exact (`denoising_strength`).

    A request holds up to `batch` items, new ones of one prompt or variations of one parent; its
    images come from the seeds s, s + 1, … of which s is the first item's, so a sample depends on
    the request that it came in.
    """

    Settings = SDSettings
    shares = "parent"
    batch = "batch"
    starter = """\
  base_url: http://127.0.0.1:7860\t# without /sdapi
  server: null\t# which software answers: `pe doctor` on this recipe says its name
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

    @property
    def capabilities(self) -> Capabilities:
        """One prompt per request, and one parent unless the server takes several.

        The degree is the strength.
        """
        can = super().capabilities
        return replace(can, shares="condition") if self._config.several_parents else can

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        if degree == 0:
            return "the parent itself, without a call"
        steps = self._config.steps
        return (
            f"denoising_strength = {degree:g}, about {max(1, int(degree * steps))} of {steps} steps"
        )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to txt2img or img2img."""
        config = self._config
        height, width = config.fixed_size
        body: dict[str, Any] = {
            "negative_prompt": config.negative_prompt,
            "steps": config.steps,
            "cfg_scale": config.cfg_scale,
            "height": height,
            "width": width,
            **non_null(sampler_name=config.sampler),
            **(config.extra or {}),
            "prompt": call.prompt,
            "seed": call.seed,
            "batch_size": len(call.seeds),
            "n_iter": 1,
        }
        if not call.parents:
            return "/sdapi/v1/txt2img", {"json": body}
        head = "data:image/png;base64," if config.data_uri else ""
        parents = call.parents if config.several_parents else call.parents[:1]
        body |= {"init_images": [head + base64_of(parent) for parent in parents], **call.degree}
        return "/sdapi/v1/img2img", {"json": body}

    def response(self, call: ImageCall, answer: httpx2.Response) -> Received:
        """Return the images in the field `images`."""
        return [
            self._rule.decode_text(text) for text in images_in(object_of(answer), "images")
        ], None
