"""InvokeModel for Stability's models, as AWS describes it (see adapters/hosts.py); it checks each signature."""

from __future__ import annotations

import base64

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.hosted import Hosted

ACCESS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-4d1e",
    "AWS_SESSION_TOKEN": "canary-session-77a0",
}
"""The account's; a bearer's key is not checked."""


class BedrockServer(Hosted):
    """`refusal` is filtered; `inference` is an error in a success; `model` is a 424."""

    def routes(self) -> list[Route]:
        return [Route("/model/{model}/invoke", self.invoke, methods=["POST"])]

    async def invoke(self, request: Request) -> Response:
        raw, fault = await request.body(), request.scope["fault"]
        if not _is_signed(request, raw) and not request.headers["authorization"].startswith("Bearer "):
            said = f"The signature does not match; the token was {request.headers.get('x-amz-security-token')}."
            return _error(403, "InvalidSignatureException", said)
        body = await request.json()
        self.script.requests.append({**body, "model": request.path_params["model"]})
        if fault == "model":
            return _error(424, "ModelErrorException", "The model failed to process the request.")
        if fault in ("refusal", "inference"):
            reason = {"refusal": "Filter reason: prompt", "inference": "Inference error"}[fault]
            return JSONResponse({"finish_reasons": [reason]})
        varied = body["mode"] == "image-to-image"
        if varied != ("image" in body) or varied != ("strength" in body) or varied == ("aspect_ratio" in body):
            return _error(400, "ValidationException", "The fields do not fit the mode.")
        parent = base64.b64decode(body["image"]) if varied else None
        image = self.drawn(fault, body["seed"], parent, body.get("strength", 1.0))
        found = {"seeds": [body["seed"]], "finish_reasons": [None], "images": [base64.b64encode(image).decode()]}
        return JSONResponse(found)


def _is_signed(request: Request, body: bytes) -> bool:
    """Whether the signature is that of the account for what came: path, host, date, token and body."""
    names = ("content-type", "x-amz-date", "x-amz-security-token")
    headers = {name: request.headers[name] for name in names if name in request.headers}
    url = f"http://{request.headers['host']}{request.scope['raw_path'].decode()}"
    came = AWSRequest(method="POST", url=url, data=body, headers=headers)
    came.context["timestamp"] = headers.get("x-amz-date", "")
    auth = SigV4Auth(Credentials(*ACCESS.values()), "bedrock", "us-west-2")
    signature = auth.signature(auth.string_to_sign(came, auth.canonical_request(came)), came)
    return request.headers["authorization"].endswith(f"Signature={signature}")


def _error(status: int, name: str, words: str) -> Response:
    return JSONResponse({"message": words}, status_code=status, headers={"x-amzn-ErrorType": name})
