"""The server's surface as OpenAPI 3.1, from the very models that requests are checked by."""

from __future__ import annotations

from typing import Any

from adapters.server.errors import CODES
from adapters.server.fields import Edit, Generation, ImageFields, Variation
from adapters.server.formats import NPZ
from adapters.server.settings import Limits
from pe.version import __version__

_BATCH = """An npz file as numpy.savez writes it (stored, not compressed; no objects). Arrays, n images:
seeds uint64 (n,); and as needed: degree float64 () with images uint8 (n,h,w,c); steps int64 (); guidance float64 ();
size int64 (2,) height and width; classes int64 (n,); prompts str (n,); negative_prompt str (); model str ().
The answer, m of them made: images uint8 (m,h,w,c); places int64 (m,), which of the n they are; for the others
missing int64 (k,), reasons str (k,), refused bool (k,), retryable bool (k,)."""


def describe(limits: Limits) -> dict[str, Any]:
    """The whole description."""
    entry = {"type": "object", "properties": {"b64_json": {"type": "string"}}, "required": ["b64_json"]}
    answer = {"created": {"type": "integer"}, "data": {"type": "array", "items": entry}}
    images = {"type": "object", "properties": answer, "required": list(answer)}
    npz = {NPZ: {"schema": {"type": "string", "format": "binary"}}}
    paths = {
        "/v1/images/generations": _post("New images", {"application/json": {"schema": _schema(Generation)}}, images),
        "/v1/images/edits": _post("Variations of an image under a prompt", _form(Edit), images),
        "/v1/images/variations": _post("Variations of an image", _form(Variation), images),
        "/v1/batch/images": _operation("post", _BATCH, npz, {"requestBody": {"required": True, "content": npz}}),
        "/v1/models": _get("The model, and what a client must know of it"),
        "/v1/models/{model}": _get("The same, by its name", parameters=["model"]),
        "/metrics": _get("Prometheus metrics of all nodes", "text/plain"),
        "/openapi.json": _get("This description", keys=False),
        "/healthz": _get("Whether the ingress lives", keys=False),
        "/readyz": _get("Whether a replica can answer", keys=False),
    }
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pe serve", "version": __version__, "x-limits": limits.model_dump()},
        "paths": paths,
        "components": {"securitySchemes": schemes, "schemas": {"Error": _error()}},
    }


def _error() -> dict[str, Any]:
    text, optional = {"type": "string"}, {"type": ["string", "null"]}
    error = {"message": text, "type": text, "param": optional, "code": text}
    inner = {"type": "object", "properties": error, "required": list(error)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _schema(kind: type[ImageFields]) -> dict[str, Any]:
    return kind.model_json_schema()


def _form(kind: type[ImageFields]) -> dict[str, Any]:
    schema = _schema(kind)
    schema["properties"] = {"image": {"type": "string", "format": "binary"}} | schema["properties"]
    schema["required"] = ["image", *schema.get("required", [])]
    return {"multipart/form-data": {"schema": schema}}


def _post(summary: str, content: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    body = {"requestBody": {"required": True, "content": content}}
    return _operation("post", summary, {"application/json": {"schema": answer}}, body)


def _get(
    summary: str, kind: str = "application/json", keys: bool = True, parameters: list[str] | None = None
) -> dict[str, Any]:
    named = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters or []]
    return _operation("get", summary, {kind: {}}, {"parameters": named} if named else {}, keys)


def _operation(
    method: str, text: str, answer: dict[str, Any], more: dict[str, Any], keys: bool = True
) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {str(status): {"description": code, "content": error} for status, (_, code) in CODES.items()}
    responses = {"200": {"description": "done", "content": answer}} | errors
    security: dict[str, Any] = {"security": [{"key": []}]} if keys else {}
    return {method: {"description": text, "responses": responses} | more | security}
