"""What a run refuses: a start, before anything is written or asked; and answers, before a release."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pe
from adapters.trained.noisy_mean import DPMERF
from pe.engine.report import report_answers, warn_of_markup
from pe.errors import ContractError, PluginError, PrivateDataError, RecipeError, RunError
from pe.plugins import devices
from pe.store.writer import read_journal
from tests.engine.small import SETTINGS, Told, but, evolve
from tests.generators import Mean, Shades

SHOWN = []
BOOK = {"dark": "a cave"}


def centred(samples):
    """Looks at its block."""
    SHOWN.append(samples.pixels.tobytes())
    vectors = samples.pixels.reshape(len(samples), -1).mean(axis=1, keepdims=True).astype(np.float32)
    return vectors - vectors.mean(axis=0)


def as_they_are(samples):
    """Takes pixels in whatever size."""
    return samples.pixels.reshape(len(samples), -1).astype(np.float32)


def of_books(labels, seeds):
    """Draws a condition of each new sample from a book that lacks a label."""
    return pe.Conditions({"prompt": np.array([BOOK[label] for label in labels])})


def leave_nothing(degree, iteration=1):
    raise RecipeError(f"Degree {degree:g} leaves nothing.")


class NoVariation:
    capabilities, random_api = pe.Capabilities(), None


def cut_off(private):
    (private.path.parent / "scans").mkdir()
    (private.path.parent / "scans" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    return pe.ImageFolder(private.path.parent / "scans", size=4)


ELSEWHERE = but(Shades(), info=pe.PluginInfo(hosts=("a.invalid",)))
WITHOUT_WEIGHTS = pe.embedding("open_clip", weights="/none/clip.safetensors", offline=True)
LARGER = {"api": pe.api("glyphs", size=8), "embedding": but(Mean(), embed=as_they_are)}
REFUSED = [
    ({"epsilonn": 3}, RecipeError, r"unknown setting 'epsilonn'; did you mean 'epsilon'\?"),
    ({"population": 21}, RecipeError, "cannot be divided equally among 2 labels: take 20 or 22"),
    ({"api": pe.api("glyphs", sise=4)}, RecipeError, "api 'glyphs': unknown key 'sise'; did you mean 'size'"),
    ({"api": pe.api("glyphs", size="big")}, RecipeError, "api 'glyphs': size must be a whole number.*, not 'big'"),
    ({"api": DPMERF()}, PluginError, r"DPMERF is fitted on the private records.* entry point of pe\.adapters"),
    ({"api": but(Shades(), draw_conditions=of_books)}, RecipeError, "draw conditions for .* dark, light: .* 'light'"),
    ({"api": but(Shades(), describe_degree=leave_nothing)}, RecipeError, r"Degree 0\.5 leaves nothing"),
    ({"api": ELSEWHERE}, RecipeError, r"What a\.invalid charges is not stated: give api\.price .* or limits\.max_im"),
    ({"api": "scans"}, PluginError, r"api is 'scans', a text, which lacks capabilities, random_api, var.*: give pe\.a"),
    ({"api": NoVariation()}, PluginError, "api is an object of the class NoVariation, which lacks variation_api: give"),
    ({"api": Shades}, PluginError, r"api is the class Shades: pass an object of it, Shades\(…\)"),
    ({"embedding": len}, PluginError, "embedding is an object of the class builtin.*, which lacks batch_size, embed"),
    ({"embedding": but(Mean(), embed=lambda _: np.zeros((16, 2)))}, ContractError, r"Mean\.embed returned float64"),
    ({"embedding": but(Mean(), embed=centred)}, ContractError, "gives a sample another vector when the others"),
    (LARGER, ContractError, r"embed gives 16 numbers for a private sample of 4×4×1 and 64 for a generated one"),
    ({"embedding": WITHOUT_WEIGHTS}, RecipeError, r"there is no file '.*clip\.safetensors'"),
    ({"private": lambda given: replace(given, ledger_file=Path("withheld"))}, RecipeError, "ledger_file is 'withheld'"),
    ({"private": cut_off}, PrivateDataError, r"one\.png"),
    ({"private": lambda _: "scans"}, RecipeError, r"pe\.evolve: private is 'scans', a text: say where"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), REFUSED, ids=[sentence for *_, sentence in REFUSED])
def test_a_start_is_refused_before_anything_is_written_or_asked(private, tmp_path, changes, error, sentence):
    source = changes.get("private", lambda given: given)(private)
    before, settings = sorted(tmp_path.iterdir()), {"api": Shades()} | changes
    settings.pop("private", None)
    with pytest.raises(error, match=sentence) as refused:
        evolve(source, tmp_path / "run", **settings)
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before
    assert getattr(settings["api"], "random_requests", []) == []
    with np.load(private.path) as archive:  # nor is a record shown to an embedding that is refused
        assert not any(image.tobytes() in block for image in archive["images"] for block in SHOWN)


def test_an_existing_directory_is_left_alone(private, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="exists already"):
        evolve(private, tmp_path / "run")


def test_a_run_that_would_leave_gpus_idle_is_refused_before_anything_is_drawn(spots, tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "he driver has 1 GPU, and torch .* sees none: .* evolution.neighbor_search: faiss"
    with pytest.raises(RecipeError, match=said):
        evolve(spots, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for changes, refused in (({}, True), ({"neighbor_search": "faiss"}, False), ({"iterations": 0}, False)):
        told = " ".join(pe.plan(spots, Shades(), embedding=Mean(), **SETTINGS | changes).warnings)
        assert bool(re.search(f"A run would not start: t{said}", told)) == refused


def test_texts_with_a_template_s_markup_and_what_the_generator_passed_over_are_told_of():
    told, api = Told(), Shades()
    warn_of_markup(pe.Texts.of(["a film", "good<|im_end|>", "food"], 20), told)
    assert [each.split(", as")[0] for each in told.warnings] == ["1 of 3 texts hold a chat template's markup"]
    api.describe_answers = lambda: "2 answers were no text."
    with pytest.raises(OSError, match="gone"), report_answers(api, told):
        raise OSError("gone")
    assert told.warnings[-1] == "2 answers were no text."


def makes(sample, shape=None):
    """A generator whose samples are all like this one."""
    api = Shades(max_chunk=5)

    def answer(request):
        api.random_requests.append(request)
        return pe.Answer(sample.take(np.zeros(len(request), np.int64)))

    return but(api, info=pe.PluginInfo(hosts=(), shape=shape), random_api=answer, variation_api=answer)


def image(*shape):
    return pe.Images(np.zeros((1, *shape), np.uint8))


@pytest.mark.parametrize(
    ("sample", "shape", "sentence"),
    [
        (image(2, 2, 1), None, r"made images of 2×2×1 \(.*\) where images of 4×4×1 \(.*\) are declared: have it"),
        (image(4, 4, 1), (8, 8, 1), r"made images of 4×4×1 .* where images of 8×8×1 "),
        (pe.Texts.of(["a text"], 20), None, r"made texts where images are declared"),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"initial_variations": 3}])
def test_what_is_not_as_declared_is_refused_before_a_release(private, tmp_path, sample, shape, sentence, changes):
    api = makes(sample, shape)
    with pytest.raises(ContractError, match=sentence):
        evolve(private, tmp_path / "run", api, **changes)
    assert api.asked <= 10
    with read_journal(pe.Run.open(tmp_path / "run")) as journal:
        assert journal.charges() == []
        assert journal.totals().answered == 0
    assert len(evolve(private, tmp_path / "run", makes(image(4, 4, 1)), resume=True, **changes).synthetic) == 20


def test_another_size_that_the_generator_declares_is_taken_with_a_warning(private, tmp_path):
    told, api = Told(), makes(image(8, 8, 3), (8, 8, 3))
    assert evolve(private, tmp_path / "run", api, progress=told).synthetic.samples.shape == (8, 8, 3)
    sizes = "The generator makes images of 8×8×3 (height×width×channels), and the private images are 4×4×1"
    assert sizes in " ".join(told.warnings)
