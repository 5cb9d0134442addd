"""Stability's models on Amazon Bedrock, by InvokeModel: a true strength.

Read from botocore 1.44.5's description of bedrock-runtime (the path, SigV4 under the name `bedrock` or a bearer's key,
the errors and their statuses) and AWS's page on Stable Diffusion 3.5 Large, as stored in 2026: one image per request,
of about one megapixel; `strength` with `mode: image-to-image`; `seed` of 32 bits, 0 draws one; `finish_reasons`.
Amazon's own image models are not served: Titan Image Generator v2 ended on 2026-06-30 (awslabs/startups, pull request
304) and Nova Canvas on 2026-09-30 (aws-samples/generative-ai-ml-latam-samples, pull request 109).
Not confirmed: the least size of a parent (64×64 at Stability's own API), that Stable Image Ultra takes a parent here,
whether a filtered image is billed, Retry-After with a 429, that equal seeds give equal images.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from adapters.http import (
    Asked,
    Credentials,
    Fault,
    HTTPClient,
    Prompted,
    PromptedGenerator,
    Received,
    Scalar,
    object_of,
    stated,
    workers_for,
)
from adapters.http.answers import images_in
from adapters.http.starters import hosted
from adapters.prompts import Ladder
from pe.errors import MissingDependency, RecipeError
from pe.plugins.protocols import Capabilities, Refused
from pe.plugins.validation import Count

if TYPE_CHECKING:
    import httpx2

    _Sign = Callable[[str, bytes], dict[str, str]]
    _Client = tuple[HTTPClient, _Sign]

_JSON = {"Content-Type": "application/json"}


class BedrockSettings(Prompted):
    """What a recipe says of it.

    Attributes:
        model: as Bedrock names it: stability.sd3-5-large-v1:0.
        region: of AWS, such as us-west-2.
        key_env: the environment variable that holds a key of Bedrock; without any key, requests are signed with the
            credentials that botocore finds (environment, ~/.aws, SSO, a role).
        base_url: None: Bedrock's own in the region.
        aspect_ratio: of new images, width:height.
        negative_prompt: None: none.
        extra: further fields, sent as they are (cfg_scale).
    """

    model: str
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    concurrency: Count = 4
    aspect_ratio: Literal["21:9", "16:9", "3:2", "5:4", "1:1", "4:5", "2:3", "9:16", "9:21"] = "1:1"
    negative_prompt: str | None = None
    extra: dict[str, Scalar] | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or f"https://bedrock-runtime.{self.region}.amazonaws.com"

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed, for want of a key."""
        return self.key_env is None and self.basic_auth_env is None and not self.key_expires

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(None, "strength", exact=True)


class Bedrock(PromptedGenerator[BedrockSettings, "_Client", "httpx2.Response"]):
    """RANDOM_API by text-to-image, VARIATION_API by image-to-image with strength = degree; one image per request."""

    Settings = BedrockSettings
    starter = hosted(
        "model: stability.sd3-5-large-v1:0\t# as Bedrock names it",
        "region: us-west-2\t# of AWS; requests are signed with the credentials that botocore finds",
    )

    @property
    def capabilities(self) -> Capabilities:
        """One image per request; the degree is the strength."""
        return Capabilities(1, workers_for(self._given.concurrency), "condition", "exact", deterministic=False)

    def _credentials(self) -> Credentials:
        return Credentials(self._given, header=None if self._given.is_signed else "Authorization")

    def _connect(self, credentials: Credentials) -> _Client:
        given = self._given
        sign = _signer(given.region, credentials) if given.is_signed else lambda url, body: {}
        return HTTPClient(given.url, given, given.concurrency, credentials), sign

    def _send(self, client: _Client, asked: Asked) -> httpx2.Response:
        given, (http, sign) = self._given, client
        content: dict[str, Any] = {
            **(given.extra or {}),
            **stated(negative_prompt=given.negative_prompt),
            "prompt": asked.prompt,
            "seed": max(1, asked.seed),  # 0 draws one
            "output_format": "png",
            "mode": "image-to-image" if asked.parents else "text-to-image",
            **asked.told,
        }
        if asked.parents:
            content["image"] = base64.b64encode(asked.parents[0]).decode()
        else:
            content["aspect_ratio"] = given.aspect_ratio
        path, body = f"/model/{quote(given.model, safe='')}/invoke", json.dumps(content).encode()
        return http.post(path, content=body, headers=_JSON | sign(f"{given.url.rstrip('/')}{path}", body))

    def _read(self, client: _Client, sent: httpx2.Response) -> Received:
        answer = object_of(sent)
        reasons = answer.get("finish_reasons")
        reason = str(reasons[0]) if isinstance(reasons, list) and reasons and reasons[0] else ""
        if reason.startswith("Filter reason"):
            return [Refused(reason)], None
        if reason:
            raise Fault(reason, 200)
        return [self._rule.decode_text(image) for image in images_in(answer, "images")], None


def _signer(region: str, credentials: Credentials) -> _Sign:
    """What signs a request's address and body, by the credentials that botocore finds; it renews them itself.

    Raises:
        MissingDependency: botocore is not installed.
        RecipeError: it finds no credentials.
    """
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise MissingDependency.of("botocore", "bedrock", "Amazon Bedrock") from error

    def frozen() -> Any:
        try:
            found = held.get_frozen_credentials() if held else None
        except BotoCoreError as error:
            raise RecipeError(f"api bedrock: AWS gives no credentials ({error}): log in again.") from error
        if found is None:
            raise RecipeError("api bedrock: there are no AWS credentials: log in to AWS, or name a key in key_env.")
        credentials.hide(found.secret_key, found.token or "")
        return found

    def sign(url: str, body: bytes) -> dict[str, str]:
        request = AWSRequest(method="POST", url=url, data=body, headers=dict(_JSON))
        SigV4Auth(frozen(), "bedrock", region).add_auth(request)
        return dict(request.headers.items())

    try:
        held = Session().get_credentials()
    except BotoCoreError as error:
        raise RecipeError(f"api bedrock: AWS gives no credentials ({error}): mend ~/.aws.") from error
    frozen()
    return sign
