"""The one policy for all endpoints: keys, connections, retries, rates, settings, and what comes back."""

from adapters.http.answers import Received, encoded
from adapters.http.client import HTTPClient, OnFirstUse, check_redirect, object_of, open_client, respond
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.generator import Asked, Endpoints, PromptedGenerator, stated
from adapters.http.policy import Policy, workers_for
from adapters.http.settings import Concurrent, Connection, Pictures, Prompted, Scalar, Seconds, Size, Worded

__all__ = [
    "Asked",
    "Concurrent",
    "Connection",
    "Credentials",
    "Endpoints",
    "Fault",
    "HTTPClient",
    "OnFirstUse",
    "Pictures",
    "Policy",
    "Prompted",
    "PromptedGenerator",
    "Received",
    "Rejected",
    "Scalar",
    "Seconds",
    "Size",
    "Worded",
    "check_redirect",
    "encoded",
    "object_of",
    "open_client",
    "respond",
    "stated",
    "workers_for",
]
