"""Plug-ins that are set up from settings."""

import pytest

from adapters.pools import PublicTable
from pe.errors import PluginError
from pe.plugins import specs
from tests.generators import Shades

COLUMNS = {"age": {"kind": "integer", "min": 0, "max": 9}}


class Own(PublicTable):
    """A subclass that fixes a setting of its base in a constructor of its own."""

    def __init__(self, *, path: str, times: int = 1) -> None:
        super().__init__(path=path, columns=COLUMNS)
        self.times = times


def test_a_subclass_with_a_constructor_of_its_own_is_made_by_it(monkeypatch, tmp_path):
    monkeypatch.setattr(specs, "load", lambda *_: Own)
    (tmp_path / "a.csv").write_text("age\n3\n")
    made = specs.construct("pe.adapters", "own", {"path": str(tmp_path / "a.csv"), "times": 2})
    assert (made.times, len(made)) == (2, 1)


def test_settings_that_a_plug_in_does_not_declare_are_refused_and_none_are_needed(monkeypatch):
    monkeypatch.setattr(specs, "load", lambda *_: Shades)
    assert specs.construct("pe.adapters", "shades", {}).capabilities
    with pytest.raises(PluginError, match=r"'shades' declares no settings, .* gives size\. Put"):
        specs.construct("pe.adapters", "shades", {"size": 8})
