"""The worked examples of docs/write-your-own.md do what the page says."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import pe
from pe.data.samples import Conditions
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation
from tests.durability.driver import make_private
from tests.endpoints.serving import serving
from tests.rows import defined


def test_the_generator_and_the_embedding_are_ones(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {
        "population": 20,
        "iterations": 2,
        "lookahead": 2,
        "degree": 0.3,
        "noise_multiplier": 1,
        "delta": 1e-5,
    }
    run = pe.evolve(
        data,
        defined("Discs")(),
        embedding=defined("MeanColour")(),
        out=tmp_path / "run",
        **settings,
    )
    assert run.synthetic.samples.array.shape == (20, 32, 32, 1)
    assert len(np.unique(run.synthetic.conditions["disc"], axis=0)) > 10


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
        refused = api.random_api(
            RandomRequest(("cat",), seeds, Conditions({"prompt": np.array(["a cat"])}))
        )
        assert refused.missing == {0: pe.Refused("no cats")}
    assert ["image" in body for body in asked] == [False, True, False]
    assert asked[0]["prompt"] == "a dog"


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [(Relation.ADD_REMOVE, 1.0), (Relation.REPLACE_ONE, 2.0)]
)
def test_the_fit_releases_what_it_planned_and_then_answers(tmp_path, relation, sensitivity):
    terms = FitTerms(("dark", "light"), (4, 4, 1), 1000, relation, "record", Budget(50, 1e-5))
    shades = np.repeat([50, 200], 500).astype(np.uint8)
    records = PrivateRecords(
        np.broadcast_to(shades[:, None, None, None], (1000, 4, 4, 1)).copy(),
        np.repeat([0, 1], 500).astype(np.int32),
        np.arange(1000),
    )
    api = defined("NoisyMeans")()
    (planned,) = api.plan_releases(terms)
    assert planned.sensitivity == sensitivity
    ledger = Ledger(terms.budget, relation, "record", [planned], MemoryStore())
    api.fit(Fitting(terms, lambda: records, ledger, tmp_path))
    api.load(tmp_path)
    seeds = np.arange(40, dtype=np.uint64)
    new = api.random_api(RandomRequest(("dark", "light") * 20, seeds))
    assert new.samples.array[::2].mean() == pytest.approx(50, abs=15)
    assert new.samples.array[1::2].mean() == pytest.approx(200, abs=30)
    same = api.variation_api(
        VariationRequest(new.samples, ("dark", "light") * 20, Conditions(), seeds, 0)
    )
    assert np.array_equal(same.samples.array, new.samples.array)
