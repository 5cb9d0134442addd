"""What the pages say can be done, can be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pe
from pe.cli.plan import plan
from tests.durability.driver import make_private
from tests.generators import Mean

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_the_adapter_of_the_page_is_a_generator_of_40_lines_at_most(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(block.splitlines()) <= 40
    names: dict[str, object] = {}
    exec(compile(block, "adapters.md", "exec"), names)
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"population": 20, "iterations": 2, "lookahead": 2, "degree": 0.3, "noise_multiplier": 1, "delta": 1e-5}
    run = pe.evolve(data, names["Discs"](), embedding=Mean(), out=tmp_path / "run", **settings)
    assert run.synthetic.samples.array.shape == (20, 32, 32, 1)
    assert len(np.unique(run.synthetic.conditions["disc"], axis=0)) > 10


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_planned_without_data_keys_or_weights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = CliRunner().invoke(plan, [str(path), "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["api_calls"]["images"] > 0
    assert found["epsilon"] > 0
    # a folder of public images must be there for the number of calls; all others know it beforehand
    assert (found["api_calls"]["random"] is None) == (path.name == "folder.yaml")
