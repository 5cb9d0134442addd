"""No long waits between tries, and servers that end with the test."""

from tests.endpoints.asking import impatient, serve

__all__ = ["impatient", "serve"]
