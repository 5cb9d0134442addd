"""Recognise a server by its list of models, or by a path that no other kind of server has."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import model_validator

from adapters.http.answers import Received, value_at
from adapters.http.client import object_of, open_client, respond
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.host import Host, ImageCall
from adapters.http.retries import Outcome
from adapters.http.settings import API, Connection, Profile, Prompted, profile
from pe.errors import PEError, RecipeError, nearest_name
from pe.plugins.protocols import Finding
from pe.version import __version__

if TYPE_CHECKING:
    import httpx2

_OWNERS = {
    "sglang": "sglang",
    "vllm": "vllm-omni",
    "xinference": "xinference",
    "OVMS": "ovms",
    "pe": "pe",
}
"""`owned_by` of a server's models → the server's name."""


class Served(Prompted):
    """Settings of an endpoint whose server may have a `Profile`.

    The profile sets what the recipe does not state.
    """

    api: ClassVar[API]
    server: str | None = None

    @classmethod
    def profile_of(cls, settings: Mapping[str, Any]) -> Profile | None:
        """Return the profile of the server that these settings name. None: another server."""
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
        return look_at(cls.Settings, settings)

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there, or if `server` is not stated."""
        super().check_machine()
        self._check_server()

    def _outcome(self, call: ImageCall) -> Outcome[Received]:
        self._check_server()  # a run that goes on is not checked before
        return super()._outcome(call)

    def _check_server(self) -> None:
        if "server" not in self._config.model_fields_set:
            raise RecipeError(
                "`server` is missing. Write the name that `pe doctor RECIPE` gives for "
                f"{self._host}, or null for another server. Since version {__version__} a run does "
                "not ask the server itself; a run that did goes on with `pe run RUN --set "
                "api.server=NAME`."
            )


def server_by_address(url: str) -> str | None:
    """Return `openai` or `azure` for an address at one of their hosts.

    Any other host must be asked: return None.
    """
    host = urlsplit(url).hostname or ""
    if host.endswith((".azure.com", ".azure.us", ".azure.cn")):
        return "azure"
    return "openai" if host.endswith(".openai.com") else None


def _json_at(client: httpx2.Client, url: str) -> Any:
    """Return the JSON at an address, or None if it brings none."""
    try:
        return respond(client, "GET", url).json()
    except (ValueError, RecursionError, Fault):
        return None


def _profiles(root: str, entries: list[dict[str, Any]], client: httpx2.Client) -> Iterator[Profile]:
    """Yield the profiles of the server at `root`, one for each API that it speaks.

    `entries` are the models that it lists.
    """
    owners = {str(entry.get("owned_by")) for entry in entries}
    owner = _OWNERS.get(owners.pop()) if len(owners) == 1 else None
    if [entry.get("id") for entry in entries] == ["sd-cpp-local"]:
        owner = "stable-diffusion.cpp"
    elif "endpoint_groups" in (_json_at(client, f"{root}/.well-known/localai.json") or ()):
        owner = "localai"
    elif owner is None and _json_at(client, f"{root}/health/liveliness") == "I'm alive!":
        owner = "litellm"
    its = profile("openai_images", owner or "")
    if its is not None:
        in_words = owner == "pe" and value_at(entries[0], "pe", "degree") == "wording"
        yield replace(its, sets={**its.sets, "degree_exact": False}) if in_words else its
    options = _json_at(client, f"{root}/sdapi/v1/options")
    server = "xinference" if owner == "xinference" else ""
    if isinstance(options, dict):
        server = _sd_server(options, _json_at(client, f"{root}/sdapi/v1/version"))
    its = profile("sdapi", server)
    if its is not None:
        yield its


def _sd_server(options: Mapping[str, Any], version: Any) -> str:
    """Return the server of /sdapi/v1 that has these options, or an empty text."""
    if options.keys() == {"samples_format", "sd_model_checkpoint"}:
        return "stable-diffusion.cpp"
    if any(str(name).startswith("forge_") for name in options):
        return "forge"
    if isinstance(version, dict):
        return "sdnext" if version.get("app") == "sd.next" else ""
    return "a1111" if "samples_save" in options else ""


# A look at an endpoint: can it be reached, does it take the key, who answers, what does that server
# heed.

_KEY = (
    "name what holds its key: --key-env NAME, or key_env, key_file … in a recipe: pe doctor RECIPE"
)
_REMEDIES = {
    None: "see whether it runs, and whether this machine may reach it",
    401: _KEY,
    403: _KEY,
    404: "neither /v1/models nor /sdapi/v1/options is there: name the address before these",
}
_BRIEF = {"timeout": 10.0, "total_timeout": 20.0, "tries": 1}


def look_at(
    model: type[Connection],
    settings: Mapping[str, Any],
    url: str | None = None,
    ours: bool = False,
    recognise: bool = True,
) -> Iterator[Finding]:
    """Yield what an examination of an endpoint, or of each of several, finds.

    No sample is asked for.

    Args:
        model: the settings' class, whose default of `key_env` holds if the recipe states none.
        settings: a recipe's settings: the connection, `base_url`, and those that are compared with
            the served model.
        url: the address, if the settings name none.
        ours: true if the server must be one of `pe serve`.
        recognise: true to tell which kind of image server answers, and what it heeds.
    """
    urls = settings.get("base_url") or url or ""
    own = {name: settings[name] for name in Connection.model_fields if name in settings}
    for address in urls if isinstance(urls, list) else [urls]:
        if urlsplit(address).scheme not in ("http", "https"):
            remedy = "give it as https://HOST or http://HOST:PORT"
            yield Finding("problem", f"endpoint {address}: no address", remedy)
            continue
        try:
            connection = Connection.model_validate(own | _BRIEF)
            if "key_env" not in own:
                default = model.model_fields["key_env"].default
                connection = connection.model_copy(update={"key_env": default})
            credentials = Credentials(connection)
            with closing(open_client(connection, 1, credentials)) as client:
                for finding in _findings(address.rstrip("/"), client, settings, ours, recognise):
                    yield Finding(finding.state, credentials.clean(finding.what), finding.remedy)
        except (PEError, Fault) as error:  # the key is not there, the certificate cannot be used, …
            yield Finding("problem", f"endpoint {address}: {error}")


def _findings(
    base: str, client: Any, settings: Mapping[str, Any], ours: bool, recognise: bool
) -> Iterator[Finding]:
    root = re.sub(r"/v\d+$", "", base)
    began = time.monotonic()
    entries: list[dict[str, Any]] = []
    names: list[str] = []
    try:
        entries = _list_models(client, base if base != root else f"{base}/v1")
        names = [str(entry.get("id")) for entry in entries]
        serves = f"serves {', '.join(names[:5]) or 'no model'}"
    except Fault as fault:
        # A server of /sdapi/v1 lists no models; any other address without them is wrong.
        if fault.status != 404 or _json_at(client, f"{root}/sdapi/v1/options") is None:
            words = f"no answer ({fault.words})" if fault.status is None else str(fault)
            remedy = _REMEDIES.get(fault.status, "ask again, or look at the endpoint's log")
            yield Finding("problem", f"endpoint {root}: {words}", remedy)
            return
        serves = "speaks /sdapi/v1"
    milliseconds = 1000 * (time.monotonic() - began)
    yield Finding("ok", f"endpoint {root}: {serves}, answers in {milliseconds:.0f} ms")
    for key in ("model", "variation_model"):
        name = settings.get(key)
        if names and name not in (None, *names):
            words = f"{key} {name}: the endpoint lists none of this name"
            yield Finding("problem", words, nearest_name(str(name), names))
    own = entries[0].get("pe") if entries else None
    if isinstance(own, dict) and "vary" in own:
        yield from _compare(own, settings, ours)
    elif ours and entries:
        yield Finding("problem", "the server is none of `pe serve`", "name its kind under api.kind")
    if recognise:
        yield from _recognise(list(_profiles(root, entries, client)), settings)
    try:
        if respond(client, "GET", f"{root}/readyz").content == b'{"status":"ok"}':
            yield Finding("ok", f"endpoint {root}: ready")
    except Fault as fault:
        if fault.status == 503:
            remedy = "wait until a replica has its model loaded"
            yield Finding("problem", f"endpoint {root}: {fault}", remedy)


def _list_models(client: httpx2.Client, url: str) -> list[dict[str, Any]]:
    """Return the models that an endpoint lists.

    Raise Fault if it lists none.
    """
    models = object_of(respond(client, "GET", f"{url}/models")).get("data")
    if not isinstance(models, list):
        raise Fault("it lists no models", 404)
    return [model for model in models if isinstance(model, dict)]


def _recognise(profiles: list[Profile], settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield who answers, what that server heeds, and what the recipe must say of it."""
    for its in profiles:
        remedy = ""
        if settings.get("server") != its.server:
            remedy = f"write `server: {its.server}` in the recipe"
        yield Finding("ok", f"{its.title}, by `kind: {its.api}`: {_heeds(its)}", remedy)
    if not profiles:
        remedy = "" if "server" in settings else "write `server: null` in the recipe"
        words = "the server is not known: it gets one parent a request and the degree in words"
        yield Finding("ok", words, remedy)


def _compare(own: Mapping[str, Any], settings: Mapping[str, Any], ours: bool) -> Iterator[Finding]:
    """Yield findings that compare a recipe with the model of a server of `pe serve`."""
    degree = "told in words" if own.get("degree") == "wording" else "obeyed exactly"
    words = f"the server varies images by {own['vary']}, the degree {degree}"
    if ours and own["vary"] != settings.get("vary", "noise"):
        yield Finding("problem", words, f"put `vary: {own['vary']}` in the recipe")
    else:
        yield Finding("ok", words)
    prompts = settings.get("prompts")
    guidance = settings.get("guidance")
    size = settings.get("size")
    shape = own.get("shape")
    if ours and own.get("prompts") and not prompts:
        yield Finding("problem", "the model takes prompts, and the recipe has none", "give prompts")
    if not own.get("prompts") and prompts:
        remedy = "use `kind: diffusion_server`"
        if ours:
            remedy = "remove `prompts`, or name `classes: {label: class}`"
        yield Finding("problem", "the model takes no prompts, and the recipe has some", remedy)
    if not own.get("guidance", True) and guidance not in (None, 1):
        words = f"the model has no guidance, and the recipe sets {guidance}"
        yield Finding("problem", words, "remove `guidance`")
    sides: Any = size if isinstance(size, list | tuple) else [size, size]
    if isinstance(size, str):  # OpenAI's: width first
        sides = size.split("x")[::-1]
    drawn = list(map(str, shape[:2])) if shape else None
    if drawn and size is not None and list(map(str, sides)) != drawn:
        words = f"the model draws {'×'.join(drawn)} (height, width) alone, not {size}"
        yield Finding("problem", words, "remove `size` and `image_size`")


def _heeds(its: Profile) -> str:
    if not its.varies:
        return "it cannot vary an image"
    sets = ", ".join(f"{name}: {str(value).lower()}" for name, value in its.sets.items())
    words = f"degree {its.degree}; seed {its.seed}; several parents: {its.several}"
    return f"{words}; sets {sets}" if sets else words
