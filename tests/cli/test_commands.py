"""The `pe` command as a user types it: real processes, real files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pe.errors import PEError, nearest_name
from pe.plugins.registry import plugins
from tests.cli.typed import pe

PE = str(Path(sys.executable).with_name("pe"))


def installed(*arguments: object, cwd: Path, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The script itself; `typed.pe` is quicker, and has only what is installed."""
    return subprocess.run(
        [PE, *map(str, arguments)],
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label, low in (("benign", 0), ("malignant", 150)):
        for patient in ("p1", "p2"):
            folder = tmp_path / "scans" / label / patient
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(low, low + 100, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "scans"


@pytest.fixture
def public(tmp_path: Path) -> Path:
    folder = tmp_path / "public"
    folder.mkdir()
    for i, shade in enumerate(range(0, 250, 5)):
        Image.new("RGB", (16, 16), (shade, shade, shade)).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture
def recipe(tmp_path: Path, scans: Path, public: Path) -> Path:
    content = {
        "name": "scans",
        "private": {
            "kind": "folder",
            "path": "scans",
            "size": 16,
            "resize": "crop",
            "classes": ["benign", "malignant"],
        },
        "api": {"kind": "public_images", "path": "public", "size": 16},
        "embedding": {"kind": "pixels"},
        "privacy": {"epsilon": 20, "delta": 1e-3},
        "evolution": {"iterations": 2, "population": 8, "lookahead": 1},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def assert_one_sentence(result: subprocess.CompletedProcess[str], sentence: str, status: int = 2) -> None:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("pe: ")
    assert re.search(sentence, last), last
    assert result.stdout == ""


def test_help_lists_the_commands_and_loads_nothing_that_only_they_need(tmp_path: Path) -> None:
    result = installed("--help", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0
    for command in ("demo", "doctor", "init", "run"):
        assert re.search(rf"^  {command} ", result.stdout, re.M)
    imported = set(re.findall(r"\| +([\w.]+)$", result.stderr, re.M))
    assert "click" in imported
    assert not imported & {"pydantic", "rich", "numpy", "yaml", "asyncio", "fastapi", "torch", "ray"}


def test_an_unknown_command_is_answered_with_the_nearest(tmp_path: Path) -> None:
    result = pe("pln", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "Error: No such command 'pln'; did you mean 'plan'?"
    assert "known are 'audit', 'calibrate'" in pe("zzz", cwd=tmp_path).stderr


def test_a_long_list_of_names_is_cut() -> None:
    names = [f"a{i:03d}" for i in range(60)]
    assert nearest_name("zzz", names).endswith("'a049' and 10 more.")
    assert nearest_name("zzz", names[:50]).endswith("'a048', 'a049'.")


def test_what_a_command_does_is_told_whole_in_the_list_of_commands() -> None:
    ours = [point.load() for point in plugins("pe.commands").values() if point.value.startswith("pe.")]
    assert len(ours) >= 19
    for command in ours:
        assert not command.get_short_help_str(limit=63).endswith("..."), command.name  # 80 columns


def test_a_limit_names_what_goes_on_and_that_does(recipe: Path) -> None:
    last = pe("run", recipe, "--out", "out", "--set", "limits.max_images=20", cwd=recipe.parent).stderr.splitlines()[-1]
    assert "limits.max_images = 20 is reached: 16 samples are made, and the next request, with those under way" in last
    assert "0 of 8 samples of population/1 are there; `pe resume out --set limits.max_images=…` goes on." in last
    assert pe("resume", "out", "--set", "limits.max_images=40", cwd=recipe.parent).returncode == 0
    again = pe("resume", "out", cwd=recipe.parent)
    assert again.returncode == 0
    assert again.stderr.startswith("out is finished already, so it is checked, and nothing is asked.\n")
    stopped = pe("extend", "out", "-n", 4, cwd=recipe.parent)
    assert stopped.returncode == 3
    assert "`pe extend out -n 4 --degree 0.5 --set limits.max_images=…` goes on." in stopped.stderr
    assert "stopped; `pe extend out` with the same numbers goes on" in pe("status", "out", cwd=recipe.parent).stdout
    extended = pe("extend", "out", "-n", 4, "--set", "limits.max_images=44", cwd=recipe.parent)
    assert "4 more samples" in extended.stdout
    more = json.loads(pe("extend", "out", "-n", 4, "--json", "--set", "limits.max_images=50", cwd=recipe.parent).stdout)
    assert more == {"samples": 4, "degree": 0.5, "path": "out/extension-002.npz"}
    copied = pe("extend", "out", "-n", 4, "--degree", 0, "--set", "limits.max_images=50", cwd=recipe.parent).stdout
    assert "They are copies of the run's samples, as the degree is 0; a --degree above it varies them.\n" in copied


def test_run_makes_a_run(recipe: Path) -> None:
    result = installed("run", "recipe.yaml", cwd=recipe.parent)
    assert result.returncode == 0, result.stderr
    (run,) = (recipe.parent / "runs").iterdir()
    assert re.fullmatch(r"scans-\d{8}T\d{6}Z-[0-9a-f]{4}", run.name)
    assert "ε = 20, δ = 0.001" in result.stdout
    assert f"{Path('runs') / run.name / 'synthetic.npz'}, 8 images" in result.stdout
    assert f"pe extend {Path('runs') / run.name} -n N" in result.stdout
    with Image.open(run / "evolution.png") as picture:
        assert picture.size[0] > 200


def test_json_is_all_that_stdout_holds(recipe: Path) -> None:
    result = installed("run", recipe, "--out", "out", "--json", "--set", "privacy.epsilon=3", cwd=recipe.parent)
    answer = json.loads(result.stdout)
    # no time: it tells how many records there are
    told = {"epsilon", "delta", "data_set", "noun", "images", "different", "api_calls", "warnings", "run"}
    assert answer.keys() == told
    assert answer["images"] == 8
    assert answer["epsilon"] == pytest.approx(3, rel=1e-3)
    assert answer["run"] == "out"


def test_console_output_tells_neither_the_number_of_records_nor_what_is_skipped(recipe: Path, scans: Path) -> None:
    changes = ["--set", "private.on_bad_record=skip"]
    first = pe("run", recipe, "--out", "one", *changes, cwd=recipe.parent)
    images = sorted(scans.rglob("*.png"))
    for image in images[::2]:
        image.unlink()
    images[1].write_bytes(b"no image")
    second = pe("run", recipe, "--out", "two", *changes, cwd=recipe.parent)
    assert first.stderr == second.stderr != ""
    of_all = [f"all runs over these records ({count}): ε ≤ " for count in (1, 2)]
    assert of_all[0] in first.stdout
    assert of_all[1] in second.stdout
    of_noise = r"\(\d\): ε ≤ [\d.]+|, \d of them different per label"
    shown = [re.sub(of_noise, "", re.sub(r"\bone\b", "two", each.stdout)) for each in (first, second)]
    assert shown[0] == shown[1]
    log = (recipe.parent / "two" / "confidential" / "log.txt").read_text()
    assert f"casts no vote: {images[1]}" in log


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "api.kind=none"], r"Unknown adapter 'none'; known are '.*public_images'"),
        (["--set", "evolution.populaton=4"], r"unknown key 'evolution.populaton'; did you mean 'population'"),
        (["--set", "evolution.population=9"], r"cannot be divided equally among 2 labels"),
        (["--set", "privacy.delta=0"], r"privacy\.delta"),
        (["--set", "private.resize=null"], r"no image at all|resize|another size|size"),
        (["--set", "private.classes=[benign]"], r"malignant"),
        (["--set", "private.path=nowhere"], r"nothing at /.*/nowhere: say where"),
        (["--out", "public"], r"public exists already"),
    ],
)
def test_a_user_s_mistake_is_one_sentence_and_writes_nothing(recipe: Path, arguments: list[str], sentence: str) -> None:
    before = sorted(recipe.parent.rglob("*"))
    assert_one_sentence(pe("run", recipe, *arguments, cwd=recipe.parent), sentence)
    assert sorted(recipe.parent.rglob("*")) == before


def test_a_recipe_and_its_finished_run_serve_from_any_folder(recipe: Path, public: Path) -> None:
    root, elsewhere = recipe.parent, recipe.parent / "elsewhere"
    elsewhere.mkdir()
    assert pe("run", "../recipe.yaml", "--out", "out", cwd=elsewhere).returncode == 0
    assert str(root / "scans") not in (elsewhere / "out" / "recipe.yaml").read_text()
    assert "4 more samples" in pe("extend", "elsewhere/out", "-n", 4, cwd=root).stdout
    for path in (root / "scans").rglob("*.png"):
        held_out = root / "held-out" / path.relative_to(root / "scans")
        held_out.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).transpose(Image.Transpose.ROTATE_180).save(held_out)
    measured = pe("evaluate", "out", "--test", "../held-out", "--metrics", "fidelity", "--json", cwd=elsewhere)
    assert "real" in json.loads(measured.stdout)["fidelity"]["pixels"]["controls"]  # the private records were found
    public.rename(root / "moved")
    assert_one_sentence(pe("extend", "out", "-n", 4, cwd=elsewhere), f"'{public}' is neither a folder nor an .npz file")
    assert pe("extend", "out", "-n", 4, "--set", "api.path=../moved", cwd=elsewhere).returncode == 0


def test_a_file_name_neither_colours_the_terminal_nor_forges_a_line(recipe: Path, scans: Path) -> None:
    name = "\x1b[31mx\npe: all is well\u202e.png"
    (scans / "benign" / "p1" / name).write_bytes(b"no image")
    result = pe("run", recipe, cwd=recipe.parent)
    assert_one_sentence(result, r"x1b\[31mx\\npe: all is well\\u202e\.png is not a readable PNG")
    assert set(result.stderr).isdisjoint("\x1b\u202e")
    assert len([line for line in result.stderr.splitlines() if line.startswith("pe: ")]) == 1
    told = pe("plan", recipe, name, cwd=recipe.parent).stderr
    assert "unexpected extra argument (\\x1b[31mx\\npe: all is well\\u202e.png)" in told
    assert str(PEError(name)) == "\\x1b[31mx\\npe: all is well\\u202e.png"


def test_all_bad_files_are_told_at_once_and_more_than_twenty_stand_in_a_file_of_their_owner_s(
    recipe: Path, scans: Path
) -> None:
    images = sorted(scans.rglob("*.png"))
    for image in images[:3]:
        image.write_bytes(b"no image")
    told = pe("run", recipe, cwd=recipe.parent).stderr.splitlines()[-4:]
    sentences = [f"{image} is not a readable PNG" for image in images[:22]]
    assert told[0].startswith(f"pe: 3 private records cannot be read; the first: {sentences[0]}")
    assert told[0].endswith("Repair or remove them, or set on_bad_record: skip to let them cast no vote.")
    assert [line.startswith(f"  {sentence}") for line, sentence in zip(told[1:], sentences, strict=False)] == [True] * 3
    listed = scans.with_name("scans.bad-files.txt")
    assert not listed.exists()
    for image in images[:22]:
        image.write_bytes(b"no image")
    told = pe("run", recipe, cwd=recipe.parent).stderr.splitlines()[-23:]
    assert told[0].startswith("pe: 22 private records cannot be read; the first: ")
    assert told[-2:] == [
        "  … and 2 more.",
        f"  All of them are listed in {listed}; as confidential as the data, it may be deleted.",
    ]
    assert listed.stat().st_mode & 0o777 == 0o600
    lines = listed.read_text().splitlines()
    assert [line.startswith(sentence) for line, sentence in zip(lines, sentences, strict=True)] == [True] * 22
    for k in range(2):
        (scans / f"{k}.pdf").write_text("no image")
    told = pe("run", recipe, cwd=recipe.parent).stderr.splitlines()[-3:]
    assert told[0].startswith(
        f"pe: 2 files are not read here; the first: {scans}/0.pdf is no file of a type that is read"
    )
    assert not (recipe.parent / "runs").exists()


def test_doctor_tells_what_works(tmp_path: Path) -> None:
    result = installed("doctor", cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    assert "✓ neighbour search: faiss" in result.stdout
    assert "accelerator: " in result.stdout
    assert re.search(r"pe\.adapters: .*glyphs, .*public_images", result.stdout)
    for extra in ("demo", "diffusion", "embeddings", "evaluation", "http", "medical", "parquet", "trained"):
        assert f"extra {extra} (" in result.stdout


def test_doctor_finds_another_package_under_our_name(tmp_path: Path) -> None:
    info = tmp_path / "impostor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: impostor\nVersion: 1.0\n")
    (info / "RECORD").write_text("pe/__init__.py,,\nimpostor-1.0.dist-info/METADATA,,\n")
    result = installed("doctor", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "✗ import name 'pe' is also installed by impostor" in result.stdout
    assert "pip uninstall impostor" in result.stdout


def test_a_third_party_adapter_is_installed_and_runs_by_name(recipe: Path) -> None:
    package = recipe.parent / "package"
    (package / "flat").mkdir(parents=True)
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "flat"\nversion = "1"\n[project.entry-points."pe.adapters"]\nflat = "flat:Flat"\n'
    )
    (package / "flat" / "__init__.py").write_text(
        "import numpy as np\nimport pe\n\n\n"
        "class Flat:\n"
        "    capabilities = pe.Capabilities(max_chunk=5)\n\n"
        "    def __init__(self, *, shade: int = 7) -> None:\n        self.shade = shade\n\n"
        "    def random_api(self, request):\n"
        "        return pe.Answer(pe.Images(np.full((len(request), 16, 16, 3), self.shade, np.uint8)))\n\n"
        "    def variation_api(self, request):\n        return pe.Answer(request.samples)\n"
    )
    target = recipe.parent / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(package)], check=True, timeout=120)
    changes = ["--set", "api={kind: flat, shade: 9}"]
    result = installed("run", recipe, "--out", "out", *changes, cwd=recipe.parent, PYTHONPATH=str(target))
    assert result.returncode == 0, result.stderr
    with np.load(recipe.parent / "out" / "synthetic.npz") as archive:
        assert (archive["images"] == 9).all()
