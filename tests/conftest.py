"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without timings", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("without timings")
