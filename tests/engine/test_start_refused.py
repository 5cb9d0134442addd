"""What a start refuses, in one sentence and before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import pe
from adapters.trained.noisy_mean import DPMERF
from pe.errors import ContractError, PluginError, PrivateDataError, RecipeError, RunError
from pe.privacy.data_set import DataSetLedger
from tests.engine.test_start import SETTINGS, evolve, private
from tests.generators import Mean, Shades

__all__ = ["private"]  # a fixture


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"epsilonn": 3}, RecipeError, "unknown setting 'epsilonn'; did you mean 'epsilon'?"),
        ({"population": 21}, RecipeError, "cannot be divided equally among 2 labels: take 20 or 22"),
        ({"neighbors": 30}, RecipeError, "each record votes for 30"),
        ({"noise_multiplier": 1.0}, RecipeError, "either epsilon or noise_multiplier"),
    ],
)
def test_wrong_settings_write_nothing(
    private: pe.ImageNpz, tmp_path: Path, changes: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        evolve(private, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_an_unknown_adapter_is_answered_with_the_nearest(private: pe.ImageNpz, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"Unknown adapter 'glyfs'; did you mean 'glyphs'\?"):
        evolve(private, tmp_path / "run", pe.api("glyfs"))


def test_an_adapter_s_settings_are_checked(private: pe.ImageNpz, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="api 'glyphs': unknown key 'sise'; did you mean 'size'"):
        evolve(private, tmp_path / "run", pe.api("glyphs", sise=4))
    with pytest.raises(RecipeError, match=r"api 'glyphs': size must be a whole number.*, not 'big'"):
        evolve(private, tmp_path / "run", pe.api("glyphs", size="big"))


def test_private_records_that_cannot_be_read_are_found_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    api = Shades()
    with pytest.raises(PrivateDataError, match=r"one\.png"):
        evolve(pe.ImageFolder(tmp_path / "scans", size=4), tmp_path / "run", api)
    assert not (tmp_path / "run").exists()
    assert api.asked == 0


def test_an_existing_directory_is_left_alone(private: pe.ImageNpz, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="exists already"):
        evolve(private, tmp_path / "run")


def test_an_embedding_that_breaks_its_protocol_is_named(private: pe.ImageNpz, tmp_path: Path) -> None:
    class Wrong(Mean):
        def embed(self, samples: pe.Images) -> np.ndarray:
            return np.zeros((len(samples), 2), np.float64)

    with pytest.raises(ContractError, match=r"Wrong\.embed returned float64"):
        pe.evolve(private, Shades(), embedding=Wrong(), out=tmp_path / "run", epsilon=1.0, **SETTINGS)


def test_a_generator_that_is_fitted_is_planned_by_name_and_refused_as_an_object(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=r"DPMERF is fitted on the private records.* entry point of pe\.adapters"):
        evolve(private, tmp_path / "run", DPMERF())
    assert not (tmp_path / "run").exists()


def test_an_embedding_without_its_weights_says_so_before_anything_is_called(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    api = Shades()
    weights = {"weights": str(tmp_path / "clip.safetensors"), "offline": True}
    with pytest.raises(RecipeError, match=r"there is no file '.*clip\.safetensors'"):
        pe.evolve(
            private, api, embedding=pe.embedding("open_clip", **weights), out=tmp_path / "run", epsilon=50.0, **SETTINGS
        )
    assert not api.random_requests
    assert not (tmp_path / "run").exists()


def test_an_embedding_that_looks_at_its_block_is_refused_before_a_record_is_embedded_and_anything_is_asked(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    class Centred(Mean):
        blocks: ClassVar[list[bytes]] = []

        def embed(self, samples: pe.Images) -> np.ndarray:
            self.blocks.append(samples.pixels.tobytes())
            vectors = super().embed(samples)
            return vectors - vectors.mean(axis=0)

    api = Shades()
    with pytest.raises(ContractError, match=r"Centred\.embed gives a sample another vector when the others"):
        evolve(private, tmp_path / "run", api, embedding=Centred())
    with np.load(private.path) as archive:
        assert not any(image.tobytes() in block for image in archive["images"] for block in Centred.blocks)
    assert api.asked == 0
    assert not (tmp_path / "run").exists()
    assert not DataSetLedger.beside(private.path).path.exists()


def test_a_ledger_file_that_is_withheld_is_asked_for(private: pe.ImageNpz, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"private\.ledger_file is 'withheld'.*name the data set's ledger file"):
        evolve(replace(private, ledger_file=Path("withheld")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_private_data_that_are_no_source_are_refused_in_a_sentence() -> None:
    with pytest.raises(RecipeError, match=r"pe\.evolve: private is 'scans', a text: say where"):
        pe.evolve("scans", Shades(), epsilon=1, delta=1e-5, population=10, iterations=1)  # type: ignore[arg-type]
