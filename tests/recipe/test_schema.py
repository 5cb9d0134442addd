"""Recipes as they are read, refused and written."""

import json

import pytest
import yaml

import pe
from pe.errors import PluginError, RecipeError
from pe.plugins.specs import construct
from pe.recipe.reading import read_yaml, with_change
from pe.recipe.schema import Recipe

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
GOOD = {
    "private": {"kind": "folder", "path": "scans", "size": 32, "classes": ["a", "b"]},
    "api": {"kind": "glyphs"},
    "privacy": {"epsilon": 1, "delta": 1e-5},
    "evolution": {"iterations": 2, "population": 10},
}


def with_(**changes):
    """GOOD with `section__key=value` changed; None removes the key."""
    content = {section: dict(values) for section, values in GOOD.items()}
    for path, value in changes.items():
        section, _, key = path.partition("__")
        target = content.setdefault(section, {}) if key else content
        if value is None:
            target.pop(key or section)
        else:
            target[key or section] = value
    return content


@pytest.fixture
def file(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(GOOD).replace("delta: 1.0e-05", "delta: 1e-5")
    )
    return tmp_path / "recipe.yaml"


def test_a_recipe_reads_back_what_it_writes_every_default_and_none_included(file):
    recipe = Recipe.parse(with_(api={"kind": "glyphs", "fonts": None}), "here")
    stored = yaml.safe_load(recipe.dump())["evolution"]
    assert (
        stored["lookahead"] == recipe.evolution.lookahead == 0
    )  # so that no later default changes a run
    older = Recipe.parse(with_(evolution=stored | {"lookahead": 8}), "a run of before")
    assert older.evolution.lookahead == 8
    file.write_text(recipe.dump())
    assert Recipe.load(file) == recipe
    file.write_text(recipe.dump_shareable())
    assert Recipe.load(file).api.settings == {"fonts": None}


def test_exponents_without_a_point_are_numbers_and_set_changes_one_value(file):
    recipe = Recipe.load(
        file, ("privacy.epsilon=2.5", "evolution.degree=[0.5, 0.25]", "api.size=9")
    )
    assert (recipe.privacy.epsilon, recipe.privacy.delta, recipe.evolution.degree) == (
        2.5,
        1e-5,
        [0.5, 0.25],
    )
    assert recipe.api.settings == {"size": 9}


LENGTH = "degree has 1 entry, and iterations is 2: give degree one number, or 2 (one per"
NOT_ZERO = "initial_variations are made at the first degree, which is 0: set it above 0."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"evolution__iteratons": 3},
            "unknown key 'evolution.iteratons'; did you mean 'iterations'?",
        ),
        (
            {"privacy__epsilon": None},
            "privacy: give either epsilon or noise_multiplier, and not both",
        ),
        (
            {"privacy__delta": None},
            "'privacy.delta' is missing: δ, well below 1 / number of records (1e-6, say)",
        ),
        ({"privacy__epsilon": float("nan")}, "privacy.epsilon must be a finite number, not nan."),
        ({"privacy__schedule": [1, 2, 3]}, "schedule has 3 entries, and evolution.iterations is 2"),
        ({"evolution__degree": [0.5]}, LENGTH),
        (
            {"evolution__population": [10, 10]},
            "one number, or 3 (S_0 and one per iteration), or set iterations to 1.",
        ),
        (
            {"evolution__threshold": 1, "evolution__threshold_sigmas": 1},
            "give threshold or threshold_sigmas, not both",
        ),
        (
            {"evolution__population": [10, 10**12, 10]},
            "evolution.population.1 must be at most 10,000,000, not 1,000,",
        ),
        ({"evolution__initial_variations": 2, "evolution__degree": [0, 0.5]}, NOT_ZERO),
        (
            {"evolution__reuse_lookahead": True},
            "reuse_lookahead needs lookahead, which is 0 by default",
        ),
        ({"name": "my scans"}, "name: use the letters A-Z and a-z, digits, '.', '_' and '-' alone"),
        ({"api__kind": None}, "'api.kind' is missing"),
    ],
)
def test_a_wrong_recipe_ends_in_one_sentence(changes, sentence):
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(with_(**changes), "recipe.yaml")
    message = str(caught.value)
    assert message.startswith("recipe.yaml: ")
    assert sentence in message
    assert "\n" not in message


def test_a_kind_that_is_not_installed_is_answered_with_the_nearest_or_the_list():
    with pytest.raises(PluginError, match="Unknown source 'floppy'; known are 'dicom', 'folder'"):
        Recipe.parse(with_(private__kind="floppy"), "recipe.yaml")
    said = r"api 'pdp_diffusion': public\.kind 'foldr' is unknown; did you mean 'folder'\?"
    with pytest.raises(RecipeError, match=said):
        construct("pe.adapters", "pdp_diffusion", {"public": {"kind": "foldr"}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 1\n", "is not a mapping"),
        (
            "seed: 1\nname: a: b\n",
            r"is not YAML in line 2, column 8: mapping values are not allowed here\.$",
        ),
        ("a: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("a: \xe9", "is not YAML: it is no text in UTF-8"),
        (BOMB, r"its aliases stand for more than 1,000,000 values: write fewer of them"),
        ("a: " + "[" * 2000, "is nested too deep, or within itself: write it flatter"),
        (
            "privacy:\n  epsilon: 1\n  epsilon: 10\n",
            r": privacy\.epsilon is given twice \(lines 2 and 3\)",
        ),
        ("api: {classes: [{a: 1}, {b: 1, b: 2}]}", r": api\.classes\.1\.b is given twice"),
    ],
)
def test_what_is_no_recipe_is_refused(file, text, sentence):
    file.write_text(text, encoding="latin-1")
    with pytest.raises(RecipeError, match=sentence) as caught:
        Recipe.load(file)
    assert "\n" not in str(caught.value)
    assert "<unicode string>" not in str(caught.value)


@pytest.mark.parametrize("text", ["010", "-012", "0x1F", "1:30", "0b11"])
def test_a_number_that_yaml_would_change_is_refused(file, text):
    for content in (f"classes:\n- [a, {text}]\n", f"a: {{{text}: b}}\n"):
        file.write_text(content)
        with pytest.raises(
            RecipeError, match=rf"line \d: YAML reads {text} as -?\d+: .*leading zeros.* in quotes"
        ):
            read_yaml(file)
        file.write_text(content.replace(text, f"'{text}'"))
        assert text in str(read_yaml(file))
    with pytest.raises(RecipeError, match="in quotes"):
        with_change({}, f"private.classes=[{text}]")
    file.write_text("[0, -1, +2, 1_000, 08]")
    assert read_yaml(file) == [0, -1, 2, 1000, "08"]


def test_aliases_and_merges_are_not_taken_for_keys_given_twice(file):
    text = yaml.safe_dump(GOOD).replace(
        "api:\n  kind: glyphs", "api: &one\n  kind: glyphs\n  a: {<<: &b {c: 1}, c: 2}"
    )
    file.write_text(text + "embedding: *one\n")
    assert Recipe.load(file).embedding.settings == {"a": {"c": 2}}


def test_a_missing_file_and_a_wrong_change_are_named(file):
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        Recipe.load(file.with_name("none.yaml"))
    for change, sentence in (
        ("epsilon", r"not of the form a\.b=value"),
        ("evolution.degree=[0.5", r"--set evolution\.degree=\[0\.5 is not YAML in line 1"),
    ):
        with pytest.raises(RecipeError, match=sentence):
            Recipe.load(file, (change,))


def test_paths_are_taken_from_the_file_s_folder_and_those_of_the_command_line_from_the_current_one(
    tmp_path, monkeypatch
):
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", "/home/me")
    file, api = tmp_path / "project" / "recipe.yaml", {"kind": "public_images", "path": "../pool"}
    embedding = {"kind": "efficientnet_lite", "weights": "~/lite.pth"}
    file.write_text(yaml.safe_dump(with_(api=api, embedding=embedding)))
    recipe = Recipe.load(file)
    assert str(recipe.private.path) == f"{tmp_path}/project/scans"
    assert recipe.api.settings == {"path": f"{tmp_path}/pool"}
    assert recipe.embedding.settings == {"weights": "/home/me/lite.pth"}
    changed = Recipe.load(file, ("private.path=more", "api.path=/pool"))
    assert str(changed.private.path) == f"{tmp_path}/elsewhere/more"
    assert changed.api.settings == {"path": "/pool"}
    assert "path: withheld\n" in recipe.dump_shareable()
    with pytest.raises(
        RecipeError, match="'~nobody-of-this-name/x' begins with the home of no user"
    ):
        Recipe.load(file, ("private.path=~nobody-of-this-name/x",))


INNER = {"kind": "folder"}


@pytest.mark.parametrize(
    ("kind", "settings", "full"),
    [
        ("privimage", {"public": "pool.npz"}, {"public": "/project/pool.npz"}),
        (
            "privimage",
            {"public": INNER | {"path": "pool"}},
            {"public": INNER | {"path": "/project/pool"}},
        ),
        ("glyphs", {"fonts": "fonts"}, {"fonts": "/project/fonts"}),
        (
            "pixel_diffusion",
            {"model": "small"},
            {"model": "small"},
        ),  # a name, or a path: left alone
    ],
)
def test_what_is_a_path_follows_from_the_settings_that_a_plug_in_declares(
    kind, settings, full, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    content = with_(api={"kind": kind, **settings}, private=pe.ImageFolder("scans", size=8))
    recipe = Recipe.parse(content, "here")
    assert recipe.api.settings == json.loads(json.dumps(full).replace("/project", str(tmp_path)))
    assert recipe.private == pe.ImageFolder(tmp_path / "scans", size=8)
