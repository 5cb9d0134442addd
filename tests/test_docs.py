"""What the pages say can be done, can be done."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import pe
from pe.cli.plan import explain, plan
from pe.errors import LimitReached, RecipeError
from pe.plugins.registry import Group, plugins

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
FROM_A_POOL = ("emoji.yaml", "folder.yaml", "newswire.yaml", "texts.yaml")
FITTED = ("privimage.yaml", "finetune.yaml")


def python_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images in `scans` and `public`, the first in a folder for each class, with a table of
    patients.
    """
    rows = ["file,label,patient"]
    for number, place in enumerate(["scans/benign", "scans/malignant", "public"] * 4):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (64, 70, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / place / f"{number}.png")
        if place != "public":
            rows.append(f"{place[6:]}/{number}.png,{place[6:]},p{number // 6}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "pe.recipe.usual_embedding._with_weights_here", lambda standard: iter(())
    )  # as without the extra
    return tmp_path


def test_the_python_of_the_readme_runs(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "labels.csv").rename(folders / "scans" / "labels.csv")
    monkeypatch.setattr(pe, "evolve", partial(pe.evolve, population=20, iterations=1))
    names: dict[str, object] = {}
    for block in python_of("README.md"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["run"].guarantee["unit"]["name"] == "patient"
    assert (folders / "out" / "certificate.md").read_text().startswith("# Privacy certificate\n")
    assert not (folders / "out" / "confidential").exists()


@pytest.mark.usefixtures("folders")
def test_the_python_of_the_page_of_commands_runs() -> None:
    first, second = python_of("docs/commands.md")
    names: dict[str, object] = {}
    with pytest.raises(LimitReached, match=r"limits\.max_images = 1000 is reached"):
        exec(compile(first, "commands.md", "exec"), names)
    exec(compile(second, "commands.md", "exec"), names)
    assert len(names["run"].synthetic) == 200
    assert names["more"].is_file()
    assert names["page"] == Path("runs/scans/report.html")


def test_the_python_of_the_page_of_texts_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = python_of("docs/text.md")
    words = np.random.default_rng(0).choice(
        ["good", "bad", "long", "short", "film", "food", "fine"], (60, 8)
    )
    texts = list(map(" ".join, words))
    (tmp_path / "newswire.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts)
    )
    rows = [f"{text} today,{i % 5 + 1}" for i, text in enumerate(texts[::-1])]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,stars", *rows]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pe, "evolve", partial(pe.evolve, population=20, iterations=1))
    exec(
        compile(block.replace("=20000", "=60"), "text.md", "exec"), {}
    )  # who declares 20,000 has as many embedded
    assert (tmp_path / "out" / "synthetic.parquet").is_file()


def test_the_python_of_the_page_of_private_records_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = python_of("docs/data.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pe, "evolve", partial(pe.evolve, population=20, iterations=1))
    exec(compile(block, "data.md", "exec"), names := {})
    image, label = names["synthetic"][19]
    assert (image.shape, label.item(), len(names["synthetic"])) == ((1, 8, 8), 9, 20)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_planned_without_data_keys_or_weights(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # all records in every step: accounted in no time
    quick = ["--set", "api.training.expected_batch=4000"] if path.name in FITTED else []
    result = CliRunner().invoke(plan, [str(path), *quick, "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["api_calls"]["images"] > 0
    assert found["epsilon"] > 0
    # a folder of public images must be there for the number of calls; all others know it beforehand
    assert (found["api_calls"]["random"] is None) == (path.name in FROM_A_POOL)


def test_every_public_name_says_what_its_arguments_are() -> None:
    found = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["_names"]()
    for name in (name for group in found.values() for name in group):
        module, _, last = name.rpartition(".")
        value = getattr(import_module(module), last)
        text = inspect.getdoc(value) or ""
        assert text, name
        assert not text.startswith(f"{last}("), name  # as dataclasses write for those without
        kinds = value.__mro__ if inspect.isclass(value) else [value]
        known = "".join(
            inspect.getdoc(kind) or "" for kind in kinds if kind.__module__.startswith("pe.")
        )
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        own = (
            {}
            if is_error or (inspect.isfunction(value) and module != "pe")
            else inspect.signature(value).parameters
        )
        fields = own.keys() - {"args", "kwargs", "kind"}
        assert {field for field in fields if f"{field}:" not in known.replace("*", "")} == set(), (
            name
        )


class Plain:
    """Draws what its constructor is told."""

    def __init__(self, size: int = 8) -> None:
        self.size = size


def test_a_plug_in_that_declares_no_settings_is_explained_by_its_docstring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = EntryPoint("plain", f"{__name__}:Plain", "pe.adapters")

    def known(group: Group) -> Mapping[str, EntryPoint]:
        return plugins(group) | ({"plain": plain} if group == "pe.adapters" else {})

    monkeypatch.setattr("pe.plugins.registry.plugins", known)
    monkeypatch.setattr("pe.recipe.explain.plugins", known)
    told = CliRunner().invoke(explain, ["plain"], catch_exceptions=False).output
    assert "Draws what its constructor is told." in told


def test_a_key_a_kind_and_a_section_are_explained_and_nonsense_is_one_sentence() -> None:
    def told(*words: str) -> str:
        return CliRunner().invoke(explain, words, catch_exceptions=False).output

    assert "lookahead  (integer from 0 to 10000, or a list of such; default: 0)" in told(
        "lookahead"
    )
    assert "query.steps  (integer ≥ 1; default: 1000)" in told("privimage")  # as PrivImage has it
    assert "default: 28" in told("mnist")  # a key of all sources, but not as all have it
    assert "threshold_sigmas" in told("evolution")
    assert "share of privacy.epsilon" in told("api.fit.budget_share")  # as messages name it
    assert "private text votes for" in " ".join(told("encoder").split())  # what a section is for
    assert "hours of training" not in told("fitted_causal_lm")
    contents = told()
    assert re.search(
        r"images from a host:.*\n  fal .*?a key \(FAL_KEY\); costs what its host",
        contents,
        re.DOTALL,
    )
    assert all(name in contents for name in ("evolution", "privimage", "open_clip", "parquet"))
    with pytest.raises(RecipeError, match=r"A recipe has no 'lookahaed'; .*'lookahead'"):
        told("lookahaed")


def test_a_plug_in_that_cannot_be_loaded_says_so_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoint("broken", "tests.nowhere:Broken", "pe.adapters")
    monkeypatch.setattr(
        "pe.recipe.explain.plugins", lambda group: {"broken": broken} | plugins(group)
    )
    monkeypatch.setattr(
        "pe.plugins.registry.plugins", lambda group: {"broken": broken} | plugins(group)
    )
    told = CliRunner().invoke(explain, [], catch_exceptions=False).output
    assert "The adapter 'broken' (tests.nowhere:Broken) cannot be loaded" in told
    assert "privimage" in told
