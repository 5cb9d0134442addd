"""Glyphs: drawn text whose every image is a function of its seed and its condition alone."""

import numpy as np
import pytest

from adapters.glyphs import Glyphs, find_fonts
from pe.data.fonts import draws
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def glyphs():
    return Glyphs()


def seeds(count, start=0):
    return np.random.default_rng(start).integers(0, 2**64, count, dtype=np.uint64)


def random(api, labels, *, start=0):
    return api.random_api(RandomRequest(tuple(labels), seeds(len(labels), start)))


def vary(api, labels, parents, degree, *, start=1):
    drawn_with = seeds(len(labels), start)
    return api.variation_api(
        VariationRequest(parents.samples, tuple(labels), parents.conditions, drawn_with, degree)
    )


def test_an_image_does_not_depend_on_the_chunk_it_came_in(glyphs):
    labels, numbers = tuple("0123456789" * 8), seeds(80)
    whole = glyphs.random_api(RandomRequest(labels, numbers))
    varied = glyphs.variation_api(
        VariationRequest(whole.samples, labels, whole.conditions, numbers, 0.4)
    )
    for part in (slice(0, 63), slice(63, None)):  # of blocks of 64
        new = glyphs.random_api(RandomRequest(labels[part], numbers[part]))
        again = glyphs.variation_api(
            VariationRequest(new.samples, labels[part], new.conditions, numbers[part], 0.4)
        )
        assert new.samples.pixels.tobytes() == whole.samples.pixels[part].tobytes()
        assert again.samples.pixels.tobytes() == varied.samples.pixels[part].tobytes()
        for name in varied.conditions:
            assert (again.conditions[name] == varied.conditions[name][part]).all()


def test_the_font_and_the_text_change_with_probability_degree_squared():
    api, labels = Glyphs(texts={"v": ["a", "e", "i", "o", "u"]}, size=12), "v" * 2000
    parents = random(api, labels)
    varied = vary(api, labels, parents, 0.5)
    for name in ("font", "text"):
        kinds = len(np.unique(parents.conditions[name]))
        changed = (varied.conditions[name] != parents.conditions[name]).mean()
        assert changed == pytest.approx(0.25 * (1 - 1 / kinds), abs=0.03)


def test_variations_keep_the_distribution_of_the_parameters(glyphs):
    labels = "3" * 2000
    answer = random(glyphs, labels)
    for start in range(5):
        answer = vary(glyphs, labels, answer, 0.6, start=start)
    scores = answer.conditions["parameters"]
    assert np.abs(scores.mean(axis=0)).max() < 0.12
    assert np.abs(scores.std(axis=0) - 1).max() < 0.08


def test_the_label_names_the_text_and_texts_overrules_it():
    api = Glyphs(texts={"vowel": ["a", "e"], "word": ["pi"]})
    answer = api.random_api(RandomRequest(("vowel",) * 50 + ("word", "z"), seeds(52)))
    assert set(answer.conditions["text"][:50]) == {"a", "e"}
    assert list(answer.conditions["text"][50:]) == ["pi", "z"]


def test_strokes_have_the_width_asked_for(tmp_path):
    (tmp_path / "sans.ttf").write_bytes(find_fonts("matplotlib")["DejaVuSans"].read_bytes())
    for width in (0.06, 0.12):
        plain = {
            "rotation": (0.0, 0.0),
            "slant": (0.0, 0.0),
            "width": (1.0, 1.0),
            "height": (1.0, 1.0),
            "warp": 0.0,
        }
        api = Glyphs(
            size=100,
            scale=(0.8, 0.8),
            stroke=(width, width),
            shift=(0.0, 0.0),
            fonts=str(tmp_path),
            **plain,
        )
        drawn = random(api, "O").samples.pixels[:, 50, :, 0] / 255.0
        assert np.median(drawn.sum(axis=1) / 2) == pytest.approx(
            100 * width, rel=0.15
        )  # "O" is cut twice


def test_symbol_and_placeholder_fonts_are_left_out():
    able = {name for name, path in find_fonts("matplotlib").items() if draws(path, "0123456789")}
    assert {"DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmr10", "cmtt10"} <= able
    assert not able & {
        "cmex10",
        "cmsy10",
        "LastResortHE-Regular",
        "STIXNonUni",
        "DejaVuSansDisplay",
    }


def test_a_text_that_no_font_draws_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "symbols.ttf").write_bytes(find_fonts("matplotlib")["cmsy10"].read_bytes())
    with pytest.raises(RecipeError, match="No font of 1 draws the text '7' of label '7'"):
        random(Glyphs(fonts=str(tmp_path)), "7")
    with pytest.raises(RecipeError, match="'\u4e00' of label 'one'"):
        Glyphs(texts={"one": ["\u4e00"]})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scale": (0.0, 1.0)}, "scale.0 must be greater than 0"),
        ({"slant": (0.0, float("nan"))}, "slant.1 must be a finite number"),
        ({"texts": {"a": []}}, "`texts.a` is empty"),
        ({"fonts": "missing"}, "there is no folder"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(RecipeError, match=named):
        Glyphs(**settings)


def test_parents_of_another_generator_are_refused(glyphs):
    parents = random(glyphs, "7")
    with pytest.raises(APIError, match="carry no 'text'"):
        glyphs.variation_api(VariationRequest(parents.samples, ("7",), Conditions(), seeds(1), 0.5))
    strange = Conditions(dict(parents.conditions) | {"font": np.array(["Nobody"])})
    with pytest.raises(APIError, match="The font 'Nobody' of a parent"):
        glyphs.variation_api(VariationRequest(parents.samples, ("7",), strange, seeds(1), 0.5))
