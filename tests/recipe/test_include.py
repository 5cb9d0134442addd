"""Values of a recipe that stand in files of their own."""

import pytest
import yaml

from adapters.prompts import Prompts
from pe.errors import RecipeError
from pe.planning.forecast import differences
from pe.recipe.schema import Recipe
from tests.recipe.test_schema import GOOD

LINES = "\ufeffa cat\n\n  a cat, “grey”  \n# 7\n"
TEXTS = ["a cat", "a cat, “grey”", "# 7"]


def written(folder, prompts):
    path = folder / "project" / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        yaml.safe_dump(GOOD).replace("kind: glyphs", f"kind: sdapi\n  prompts: {prompts}")
    )
    return path


@pytest.mark.parametrize(
    ("name", "content", "prompts", "found"),
    [
        ("p.txt", LINES, "{a: !include p.txt, b: a dog}", {"a": TEXTS, "b": "a dog"}),
        (
            "below/p.yaml",
            "a: one\nb: [two, three]\n",
            "!include below/p.yaml",
            {"a": "one", "b": ["two", "three"]},
        ),
        (
            "p.json",
            '{"a": "\\ud83d\\udc08", "b": ["two"]}',
            "!include p.json",
            {"a": "🐈", "b": ["two"]},
        ),
    ],
)
def test_a_value_may_stand_in_a_file_and_the_stored_recipe_holds_it_itself(
    name, content, prompts, found, tmp_path
):
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="utf-8")
    recipe = Recipe.load(written(tmp_path, prompts))
    assert recipe.api.settings["prompts"] == found
    Prompts.of(recipe.api.settings["prompts"]).check(("a", "b"))
    file.unlink()
    for text in (recipe.dump(), recipe.dump_shareable()):
        (tmp_path / "stored.yaml").write_text(text, encoding="utf-8")
        assert Recipe.load(tmp_path / "stored.yaml").api.settings["prompts"] == found


def test_a_file_that_was_changed_makes_another_recipe_and_after_set_it_lies_in_this_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path, named = written(tmp_path, "x"), ("api.prompts=!include q.txt",)
    (tmp_path / "q.txt").write_text("a cat\n")
    before = Recipe.load(path, named)
    (tmp_path / "q.txt").write_text("a dog\n")
    assert differences(before, Recipe.load(path, named)) == ["api.prompts: ['a cat'] → ['a dog']"]
    (tmp_path / "q.txt").write_text("a mouse\n" * 1000)
    assert len(differences(before, Recipe.load(path, named))[0]) < 300


FILES = {
    "p.txt": "a cat\n",
    "more.yaml": "{a: !include p.txt}",
    "twice.yaml": "a: one\na: two\n",
    "deep.json": "[" * 100_000,
    "latin.txt": "a \xe9",
}


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (
            "!include ../p.txt",
            r"!include \.\./p\.txt: it leads out of .*project: put the file there, or in a folder",
        ),
        ("!include link.txt", r"!include link\.txt: it leads out of"),
        (
            "!include recipe",
            r"!include recipe: name a \.txt file, for a list of its lines, or a \.yaml or \.json "
            r"file",
        ),
        (
            "!include more.yaml",
            r"!include p\.txt: a file that is included includes no other: name both in the recipe",
        ),
        ("!include twice.yaml", r"twice\.yaml: a is given twice \(lines 1 and 2\)"),
        ("!include deep.json", r"deep\.json is nested too deep: write it flatter"),
        ("!include latin.txt", r"latin\.txt is not a list of lines: it is no text in UTF-8"),
    ],
)
def test_what_cannot_be_included_is_refused_in_a_sentence(prompts, said, tmp_path):
    path = written(tmp_path, prompts)
    (tmp_path / "p.txt").write_text("private\n")
    (path.parent / "link.txt").symlink_to(tmp_path / "p.txt")
    for name, content in FILES.items():
        (path.parent / name).write_text(content, encoding="latin-1")
    with pytest.raises(RecipeError, match=said):
        Recipe.load(path)
