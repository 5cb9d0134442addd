"""Plug-ins that are set up from settings."""

from adapters.pools import PublicTable
from pe.plugins import specs

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
