"""What a notebook shows of a run; the example in examples/ does what its outputs show."""

from __future__ import annotations

import base64
import io
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pe
from pe.data.samples import Conditions
from pe.errors import LimitReached
from tests.generators import Mean, Shades

EXAMPLE = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
EVIL = '<script>alert("&")</script>'
SETTINGS = {
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "population": 20,
    "iterations": 2,
    "lookahead": 0,
}


@pytest.fixture
def private(tmp_path: Path) -> pe.ImageNpz:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array([EVIL, "light"] * 20))
    return pe.ImageNpz(
        tmp_path / "private.npz", size=4, channels=1, classes=[EVIL, "light"], declared_size=40
    )


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in found]


def test_a_run_shows_its_evolution_and_guarantee_and_an_unfinished_one_how_far_it_is(
    private, tmp_path
):
    with pytest.raises(LimitReached):
        pe.evolve(
            private, Shades(), embedding=Mean(), out=tmp_path / "run", **SETTINGS, max_images=45
        )
    shown = pe.Run.open(tmp_path / "run")._repr_html_()
    assert "Run run is not finished: it has S_0 to S_1, the last of them below" in shown
    run = pe.resume(
        tmp_path / "run", api=Shades(), embedding=Mean(), changes={"limits.max_images": 1000}
    )
    shown = run._repr_html_()
    assert run.guarantee["statement"].split("'")[0] in shown
    (evolution,) = pictures(shown)
    assert evolution.tobytes() == Image.open(tmp_path / "run" / "evolution.png").tobytes()
    assert EVIL not in shown
    assert "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;</bdi></td>" in shown
    assert str(tmp_path) not in shown
    assert run.certificate._repr_html_().startswith("<pre")


def test_a_population_shows_some_pictures_of_each_label_small_and_texts_as_texts() -> None:
    labels = np.repeat(np.arange(30), 10).astype(np.int32)
    samples = pe.Images(np.zeros((300, 200, 100, 3), np.uint8))
    shown = pe.Population(samples, labels, Conditions(), np.full(300, -1))._repr_html_()
    assert "Population of 300 images; labels 20 and above are not shown" in shown
    assert {picture.size for picture in pictures(shown)} == {(48, 96)}
    samples = pe.Texts.of([f"{EVIL} {'long ' * 100}", "short"])
    shown = pe.Population(
        samples, np.zeros(2, np.int32), Conditions(), np.full(2, -1)
    )._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert ">short</div>" in shown


def test_the_example_runs_and_shows_elements_as_its_stored_outputs_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = types.ModuleType("notebook")
    cells = [
        one
        for one in json.loads(EXAMPLE.read_text(encoding="utf-8"))["cells"]
        if one["cell_type"] == "code"
    ]
    for cell in cells:
        *lines, last = "".join(cell["source"]).rstrip().split("\n")
        shows = [one["data"] for one in cell["outputs"] if one["output_type"] == "execute_result"]
        exec(
            compile("\n".join(lines if shows else [*lines, last]), str(EXAMPLE), "exec"), vars(main)
        )
        for stored in shows:
            html = eval(last, vars(main))._repr_html_()
            assert re.findall(r"<\w+", html) == re.findall(r"<\w+", "".join(stored["text/html"]))
