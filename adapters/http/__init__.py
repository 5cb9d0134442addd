"""The one policy for all endpoints: keys, connections, retries, rates, and what comes back."""

from adapters.http.answers import answer_of, encoded
from adapters.http.client import HTTPClient, check_redirect, key_of, object_of, open_client
from adapters.http.endpoints import Endpoints
from adapters.http.faults import Fault, Rejected, body_words
from adapters.http.gate import workers_for
from adapters.http.pictures import PictureRule
from adapters.http.policy import Outcome, Policy

__all__ = [
    "Endpoints",
    "Fault",
    "HTTPClient",
    "Outcome",
    "PictureRule",
    "Policy",
    "Rejected",
    "answer_of",
    "body_words",
    "check_redirect",
    "encoded",
    "key_of",
    "object_of",
    "open_client",
    "workers_for",
]
