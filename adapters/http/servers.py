"""Recognise a server by its list of models, or by a path that no other kind of server has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import model_validator

from adapters.http.client import object_of, open_client, respond
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.host import Host, ImageCall, Request
from adapters.http.settings import API, Connection, Profile, Prompted, profile
from pe.errors import PEError, RecipeError, nearest_name
from pe.plugins.protocols import Answer, Finding
from pe.version import __version__

if TYPE_CHECKING:
    import httpx2

Ask = Callable[[str], Any]
"""A function that GETs an address and returns the JSON found there; None if there is no JSON."""

_OWNERS = {"sglang": "sglang", "vllm": "vllm-omni", "xinference": "xinference", "OVMS": "ovms", "pe": "pe"}
"""`owned_by` of a server's models → the server's name."""


class Served(Prompted):
    """Settings of an endpoint whose server may have a `Profile`, which sets what the recipe does not state."""

    api: ClassVar[API]
    server: str | None = None

    @classmethod
    def profile_of(cls, settings: Mapping[str, Any]) -> Profile | None:
        """Return the profile of the server that these settings name; None: another server."""
        return profile(cls.api, settings.get("server") or "")

    @model_validator(mode="before")
    @classmethod
    def _take_profile(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        if settings.get("server") == "auto":  # of a run that asked for it by itself
            settings = {name: value for name, value in settings.items() if name != "server"}
        its = cls.profile_of(settings)
        if its is None:
            return settings
        sets = {"server": its.server, **its.sets}
        field = sets.get("degree_field")
        if settings.get("degree_field", field) != field:
            sets.pop("degree_exact", None)  # which holds for the profile's own field alone
        return sets | settings


Config = TypeVar("Config", bound=Served)


class ServedHost(Host[Config]):
    """A host whose recipe says which server answers."""

    info = replace(Host.info, machine_settings=(*Host.info.machine_settings, "server"))

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `Generator.look`."""
        return look_at(cls.Settings, settings, cls.Settings.default_url)

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there, or the recipe does not say which server answers."""
        super().check_machine()
        self._check_server()

    def _ask(self, request: Request, call: ImageCall) -> Answer:
        self._check_server()  # a run that goes on is not checked before
        return super()._ask(request, call)

    def _check_server(self) -> None:
        if "server" not in self._config.model_fields_set:
            raise RecipeError(
                f"`server` is missing: write the name that `pe doctor RECIPE` gives for {self._host}, or null for "
                f"another server. Since version {__version__} a run does not ask the server itself; a run that did "
                "goes on with `pe run RUN --set api.server=NAME`."
            )


def server_by_address(url: str) -> str | None:
    """Return `openai` or `azure` for an address at one of their hosts; None for another host, which must be asked."""
    host = urlsplit(url).hostname or ""
    if host.endswith((".azure.com", ".azure.us", ".azure.cn")):
        return "azure"
    return "openai" if host.endswith(".openai.com") else None


def asker(client: httpx2.Client) -> Ask:
    """Return an `Ask` through this client; it raises Fault if no answer comes, and for 429 and 503, which may pass."""

    def ask(url: str) -> Any:
        try:
            return respond(client, "GET", url).json()
        except (ValueError, RecursionError):  # no JSON
            return None
        except Fault as fault:
            if fault.status in (None, 429, 503):
                raise
            return None

    return ask


def find_profile(api: API, url: str, ask: Ask) -> Profile | None:
    """Return the profile of the server at `url`, the `base_url` of a recipe; None if the server is not recognised."""
    base = url.rstrip("/")
    models: Any = ask(f"{base}/models") if api == "openai_images" else None
    server = _openai_server(base, ask, models) if api == "openai_images" else _sd_server(base, ask)
    its = None if server is None else profile(api, server)
    if its is None or server != "pe" or (models["data"][0].get("pe") or {}).get("degree") != "wording":
        return its
    return replace(its, sets={name: value for name, value in its.sets.items() if name != "degree_exact"})


def _openai_server(base: str, ask: Ask, models: Any) -> str | None:
    server = _owner(models)
    if server is not None:
        return server
    root = re.sub(r"/v\d+$", "", base)
    page = ask(f"{root}/.well-known/localai.json")
    if isinstance(page, dict) and "endpoint_groups" in page:
        return "localai"
    return "litellm" if ask(f"{root}/health/liveliness") == "I'm alive!" else None


def _sd_server(base: str, ask: Ask) -> str | None:
    options = ask(f"{base}/sdapi/v1/options")
    if not isinstance(options, dict):
        owner = _owner(ask(f"{base}/v1/models"))
        return owner if owner == "xinference" else None
    if options.keys() == {"samples_format", "sd_model_checkpoint"}:
        return "stable-diffusion.cpp"
    if any(str(name).startswith("forge_") for name in options):
        return "forge"
    version = ask(f"{base}/sdapi/v1/version")
    if isinstance(version, dict):
        return "sdnext" if version.get("app") == "sd.next" else None
    return "a1111" if "samples_save" in options else None


def _owner(models: Any) -> str | None:
    """Return the server that a list of models names as their `owned_by`; None if they differ or it is unknown."""
    entries = models.get("data") if isinstance(models, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    if [entry.get("id") for entry in entries] == ["sd-cpp-local"]:
        return "stable-diffusion.cpp"
    owners = {str(entry.get("owned_by")) for entry in entries}
    return _OWNERS.get(owners.pop()) if len(owners) == 1 else None


# A look at an endpoint: can it be reached, does it take the key, who answers, what does that server heed.

_KEY = "name what holds its key: --key-env NAME, or key_env, key_file … in a recipe: pe doctor RECIPE"
_REMEDIES = {
    None: "see whether it runs, and whether this machine may reach it",
    401: _KEY,
    403: _KEY,
    404: "neither /v1/models nor /sdapi/v1/options is there: name the address before these",
}
_APIS: tuple[API, ...] = ("openai_images", "sdapi")
_DEGREES = ("obeyed exactly", "told in words")
_BRIEF = {"timeout": 10.0, "total_timeout": 20.0, "tries": 1}


def look_at(
    model: type[Connection],
    settings: Mapping[str, Any],
    url: str | None = None,
    ours: bool = False,
    recognise: bool = True,
) -> Iterator[Finding]:
    """Yield what an examination of an endpoint, or of each of several, finds; no sample is asked for.

    Args:
        model: the settings' class, whose default of `key_env` holds if the recipe states none.
        settings: a recipe's settings: the connection, `base_url`, and those that are compared with the served model.
        url: the address, if the settings name none.
        ours: true if the server must be one of `pe serve`.
        recognise: true to tell which kind of image server answers, and what it heeds.
    """
    urls = settings.get("base_url") or url or ""
    own = {name: settings[name] for name in Connection.model_fields if name in settings}
    for address in urls if isinstance(urls, list) else [urls]:
        if urlsplit(address).scheme not in ("http", "https"):
            yield Finding("problem", f"endpoint {address}: no address", "give it as https://HOST or http://HOST:PORT")
            continue
        try:
            connection = Connection.model_validate(own | _BRIEF)
            if "key_env" not in own:
                connection = connection.model_copy(update={"key_env": model.model_fields["key_env"].default})
            credentials = Credentials(connection)
            with closing(open_client(connection, 1, credentials)) as client:
                for finding in _findings(address.rstrip("/"), client, settings, ours, recognise):
                    yield Finding(finding.state, credentials.clean(finding.what), finding.remedy)
        except (PEError, Fault) as error:  # the key is not there, the certificate cannot be used, …
            yield Finding("problem", f"endpoint {address}: {error}")


def _findings(base: str, client: Any, settings: Mapping[str, Any], ours: bool, recognise: bool) -> Iterator[Finding]:
    root = re.sub(r"/v\d+$", "", base)
    with_version = base if base != root else f"{base}/v1"
    began, models = time.monotonic(), {}
    try:
        entries: Any = object_of(respond(client, "GET", f"{with_version}/models")).get("data")
        models = {str(entry.get("id")): entry.get("pe") for entry in entries[:] if isinstance(entry, dict)}
        serves = f"serves {', '.join(list(models)[:5]) or 'no model'}"
    except (Fault, TypeError) as error:
        fault = error if isinstance(error, Fault) else Fault("it lists no models", 404)
        if fault.status != 404 or asker(client)(f"{root}/sdapi/v1/options") is None:
            words = f"no answer ({fault.words})" if fault.status is None else str(fault)
            remedy = _REMEDIES.get(fault.status, "ask again, or look at the endpoint's log")
            yield Finding("problem", f"endpoint {root}: {words}", remedy)
            return
        serves = "speaks /sdapi/v1"
    yield Finding("ok", f"endpoint {root}: {serves}, answers in {1000 * (time.monotonic() - began):.0f} ms")
    for key in ("model", "variation_model"):
        if models and (name := settings.get(key)) is not None and name not in models:
            yield Finding("problem", f"{key} {name}: the endpoint lists none of this name", nearest_name(name, models))
    own = next(iter(models.values()), None)
    if isinstance(own, dict) and "vary" in own:
        yield from _compare(own, settings, ours)
    elif ours and models:
        yield Finding("problem", "the server is none of `pe serve`", "name its kind under api.kind")
    if recognise:
        urls = {"openai_images": with_version, "sdapi": root}
        profiles = [each for api in _APIS if (each := find_profile(api, urls[api], asker(client))) is not None]
        for each in profiles:
            what = f"{each.title}, by `kind: {each.api}`: {_heeds(each)}"
            is_stated = settings.get("server") == each.server
            yield Finding("ok", what, "" if is_stated else f"write `server: {each.server}` in the recipe")
        if not profiles:
            care = "one parent a request, the degree in words"
            is_stated = "server" in settings
            yield Finding(
                "ok",
                f"server: not recognised, so served with care: {care}",
                "" if is_stated else "write `server: null` in the recipe",
            )
    try:
        if respond(client, "GET", f"{root}/readyz").content == b'{"status":"ok"}':
            yield Finding("ok", f"endpoint {root}: ready")
    except Fault as fault:
        if fault.status == 503:
            yield Finding("problem", f"endpoint {root}: {fault}", "wait until a replica has its model loaded")


def _compare(own: Mapping[str, Any], settings: Mapping[str, Any], ours: bool) -> Iterator[Finding]:
    """Yield findings that compare a recipe with the model of a server of `pe serve`."""
    words = f"the server varies images by {own['vary']}, the degree {_DEGREES[own.get('degree') == 'wording']}"
    same = not ours or own["vary"] == settings.get("vary", "noise")
    yield Finding("ok", words) if same else Finding("problem", words, f"put `vary: {own['vary']}` in the recipe")
    prompts, guidance, size = (settings.get(key) for key in ("prompts", "guidance", "size"))
    if ours and own.get("prompts") and not prompts:
        yield Finding("problem", "the model takes prompts, and the recipe has none", "give prompts")
    if not own.get("prompts") and prompts:
        remedy = "leave prompts out, or name classes: {label: class}" if ours else "use `kind: diffusion_server`"
        yield Finding("problem", "the model takes no prompts, and the recipe has some", remedy)
    if not own.get("guidance", True) and guidance not in (None, 1):
        yield Finding("problem", f"the model has no guidance, and the recipe sets {guidance}", "leave guidance out")
    sides: Any = size if isinstance(size, list | tuple) else [size, size]
    if isinstance(size, str):  # OpenAI's: width first
        sides = size.split("x")[::-1]
    if (shape := own.get("shape")) and size is not None and list(map(str, sides)) != list(map(str, shape[:2])):
        sides_drawn = "×".join(map(str, shape[:2]))
        words = f"the model draws {sides_drawn} (height, width) alone, not {size}"
        yield Finding("problem", words, "leave size and image_size out")


def _heeds(its: Profile) -> str:
    if not its.varies:
        return "it cannot vary an image"
    sets = ", ".join(f"{name}: {str(value).lower()}" for name, value in its.sets.items())
    return f"degree {its.degree}; seed {its.seed}; several parents: {its.several}{f'; sets {sets}' if sets else ''}"
