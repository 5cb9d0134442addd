"""Which addresses that a host names are followed: its own, and those of hosts that are known by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

HostName = Annotated[str, Field(pattern=r"^([a-z0-9-]+\.)+[a-z]{2,}$")]
"""A name of the public network, which no address of this machine or its network is."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Addresses:
    """What may be asked besides the host that the recipe names.

    Attributes:
        base: the host's address: whatever has its scheme, name and port may be asked.
        hosts: names that may be asked by https on its own port, and all names below them.
    """

    base: str
    hosts: tuple[str, ...] = ()

    def refusal(self, url: object) -> str:
        """Why an address is not followed, in a clause without its path; empty: it is."""
        if not isinstance(url, str):
            return f"named {type(url).__name__} in place of an address"
        try:
            parts, base = urlsplit(url), urlsplit(self.base)
            place, own = ((one.scheme, one.hostname or "", one.port or _PORTS.get(one.scheme)) for one in (parts, base))
        except ValueError:  # brackets, a port
            return "named an address that is none"
        if "@" in parts.netloc or not place[1]:
            return "named an address that is none"
        scheme, name, port = place
        known = any(name == host or name.endswith(f".{host}") for host in self.hosts)
        if place == own or (known and scheme == "https" and port == _PORTS["https"]):
            return ""
        where = f"{scheme}://{name}" + ("" if port == _PORTS.get(scheme) else f":{port}")
        followed = " or ".join([f"{own[0]}://{own[1]}", *(f"https://{host}" for host in self.hosts)])
        return f"named an address at {where}, and only {followed} is followed"
