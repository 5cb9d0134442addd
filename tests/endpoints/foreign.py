"""What foreign servers say of themselves, as their source has it; they draw as our scripted ones
do.

SGLang 0230ddc (image_api.py), vLLM-Omni 005fd8e (api_server.py), Xinference 7ecec16
(restful_api.py, sdapi.py), LocalAI 82c191a (routes), OpenVINO Model Server 7e4df0c
(imagegenutils.cpp), stable-diffusion.cpp 97d2990 (routes_sdapi.cpp), LiteLLM 1.106.2
(_health_endpoints.py), AUTOMATIC1111 0027ce1 and Forge dfdcbab (api.py), SD.Next 058a7f0 (api.py,
installer.py).
"""

from types import SimpleNamespace
from typing import Any

from tests.endpoints.faults import Script
from tests.endpoints.hosted import on
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.sd_server import SDServer


def owned(by, name="m"):
    entry = {"id": name, "object": "model"} | ({"owned_by": by} if by else {})
    return {"/v1/models": {"object": "list", "data": [entry]}}


OPENAI = {
    "sglang": owned("sglang"),
    "vllm-omni": owned("vllm"),
    "xinference": owned("xinference"),
    "localai": owned(None)
    | {"/.well-known/localai.json": {"version": "v4.9.0", "endpoint_groups": {}}},
    "ovms": owned("OVMS"),
    "stable-diffusion.cpp": owned("local", "sd-cpp-local"),
    "litellm": owned("openai") | {"/health/liveliness": "I'm alive!"},
}
"""Server → what its GET routes answer."""


class ForeignOpenAI(OpenAIServer):
    """One of OPENAI, whose first `loads` GET requests come while it loads its model; `asked` are
    those that came.
    """

    def __init__(self, server, loads=0):
        super().__init__(Script(), "url")
        self.kind, self.loads = SimpleNamespace(gets=OPENAI.get(server, {})), loads
        self.asked: list[str] = []
        self.requests = self.script.requests

    @on("GET {path}")
    def get(self, asked, path):
        self.asked.append(path)
        if len(self.asked) <= self.loads:
            return 503, {"detail": "loading"}
        return self.kind.gets.get(path, (404, {"detail": "Not Found"}))


OPTIONS: dict[str, Any] = {
    "a1111": {
        "samples_save": True,
        "samples_format": "png",
        "sd_model_checkpoint": "m",
        "sd_vae": "Automatic",
    },
    "forge": {"samples_save": True, "samples_format": "png", "forge_try_reproduce": "None"},
    "sdnext": {"samples_save": True, "samples_format": "jpg", "sd_model_checkpoint": "m"},
    "stable-diffusion.cpp": {"samples_format": "png", "sd_model_checkpoint": "m"},
}


class ForeignSD(SDServer):
    """A server of /sdapi/v1: one of OPTIONS, or Xinference, which has options for POST alone."""

    def __init__(self, server):
        super().__init__(Script(), takes="first" if server == "stable-diffusion.cpp" else "list")
        self.server, self.requests = server, self.script.requests

    @on("GET /sdapi/v1/options")
    def options(self, asked):
        return OPTIONS.get(self.server, (405, {"detail": "Method Not Allowed"}))

    @on("GET /sdapi/v1/version")
    def version(self, asked):
        return {"app": "sd.next", "commit": "058a7f0"} if self.server == "sdnext" else (404, {})

    @on("GET /v1/models")
    def models(self, asked):
        return owned("xinference")["/v1/models"] if self.server == "xinference" else {}

    def _images(self, asked, shades):
        if self.server != "xinference":
            return super()._images(asked, shades)
        if "model" not in asked.body:
            return 500, {"detail": "model: Field required"}
        if any(
            not parent.startswith("data:image/png;base64,")
            for parent in asked.body.get("init_images", ())
        ):
            return 500, {"detail": "not enough values to unpack (expected 2, got 1)"}
        return super()._images(asked, shades[:1])  # no field batch_size; the model is one
