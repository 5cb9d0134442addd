"""The one engine for all endpoints.

It has keys, connections, retries, rates, settings, and the images that come back.
"""

from adapters.http.answers import (
    Received,
    base64_of,
    data_uri,
    encode_picture,
    entries_at,
    images_in,
    value_at,
)
from adapters.http.client import HTTPClient, OnFirstUse, object_of, respond
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.host import Endpoints, Host, ImageCall, Sending, hosted_starter, non_null
from adapters.http.policy import Policy, workers_for
from adapters.http.settings import (
    Concurrent,
    Connection,
    Pictures,
    Prompted,
    Scalar,
    Seconds,
    Size,
    Worded,
)

__all__ = [
    "Concurrent",
    "Connection",
    "Credentials",
    "Endpoints",
    "Fault",
    "HTTPClient",
    "Host",
    "ImageCall",
    "OnFirstUse",
    "Pictures",
    "Policy",
    "Prompted",
    "Received",
    "Rejected",
    "Scalar",
    "Seconds",
    "Sending",
    "Size",
    "Worded",
    "base64_of",
    "data_uri",
    "encode_picture",
    "entries_at",
    "hosted_starter",
    "images_in",
    "non_null",
    "object_of",
    "respond",
    "value_at",
    "workers_for",
]
