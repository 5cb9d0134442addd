"""Glyphs: drawn text whose every image is a function of its seed and its condition alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adapters.glyphs import Glyphs, find_fonts
from pe.data.fonts import draws
from pe.data.images import Images
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
    return api.variation_api(VariationRequest(parents.samples, tuple(labels), parents.conditions, drawn_with, degree))


def pixels(answer):
    assert isinstance(answer.samples, Images)
    return answer.samples.pixels


@pytest.mark.parametrize("cut", [63, 65])  # of blocks of 64
def test_an_image_does_not_depend_on_the_chunk_it_came_in(glyphs, cut):
    labels, numbers = tuple("0123456789" * 20), seeds(200)
    whole = glyphs.random_api(RandomRequest(labels, numbers))
    parts = [
        glyphs.random_api(RandomRequest(labels[part], numbers[part])) for part in (slice(0, cut), slice(cut, None))
    ]
    assert np.concatenate([pixels(part) for part in parts]).tobytes() == pixels(whole).tobytes()
    varied = glyphs.variation_api(VariationRequest(whole.samples, labels, whole.conditions, numbers, 0.4))
    for part, before in zip((slice(0, cut), slice(cut, None)), parts, strict=True):
        again = glyphs.variation_api(
            VariationRequest(before.samples, labels[part], before.conditions, numbers[part], 0.4)
        )
        assert pixels(again).tobytes() == pixels(varied)[part].tobytes()
        for name in varied.conditions:
            assert (again.conditions[name] == varied.conditions[name][part]).all()


def test_degree_1_forgets_the_parents(glyphs):
    labels = "5" * 100
    one, other = (vary(glyphs, labels, random(glyphs, labels, start=start), 1.0) for start in (10, 11))
    assert pixels(one).tobytes() == pixels(other).tobytes()


def test_the_font_changes_with_probability_degree_squared(glyphs):
    labels = "3" * 4000
    parents = random(glyphs, labels)
    fonts = len(np.unique(parents.conditions["font"]))
    changed = (vary(glyphs, labels, parents, 0.5).conditions["font"] != parents.conditions["font"]).mean()
    assert changed == pytest.approx(0.25 * (1 - 1 / fonts), abs=0.03)


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


def test_a_variation_draws_the_parents_text_unless_the_degree_changes_it():
    api = Glyphs(texts={"vowel": ["a", "e", "i", "o", "u"]})
    labels = ("vowel",) * 1000
    parents = api.random_api(RandomRequest(labels, seeds(1000)))
    varied = api.variation_api(VariationRequest(parents.samples, labels, parents.conditions, seeds(1000, 1), 0.3))
    changed = (varied.conditions["text"] != parents.conditions["text"]).mean()
    assert changed == pytest.approx(0.09 * 0.8, abs=0.03)


def test_strokes_have_the_width_asked_for(tmp_path):
    (tmp_path / "sans.ttf").write_bytes(find_fonts("matplotlib")["DejaVuSans"].read_bytes())
    for width in (0.06, 0.12):
        plain = {"rotation": (0.0, 0.0), "slant": (0.0, 0.0), "width": (1.0, 1.0), "height": (1.0, 1.0), "warp": 0.0}
        api = Glyphs(size=100, scale=(0.8, 0.8), stroke=(width, width), shift=(0.0, 0.0), fonts=str(tmp_path), **plain)
        drawn = pixels(random(api, "O"))[:, 50, :, 0] / 255.0
        assert np.median(drawn.sum(axis=1) / 2) == pytest.approx(100 * width, rel=0.15)  # "O" is cut twice


def test_symbol_and_placeholder_fonts_are_left_out(glyphs):
    files = find_fonts("matplotlib")
    able = {name for name, path in files.items() if draws(path, "0123456789")}
    assert {"DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmr10", "cmtt10"} <= able
    assert not able & {
        "cmex10",
        "cmsy10",
        "LastResortHE-Regular",
        "STIXSizOneSymReg",
        "STIXNonUni",
        "DejaVuSansDisplay",
    }
    assert set(random(glyphs, "7" * 3000).conditions["font"]) == {
        name for name, path in files.items() if draws(path, "7")
    }


def test_fonts_come_from_a_folder(tmp_path):
    source = find_fonts("matplotlib")["DejaVuSans"]
    (tmp_path / "one.ttf").write_bytes(source.read_bytes())
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    (tmp_path / "notes.txt").write_text("no font")
    assert set(random(Glyphs(fonts=str(tmp_path)), "77").conditions["font"]) == {"one"}


def test_a_text_that_no_font_draws_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "symbols.ttf").write_bytes(find_fonts("matplotlib")["cmsy10"].read_bytes())
    with pytest.raises(RecipeError, match="No font of 1 draws the text '7' of label '7'"):
        random(Glyphs(fonts=str(tmp_path)), "7")
    with pytest.raises(RecipeError, match="'\u4e00' of label 'one'"):
        Glyphs(texts={"one": ["\u4e00"]})
    with pytest.raises(RecipeError, match="of label ''"):
        Glyphs().random_api(RandomRequest(("",), seeds(1)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 4}, "size is 4"),
        ({"channels": 2}, "channels is 2"),
        ({"scale": (0.0, 1.0)}, "scale is"),
        ({"stroke": (-0.1, 0.1)}, "stroke is"),
        ({"rotation": (10.0, -10.0)}, "rotation is"),
        ({"slant": (0.0, float("nan"))}, "slant is"),
        ({"warp": -0.1}, "warp is"),
        ({"texts": {"a": []}}, "texts names none for label 'a'"),
        ({"fonts": "tests/adapters"}, "holds no"),
        ({"fonts": "missing"}, "there is no folder"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(RecipeError, match=named):
        Glyphs(**settings)


def test_parents_of_another_generator_are_refused(glyphs):
    parents = random(glyphs, "7")
    columns = dict(parents.conditions.columns)

    def varied_with(conditions):
        return glyphs.variation_api(VariationRequest(parents.samples, ("7",), conditions, seeds(1), 0.5))

    with pytest.raises(APIError, match="carry no 'text'"):
        varied_with(Conditions())
    with pytest.raises(APIError, match="The font 'Nobody' of a parent"):
        varied_with(Conditions(columns | {"font": np.array(["Nobody"])}))
    with pytest.raises(APIError, match="parameters of shape"):
        varied_with(Conditions(columns | {"parameters": np.zeros((1, 3), np.float32)}))


def test_importing_it_loads_no_matplotlib():
    code = "import sys, adapters.glyphs; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == ["False", "False"]
