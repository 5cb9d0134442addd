"""The seam: a modality of somebody else's, known by entry points alone, has all that images
have.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import pe
from pe.cli.main import pe as command
from pe.data import samples
from pe.errors import PEError
from tests.rows import recipe

__all__ = ["recipe"]  # a fixture


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def stopped(*arguments: object) -> str:
    """The sentence that a command ends with."""
    with pytest.raises(PEError) as found:
        CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    return str(found.value)


def test_it_is_planned_stopped_resumed_extended_reported_exported_and_evaluated(
    recipe: Path, tmp_path: Path
) -> None:
    assert "ε" in invoke("plan", recipe)
    run = tmp_path / "run"
    said = stopped("run", recipe, "--out", run, "--set", "limits.max_images=200")
    assert "limits.max_images = 200 is reached" in said
    invoke("run", run, "--set", "limits.max_images=null")
    found = pe.Run(run)
    assert found.guarantee["epsilon"] == pytest.approx(8, abs=0.01)
    before, after = (
        np.abs(each.samples.array - 2).mean() for each in (found.populations()[0], found.synthetic)
    )
    assert after < before / 2

    invoke("extend", run, "-n", 10, "--set", "limits.max_images=null")
    assert len(found.extensions()[0]) == 10
    invoke("view", run, "--write")
    page = (run / "report.html").read_text()
    assert "synthetic rows" in page

    invoke("export", run, tmp_path / "files", "--format", "folder")
    with (tmp_path / "files" / "synthetic" / "labels.csv").open() as file:
        names = [row["file"] for row in csv.DictReader(file)]
    written = [(tmp_path / "files" / "synthetic" / name).read_text() for name in names]
    assert written[:60] == [",".join(map(str, row)) for row in found.synthetic.samples.array]
    invoke("export", run, tmp_path / "table", "--format", "parquet")
    table = pq.read_table(tmp_path / "table" / "synthetic.parquet")
    assert len(table) == 70

    invoke("evaluate", run, "--test", tmp_path / "test.npy", "--seeds", 1)
    values = json.loads((run / "confidential" / "metrics.json").read_text())
    assert values["run"]["noun"] == "rows"
    assert values["fidelity"]["numbers"]["controls"].keys() >= {"unevolved", "real"}
    assert values["memorisation"]["copies"]["generated"] == 60
    # Rows without labels train no classifier; how real and how different they are is judged.
    judgement = values["judgement"]
    assert (judgement["trained"], judgement["analyse"]) == ({}, None)
    assert dict(judgement["lines"]).keys() == {"summary", "show", "variety"}
    shutil.rmtree(tmp_path / "site" / "somebody_s-1.dist-info")
    samples._modalities.clear()
    assert stopped("view", run, "--write").startswith("Unknown source 'row_file'")


@pytest.mark.parametrize(
    ("section", "spec", "sentence"),
    [
        (
            "api",
            {"kind": "glyphs", "size": 8},
            "Glyphs makes images, but the private records are rows",
        ),
        ("embedding", {"kind": "pixels"}, "Pixels embeds images, but the private records are rows"),
    ],
)
def test_a_plug_in_of_another_modality_is_refused_before_anything_is_asked(
    recipe, tmp_path, section, spec, sentence
):
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | {section: spec}))
    planned = " ".join(invoke("plan", recipe).split())
    assert f"A run would not start. {sentence}" in planned
    assert sentence in stopped("run", recipe, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_record_that_does_not_fit_is_refused_in_a_sentence(recipe: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((5, 3)))
    said = stopped("run", recipe, "--out", tmp_path / "run")
    assert "rows.npy has 3 numbers, not the 2 that are declared" in said
