"""The line that installs an extra, by where the toolkit was installed from."""

from __future__ import annotations

import json

import pytest

from pe.errors import pip_install


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'private-evolution-toolkit[cpu]'"),
        (
            {"url": "https://host/pe.whl", "archive_info": {}},
            "pip install 'private-evolution-toolkit[cpu]'",
        ),
        (
            {"url": "file:///my%20src/pe", "dir_info": {"editable": True}},
            "pip install -e '/my src/pe[cpu]'",
        ),
        ({"url": "file:///ann's/pe", "dir_info": {}}, "pip install '/ann'\"'\"'s/pe[cpu]'"),
    ],
)
def test_it_names_the_clone_or_the_index_and_a_shell_can_run_it(
    origin, line, tmp_path, monkeypatch
):
    installed = tmp_path / "private_evolution_toolkit-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: private-evolution-toolkit\nVersion: 1\n"
    )
    if origin:
        (installed / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert pip_install("cpu") == line
