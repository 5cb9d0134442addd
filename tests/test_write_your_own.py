"""The worked examples of docs/write-your-own.md do what the page says."""

from __future__ import annotations

import base64
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import pe
from pe.cli.main import pe as command
from pe.data import samples
from pe.data.samples import Conditions
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation
from tests.durability.driver import make_private
from tests.endpoints.serving import serving
from tests.generators import Mean, Shades

PAGE = (Path(__file__).parent.parent / "docs" / "write-your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def block(name: str) -> str:
    """The one example that defines a class."""
    (found,) = (each for each in BLOCKS if f"class {name}" in each)
    return str(found)


def defined(name: str) -> Any:
    """A class of the page."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(block(name), "write-your-own.md", "exec"), names)
    return names[name]


def test_the_generator_is_one_of_40_lines_at_most(tmp_path: Path) -> None:
    assert len(block("Discs").splitlines()) <= 40
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"population": 20, "iterations": 2, "lookahead": 2, "degree": 0.3, "noise_multiplier": 1, "delta": 1e-5}
    run = pe.evolve(data, defined("Discs")(), embedding=Mean(), out=tmp_path / "run", **settings)
    assert run.synthetic.samples.array.shape == (20, 32, 32, 1)
    assert len(np.unique(run.synthetic.conditions["disc"], axis=0)) > 10


def test_the_embedding_is_one(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"population": 8, "iterations": 1, "lookahead": 0, "noise_multiplier": 1, "delta": 1e-5}
    run = pe.evolve(data, Shades(), embedding=defined("MeanColour")(), out=tmp_path / "run", **settings)
    assert run.synthetic.samples.array.shape == (8, 4, 4, 1)


def test_the_endpoint_draws_varies_and_tells_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAINT_KEY", "a-secret")
    asked: list[dict[str, Any]] = []

    async def paint(request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer a-secret"
        asked.append(await request.json())
        if "cat" in asked[-1]["prompt"]:
            return JSONResponse({"blocked": "no cats"})
        file = io.BytesIO()
        Image.new("RGB", (16, 16), "red").save(file, "PNG")
        return JSONResponse({"image": base64.b64encode(file.getvalue()).decode()})

    with serving(Starlette(routes=[Route("/paint", paint, methods=["POST"])])) as url:
        api = defined("Paint")(prompts="a {label}", image_size=8, base_url=url, key_env="PAINT_KEY")
        seeds = np.arange(1, dtype=np.uint64)
        dog = Conditions({"prompt": np.array(["a dog"])})
        new = api.random_api(RandomRequest(("dog",), seeds, dog))
        assert new.samples.array.shape == (1, 8, 8, 3)
        varied = api.variation_api(VariationRequest(new.samples, ("dog",), dog, seeds, 0.5))
        assert len(varied.samples) == 1
        refused = api.random_api(RandomRequest(("cat",), seeds, Conditions({"prompt": np.array(["a cat"])})))
        assert refused.missing == {0: pe.Refused("no cats")}
    assert ["image" in body for body in asked] == [False, True, False]
    assert asked[0]["prompt"] == "a dog"


@pytest.mark.parametrize(("relation", "sensitivity"), [(Relation.ADD_REMOVE, 1.0), (Relation.REPLACE_ONE, 2.0)])
def test_the_fit_releases_what_it_planned_and_then_answers(
    tmp_path: Path, relation: Relation, sensitivity: float
) -> None:
    terms = FitTerms(("dark", "light"), (4, 4, 1), 1000, relation, "record", Budget(50, 1e-5))
    shades = np.repeat([50, 200], 500).astype(np.uint8)
    records = PrivateRecords(
        np.broadcast_to(shades[:, None, None, None], (1000, 4, 4, 1)).copy(),
        np.repeat([0, 1], 500).astype(np.int32),
        np.arange(1000),
    )
    api = defined("NoisyMeans")()
    (planned,) = api.planned(terms)
    assert planned.sensitivity == sensitivity
    ledger = Ledger(terms.budget, relation, "record", [planned], MemoryStore())
    api.fit(Fitting(terms, lambda: records, ledger, tmp_path))
    api.load(tmp_path)
    seeds = np.arange(40, dtype=np.uint64)
    new = api.random_api(RandomRequest(("dark", "light") * 20, seeds))
    assert new.samples.array[::2].mean() == pytest.approx(50, abs=15)
    assert new.samples.array[1::2].mean() == pytest.approx(200, abs=30)
    same = api.variation_api(VariationRequest(new.samples, ("dark", "light") * 20, Conditions(), seeds, 0))
    assert np.array_equal(same.samples.array, new.samples.array)


def test_the_modality_is_run_reported_exported_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (points,) = (each for each in re.findall(r"```toml\n(.*?)```", PAGE, re.S) if "pe.modalities" in each)
    info = tmp_path / "site" / "rows-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rows\nVersion: 1\n")
    groups = tomllib.loads(points)["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {value}" for group, named in groups.items() for name, value in named.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info.parent / "rows.py").write_text(block("Rows"))
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setattr(samples, "_modalities", {})
    rows = np.random.default_rng(0).normal(2, 0.2, (2000, 2))
    np.save(tmp_path / "rows.npy", rows[:1900])
    np.save(tmp_path / "test.npy", rows[1900:])
    content = {
        "private": {"kind": "row_file", "path": str(tmp_path / "rows.npy"), "declared_size": 2000},
        "api": {"kind": "normal"},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "evolution": {"iterations": 3, "population": 60, "degree": [0.5, 0.3, 0.1]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    run = tmp_path / "run"
    for arguments in (
        ("run", tmp_path / "recipe.yaml", "--out", run),
        ("report", run),
        ("evaluate", run, "--test", tmp_path / "test.npy", "--seeds", 1),
        ("export", run, "--to", tmp_path / "out", "--format", "folder"),
    ):
        result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
        assert result.exit_code == 0, result.output
    apart = np.abs(pe.Run(run).synthetic.samples.array - 2).mean()
    assert apart < np.abs(pe.Run(run).populations()[0].samples.array - 2).mean() / 2
    assert len(list((tmp_path / "out" / "synthetic").rglob("*.csv"))) > 60  # and labels.csv
