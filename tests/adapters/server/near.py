"""The server's own ingress and replica in this process, without Ray, for what depends on the model alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from adapters.server import replica
from adapters.server.checks import Settings
from adapters.server.command import serve
from adapters.server.errors import Door
from adapters.server.ingress import Ingress
from adapters.server.replica import Replica
from tests.endpoints.serving import serving


def settings_of(*options: str) -> Settings:
    """What `pe serve` makes of its command line."""
    printed = CliRunner().invoke(serve, [*options, "--print-config"], catch_exceptions=False).output
    return Settings.model_validate(yaml.safe_load(printed)["applications"][0]["args"])


@contextmanager
def near(*options: str) -> Iterator[str]:
    """The address of a server with these options."""
    given = settings_of(*options).model_dump(mode="json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "_keep_prompts_out_of_logs", lambda: None)  # for all of this process, and for good
        engine = Replica(given)
    methods = {name: SimpleNamespace(remote=getattr(engine, name)) for name in ("describe", "make")}
    handle: Any = SimpleNamespace(**methods)  # as Ray's
    with serving(Door(Ingress(given, handle).__serve_build_asgi_app__())) as url:
        yield url
