import json
from pathlib import Path

import pytest
import yaml

import pe
from pe.errors import PluginError, RecipeError
from pe.plugins.specs import construct
from pe.recipe.reading import read_yaml, with_change
from pe.recipe.schema import Recipe

BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
MERGES = BOMB.replace("[x]", "{x: 1}").replace("[*", "{<<: [*").replace("]\n", "]}\n")
GOOD = {
    "private": {"kind": "folder", "path": "scans", "size": 32, "classes": ["a", "b"]},
    "api": {"kind": "glyphs"},
    "privacy": {"epsilon": 1, "delta": 1e-5},
    "evolution": {"iterations": 2, "population": 10},
}


def with_(**changes: object) -> dict[str, object]:
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


def test_a_recipe_reads_back_what_it_writes(tmp_path: Path) -> None:
    recipe = Recipe.parse(GOOD, "here")
    (tmp_path / "recipe.yaml").write_text(recipe.dump())
    assert Recipe.load(tmp_path / "recipe.yaml") == recipe


def test_there_is_no_lookahead_unless_the_recipe_gives_one_and_a_stored_one_states_it() -> None:
    recipe = Recipe.parse(GOOD, "here")
    assert recipe.evolution.lookahead == 0
    stored = yaml.safe_load(recipe.dump())["evolution"]
    assert stored["lookahead"] == 0  # so that no later default changes a run
    older = Recipe.parse(with_(evolution=stored | {"lookahead": 8}), "a run of before")
    assert older.evolution.lookahead == 8


def test_exponents_without_a_point_are_numbers(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD).replace("delta: 1.0e-05", "delta: 1e-5")
    assert "1e-5" in text
    (tmp_path / "recipe.yaml").write_text(text)
    assert Recipe.load(tmp_path / "recipe.yaml").privacy.delta == 1e-5


def test_set_changes_one_value(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(GOOD))
    recipe = Recipe.load(
        tmp_path / "recipe.yaml", ("privacy.epsilon=2.5", "evolution.degree=[0.5, 0.25]", "api.size=9")
    )
    assert recipe.privacy.epsilon == 2.5
    assert recipe.evolution.degree == [0.5, 0.25]
    assert recipe.api.settings == {"size": 9}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evolution__iteratons": 3}, "unknown key 'evolution.iteratons'; did you mean 'iterations'?"),
        ({"private__sise": 3}, "unknown key 'private.sise'; did you mean 'size'?"),
        ({"evoluton": {}}, "unknown key 'evoluton'; did you mean 'evolution'?"),
        ({"privacy__noise_multiplier": 2}, "privacy: give either epsilon or noise_multiplier, and not both"),
        ({"privacy__epsilon": None}, "privacy: give either epsilon or noise_multiplier, and not both"),
        ({"privacy__delta": None}, "'privacy.delta' is missing: δ, well below 1 / number of records (1e-6, say)"),
        ({"privacy__delta": 0}, "privacy.delta must be greater than 0, not 0."),
        ({"privacy__delta": 1}, "privacy.delta must be less than 1, not 1."),
        ({"privacy__epsilon": float("nan")}, "privacy.epsilon must be a finite number, not nan."),
        (
            {"evolution__degree": [0.5]},
            "degree has 1 entry, and iterations is 2: give degree one number, or 2 (one per",
        ),
        (
            {"evolution__population": [10, 10]},
            "population one number, or 3 (S_0 and one per iteration), or set iterations to 1.",
        ),
        ({"evolution__threshold": [1, 2, 3]}, "or set iterations to 3."),
        ({"evolution__degree": 1.5}, "evolution.degree must be at most 1, not 1.5."),
        ({"evolution__threshold": 1, "evolution__threshold_sigmas": 1}, "give threshold or threshold_sigmas, not both"),
        ({"evolution__population": 10**12}, "evolution.population must be at most 10,000,000, not 1,000,000,000,000."),
        ({"evolution__population": [10, 10**12, 10]}, "evolution.population.1 must be at most 10,000,000, not 1,000,"),
        ({"evolution__iterations": 10**9}, "evolution.iterations must be at most 10,000"),
        (
            {"evolution__iterations": 0, "evolution__degree": [0.5] * 6},
            "degree has 6 entries, and iterations is 0: give degree one number, or set iterations to 6.",
        ),
        ({"evolution__population": "ten"}, "evolution.population must be a whole number or a list, not 'ten'."),
        ({"evolution__population": [10, "ten", 10]}, "evolution.population.1 must be a whole number, not 'ten'."),
        (
            {"evolution__initial_variations": 2, "evolution__degree": [0, 0.5]},
            "initial_variations are made at degree v_1, which is 0: give a first degree above 0.",
        ),
        ({"evolution__reuse_lookahead": "maybe"}, "evolution.reuse_lookahead must be true or false, not 'maybe'."),
        (
            {"evolution__reuse_lookahead": True},
            "reuse_lookahead needs lookahead, which is 0 if it is not given: give it too, 4 (say).",
        ),
        (
            {"evolution__selection": "best"},
            "evolution.selection must be 'sample', 'systematic' or 'rank' or a list, not 'best'.",
        ),
        ({"privacy__delta": "1/n"}, "privacy.delta must be a number, not '1/n'."),
        ({"privacy": 3}, "privacy must be a mapping of keys to values, not 3."),
        ({"private__classes": "a, b"}, "private.classes: give a list of names or whole numbers (it is 'a, b')."),
        ({"name": "my scans"}, "name: use the letters A-Z and a-z, digits, '.', '_' and '-' alone"),
        ({"api__kind": None}, "'api.kind' is missing"),
        ({"private": None}, "'private' is missing"),
    ],
)
def test_a_wrong_recipe_ends_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(with_(**changes), "recipe.yaml")
    message = str(caught.value)
    assert message.startswith("recipe.yaml: ")
    assert sentence in message
    assert "\n" not in message


def test_a_kind_that_is_not_installed_is_answered_with_the_nearest_or_the_list() -> None:
    with pytest.raises(PluginError, match="Unknown source 'floppy'; known are 'dicom', 'folder'"):
        Recipe.parse(with_(private__kind="floppy"), "recipe.yaml")
    with pytest.raises(PluginError, match=r"Unknown source 'foldr'; did you mean 'folder'\?"):
        Recipe.parse(with_(private__kind="foldr"), "recipe.yaml")
    with pytest.raises(
        RecipeError, match=r"api 'pdp_diffusion': public\.kind 'foldr' is unknown; did you mean 'folder'\?"
    ):
        construct("pe.adapters", "pdp_diffusion", {"public": {"kind": "foldr"}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 1\n", "is not a mapping"),
        ("a: [", r"is not YAML in line 1, column 5: expected the node content"),
        ("seed: 1\nname: a: b\n", r"is not YAML in line 2, column 8: mapping values are not allowed here\.$"),
        ("a: !!python/object:os.system x", r"is not YAML in line 1, column 4: could not determine a constructor"),
        ("a: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("a: \x01", "is not YAML: unacceptable character"),
        (BOMB, r"its aliases stand for more than 1,000,000 values: write fewer of them"),
        (MERGES, "its aliases stand for more than 1,000,000 values"),
        ("a: " + "[" * 2000, "is nested too deep, or within itself: write it flatter"),
        ("a: " + "{b: " * 2000 + "}" * 2000, "is nested too deep"),
        ("a: &a [*a]", "is nested too deep, or within itself"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=sentence) as caught:
        Recipe.load(tmp_path / "recipe.yaml")
    assert "\n" not in str(caught.value)
    assert "<unicode string>" not in str(caught.value)


@pytest.mark.parametrize("text", ["010", "007", "-012", "0x1F", "1:30", "0b11"])
def test_a_number_that_yaml_would_change_is_refused(tmp_path: Path, text: str) -> None:
    for content in (f"classes:\n- [a, {text}]\n", f"a: {{{text}: b}}\n"):
        (tmp_path / "a.yaml").write_text(content)
        with pytest.raises(RecipeError, match=rf"line \d: YAML reads {text} as -?\d+: .*leading zeros.* in quotes"):
            read_yaml(tmp_path / "a.yaml")
        (tmp_path / "a.yaml").write_text(content.replace(text, f"'{text}'"))
        assert text in str(read_yaml(tmp_path / "a.yaml"))
    with pytest.raises(RecipeError, match="in quotes"):
        with_change({}, f"private.classes=[{text}]")
    (tmp_path / "a.yaml").write_text("[0, -1, +2, 1_000, 08]")
    assert read_yaml(tmp_path / "a.yaml") == [0, -1, 2, 1000, "08"]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(RecipeError, match=r"x\.png is not YAML: it is no text in UTF-8"):
        Recipe.load(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "privacy:\n  epsilon: 1\n  delta: 1e-5\n  epsilon: 10\n",
            r"privacy\.epsilon is given twice \(lines 2 and 4\)",
        ),
        ("seed: 1\nname: x\nseed: 1\n", r"seed is given twice \(lines 1 and 3\)"),
        ("api: {kind: glyphs, kind: flat}", r"api\.kind is given twice \(lines 1 and 1\)"),
        ("api: {classes: [{a: 1}, {b: 1, b: 2}]}", r"api\.classes\.1\.b is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=rf"recipe\.yaml: {sentence}"):
        Recipe.load(tmp_path / "recipe.yaml")


def test_aliases_and_merges_are_not_taken_for_keys_given_twice(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD).replace("api:\n  kind: glyphs", "api: &one\n  kind: glyphs\n  a: {<<: &b {c: 1}, c: 2}")
    (tmp_path / "recipe.yaml").write_text(text + "embedding: *one\n")
    assert Recipe.load(tmp_path / "recipe.yaml").embedding.settings == {"a": {"c": 2}}


def test_a_missing_file_and_a_wrong_change_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        Recipe.load(tmp_path / "none.yaml")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(RecipeError, match=r"not of the form a\.b=value"):
        Recipe.load(tmp_path / "recipe.yaml", ("epsilon",))
    with pytest.raises(RecipeError, match=r"--set evolution\.degree=\[0\.5 is not YAML in line 1"):
        Recipe.load(tmp_path / "recipe.yaml", ("evolution.degree=[0.5",))
    with pytest.raises(RecipeError, match=r"--set api=\{kind: a, kind: b\}: kind is given twice"):
        Recipe.load(tmp_path / "recipe.yaml", ("api={kind: a, kind: b}",))


def test_a_plug_in_s_none_is_kept_when_a_recipe_is_written(tmp_path: Path) -> None:
    recipe = Recipe.parse(with_(api={"kind": "glyphs", "fonts": None}), "here")
    for text in (recipe.dump(), recipe.dump_shareable()):
        (tmp_path / "recipe.yaml").write_text(text)
        assert Recipe.load(tmp_path / "recipe.yaml").api.settings == {"fonts": None}


def test_paths_are_taken_from_the_file_s_folder_and_those_of_the_command_line_from_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "project" / "recipe.yaml"
    api = {"kind": "public_images", "path": "../pool"}
    embedding = {"kind": "efficientnet_lite", "weights": "~/lite.pth"}
    file.write_text(yaml.safe_dump(with_(api=api, embedding=embedding, private__ledger_file="/books/scans.json")))
    recipe = Recipe.load(file)
    assert str(recipe.private.path) == f"{tmp_path}/project/scans"
    assert str(recipe.private.ledger_file) == "/books/scans.json"
    assert recipe.api.settings == {"path": f"{tmp_path}/pool"}
    assert recipe.embedding.settings == {"weights": "/home/me/lite.pth"}
    changed = Recipe.load(file, ("private.path=more", "api.path=/pool"))
    assert str(changed.private.path) == f"{tmp_path}/elsewhere/more"
    assert changed.api.settings == {"path": "/pool"}
    (tmp_path / "run.yaml").write_text(recipe.dump_shareable())
    assert str(Recipe.load(tmp_path / "run.yaml").private.path) == "withheld"
    with pytest.raises(RecipeError, match="'~nobody-of-this-name/x' begins with the home of no user"):
        Recipe.load(file, ("private.path=~nobody-of-this-name/x",))


@pytest.mark.parametrize(
    ("api", "full"),
    [
        ({"kind": "privimage", "public": "pool.npz"}, {"public": "/project/pool.npz"}),
        (
            {"kind": "privimage", "public": {"kind": "folder", "path": "pool"}},
            {"public": {"kind": "folder", "path": "/project/pool"}},
        ),
        ({"kind": "trained", "path": "runs/a"}, {"path": "/project/runs/a"}),
        ({"kind": "glyphs", "fonts": "fonts"}, {"fonts": "/project/fonts"}),
        ({"kind": "glyphs", "fonts": "matplotlib"}, {"fonts": "matplotlib"}),
        ({"kind": "pixel_diffusion", "model": "small"}, {"model": "small"}),  # a name, or a path: left alone
        ({"kind": "unheard_of", "path": "x"}, {"path": "x"}),
    ],
)
def test_what_is_a_path_follows_from_the_settings_that_a_plug_in_declares(
    api: dict[str, object], full: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.parse(with_(api=api, private=pe.ImageFolder("scans", size=8)), "here")
    assert recipe.api.settings == json.loads(json.dumps(full).replace("/project", str(tmp_path)))
    assert recipe.private == pe.ImageFolder(tmp_path / "scans", size=8)
