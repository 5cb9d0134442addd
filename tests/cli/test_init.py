"""`pe init` as a user types it: what it asks, what it refuses, and that nothing stems from a record
unsaid.
"""

import json
import re

import numpy as np
import pytest

from pe.data.samples import modality
from pe.planning.parts import set_up
from pe.plugins.protocols import class_default, info_of
from pe.plugins.registry import load, plugins
from pe.recipe.schema import Recipe
from pe.recipe.starting import ImageStart, Start, TableStart, TextStart, starter_recipe
from tests.cli.typed import assert_one_sentence, pe
from tests.private.records import FILES, png, write
from tests.private.test_forms import FEW, FORMS
from tests.private.test_texts import WRITERS

STATED = ("--privacy-unit", "record", "--declared-size", 500)
RECORDS = (*STATED, "--public", "public")
REVIEWS = {
    "id": list(range(24)),
    "review": [f"The soup was {('cold', 'hot')[i % 2]} at table {i}." for i in range(24)],
    "topic": ["bad", "good"] * 12,
    "author": [f"a{i // 4}" for i in range(24)],
}


def reviews(place):
    if place.suffix in WRITERS:
        WRITERS[place.suffix](place, REVIEWS)
    else:
        for i, (label, text) in enumerate(zip(REVIEWS["topic"], REVIEWS["review"], strict=True)):
            write(place / label / f"{i}.txt", text.encode())


def planned(folder, recipe):
    return json.loads(pe("plan", recipe, "--json", cwd=folder).stdout)["warnings"]


@pytest.mark.parametrize(("form", "where"), [("npz", "data/a.npz"), ("parquet", "data")])
def test_images_are_seen_and_the_recipe_is_planned_from_another_folder(tmp_path, form, where):
    (tmp_path / "data").mkdir()
    FORMS[form](tmp_path / "data", *FEW)
    for name in ("cat", "dog"):
        write(tmp_path / "public" / name / "0.png", FILES[0])
    columns = "yes\nyes\n" if form == "parquet" else ""
    typed = f"{columns}yes\nwho\n4000\n300\npublic\n\nyes\nyes\n"  # Enter alone declares nothing
    result = pe("init", where, cwd=tmp_path, typed=typed)
    assert result.returncode == 0, result.stderr
    assert (
        "Classes, with commas; - for none (proposed: cat,dog; type yes or another value):"
        in result.stdout
    )
    assert "public has images of every class" in result.stdout
    assert (
        "Column of labels; - for none (proposed: label; type yes or another value)" in result.stdout
    ) == bool(columns)
    assert "7" not in result.stdout  # never the real number of records
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    private, size = recipe.private, {"size": 8, "channels": 3}
    assert (private.kind, private.class_names, private.privacy_unit) == (
        form,
        ("cat", "dog"),
        "who",
    )
    assert (private.declared_size, private.declared_units, private.shape) == (4000, 300, (8, 8, 3))
    assert recipe.api.settings == {"path": str(tmp_path / "public"), "by_label": True} | size
    assert recipe.evolution.is_complete is False
    text = (tmp_path / "recipe.yaml").read_text()
    assert f"path: {where}\n" in text
    assert str(tmp_path) not in text
    (tmp_path / "elsewhere").mkdir()
    assert not [
        line
        for line in planned(tmp_path / "elsewhere", "../recipe.yaml")
        if "would not start" in line
    ]


@pytest.mark.parametrize("name", ["reviews", "reviews.jsonl"])
def test_texts_are_seen_and_the_recipe_is_planned(tmp_path, name):
    reviews(tmp_path / name)
    reviews(tmp_path / "public.jsonl")
    columns = "yes\nyes\n" if "." in name else ""
    result = pe("init", name, cwd=tmp_path, typed=f"{columns}yes\nrecord\n30\npublic.jsonl\nyes\n")
    assert result.returncode == 0, result.stderr
    assert (
        "twice the median of 32 texts at most (proposed: 250; type yes or another value):"
        in result.stdout
    )
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    kind = "text_table" if columns else "text_folder"
    assert (recipe.private.kind, recipe.private.class_names) == (kind, ("bad", "good"))
    settings = {
        "path": str(tmp_path / "public.jsonl"),
        "text_column": "review",
        "label_column": "topic",
    }
    assert recipe.api.settings == settings | {"longest": 250, "by_label": True}
    assert (recipe.embedding.kind, recipe.embedding.settings["text_column"]) == (
        "wordllama",
        "review",
    )
    assert "image" not in result.stdout + (tmp_path / "recipe.yaml").read_text()
    assert not [line for line in planned(tmp_path, "recipe.yaml") if "would not start" in line]


def test_it_asks_nothing_that_its_flags_answer(scans):
    flags = [*RECORDS, "--classes", "", "--size", 48, "--channels", 1, "--out", "r.yaml"]
    told = pe("init", "scans", *flags, cwd=scans.parent)
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith(
        "Put public images into public before the run. The folder is empty.\nnext: pe plan r.yaml\n"
    )
    recipe = Recipe.load(scans.parent / "r.yaml")
    assert (recipe.private.classes, recipe.private.shape) == ((), (48, 48, 1))
    assert recipe.privacy.delta == 1e-5  # at most 1 / (100 n)
    text = (scans.parent / "r.yaml").read_text()
    assert "here n·delta = 0.005" in text
    assert "by_label" not in text
    assert_one_sentence(pe("init", "scans", *flags, cwd=scans.parent), "r.yaml exists already")


@pytest.mark.parametrize(
    ("where", "flags", "sentence"),
    [
        (
            "a.jsonl",
            ["--size", 32],
            "`--size` does not apply to texts, which a.jsonl holds. Leave it out",
        ),
        ("a.jsonl", [*STATED, "--public", "a.pdf"], "a.pdf is no file of public texts"),
        (
            "a.jsonl",
            [*STATED, "--public", "a.jsonl"],
            "The public texts a.jsonl are the private records a.jsonl",
        ),
        (
            "a.jsonl",
            ["--api", "openai_images", *STATED],
            "it makes images, but the private records are texts. Name",
        ),
        (
            "scans",
            ["--api", "sdapi", "--public", "p"],
            "`--public` is for a generator that draws from a pool",
        ),
        (
            "scans",
            ["--declared-units", 4, *STATED],
            "`--declared-units` needs a `--privacy-unit` other than record",
        ),
    ],
)
def test_what_cannot_be_is_refused(scans, where, flags, sentence):
    root = scans.parent
    write(root / "a.pdf")
    reviews(root / "a.jsonl")
    result = pe("init", where, "--classes", "", *flags, cwd=root)
    assert result.returncode == 2
    assert re.search(rf"^(pe|Error): .*{sentence}.*\n$", result.stderr, re.M), result.stderr
    assert not (root / "recipe.yaml").exists()


STARTERS = [
    kind
    for kind in plugins("pe.adapters")
    if class_default(load("pe.adapters", kind), "starter") is not None
]
COMMENTED = re.compile(r"^( *)# (?=[a-z_]+: )", re.M)


@pytest.mark.parametrize("kind", STARTERS)
def test_each_key_in_a_comment_is_one_once_the_comment_is_taken_off(tmp_path, kind):
    noun = modality(info_of(load("pe.adapters", kind)).modality).noun
    begin = {"images": ImageStart(64, 1), "texts": TextStart(250), "rows": TableStart("c.yaml")}[
        noun
    ]
    write(tmp_path / "c.yaml", b"age: {kind: integer, min: 0, max: 110}")
    (tmp_path / "public.jsonl").write_text('{"text": "Some words."}\n')
    kinds = {"images": "folder", "texts": "text_folder", "rows": "table"}
    source = {"kind": kinds[noun], "path": str(tmp_path / "private")}
    api, embedding = begin.generator(kind, ["a"]), begin.embedding(tmp_path, None).lines
    text = starter_recipe(
        Start(noun, source, ["a"], "record", "", 500, None, begin.shape, api, embedding)
    )

    def read(text):
        recipe = Recipe.load(write(tmp_path / "r.yaml", text.encode()))
        for group, spec in (("pe.adapters", recipe.api), ("pe.embeddings", recipe.embedding)):
            built, why = set_up(group, spec)
            assert built is not None, why
        return recipe

    before = read(text)
    for found in COMMENTED.finditer(text):
        assert read(text[: found.start()] + found[1] + text[found.end() :]) != before, text[
            found.start() :
        ]


THREE = [
    (60, True, "A short text.", "a")
] * 3  # an image's side, and if it is grey; a text; a label
LARGER, COLOUR = (300, True, "A short text.", "a"), (64, False, "A short text.", "a")
LONGER, CLASS = (60, True, "x" * 900, "a"), (60, True, "A short text.", "rare")


def images_in(form):
    def write_all(place, records):
        files = [
            png(np.full((side, side, 3), [9, 9, 9 if grey else 99], np.uint8))
            for side, grey, *_ in records
        ]
        labels = [label for *_, label in records]
        for i, (label, file) in enumerate(
            zip(labels, files, strict=True) if form == "folder" else ()
        ):
            write(place / label / f"{i}.png", file)
        if form != "folder":
            FORMS[form](place, files, np.zeros((len(records), 8, 8), np.uint8), labels, labels)

    return write_all


def table(place, records):
    _, _, texts, labels = zip(*records, strict=True)
    WRITERS[".csv"](
        place / "a.csv",
        {"note": ["A note of some words."] * len(texts), "said": texts, "label": labels},
    )


def lines(place, records):
    """The last record comes first, and has keys that the others lack."""
    rows = [
        {"said": text, "class" if i < len(THREE) else "label": label}
        for i, (*_, text, label) in enumerate(records)
    ]
    write(place / "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows[::-1]).encode())


@pytest.mark.parametrize(
    ("name", "write_all", "more", "typed"),
    [
        ("data", images_in("folder"), LARGER, ""),
        ("data", images_in("folder"), COLOUR, "\n" * 20),  # Enter says nothing
        ("data", table, LONGER, ""),
        ("data", lines, CLASS, "\n" * 20),
        ("data", images_in("tar"), CLASS, ""),
        ("data", images_in("parquet"), LARGER, ""),
        ("data/a.npz", images_in("npz"), CLASS, ""),
    ],
)
def test_one_record_more_changes_nothing_that_is_written_without_being_told(
    tmp_path, name, write_all, more, typed
):
    recipes = []
    for folder, given in (("without", THREE), ("with", [*THREE, more])):
        (tmp_path / folder / "data").mkdir(parents=True)
        write_all(tmp_path / folder / "data", given)
        told = pe("init", name, *RECORDS, cwd=tmp_path / folder, typed=typed)
        assert told.returncode == 0, told.stderr
        assert "Still to declare in recipe.yaml: " in told.stdout
        recipes.append((tmp_path / folder / "recipe.yaml").read_text())
    assert recipes[0] == recipes[1]
    with pytest.raises(Exception, match=r"must be .*, not empty: declare it"):
        Recipe.load(tmp_path / "with" / "recipe.yaml")


PATIENTS = "patient,age,sex,seen,out\na,34,f,2020-02-03,home\nb,61,m,,dead\n"
STAY = ("--label-column", "out", "--classes", "home,dead", "--declared-size", 100)
UNIT = ("--privacy-unit", "patient", "--declared-units", 40)
ANSWERS = (
    "integer\n0\n110\n\nn\n-\ndate\n2021-01-01\n2020-01-01\n\nn\n2020-01-01\n2021-01-01\n\ny\n"
)
YES = "yes\n" * 3


@pytest.mark.parametrize("flags", [["--table"], ["--columns", "c.yaml"], ["--look"]])
def test_a_table_is_declared_column_by_column_and_its_recipe_runs(tmp_path, flags):
    write(tmp_path / "a.csv", PATIENTS.encode())
    declared = {
        "age": {"kind": "integer", "min": 0, "max": 110},
        "sex": {"kind": "category", "values": ["f", "m"]},
    }
    write(tmp_path / "c.yaml", json.dumps(declared).encode())
    typed = {"--table": ANSWERS, "--look": YES}.get(flags[0], "")
    result = pe("init", "a.csv", *flags, *STAY, *UNIT, cwd=tmp_path, typed=typed)
    assert result.returncode == 0, result.stderr
    assert ("min: 30, max: 70" in result.stdout) == ("--look" in flags)
    if flags == ["--table"]:
        assert "Again, since `min` is larger than `max`" in result.stdout
    columns = Recipe.load(tmp_path / "recipe.yaml").private.columns
    assert [*columns] == {
        "--table": ["age", "seen"],
        "--columns": [*declared],
        "--look": ["age", "sex", "seen"],
    }[flags[0]]
    assert columns["age"].max == (70 if "--look" in flags else 110)
    assert pe("run", "recipe.yaml", "--out", "run", "--quiet", cwd=tmp_path).returncode == 0
    if "--columns" not in flags:
        assert ("has read the private records" in (tmp_path / "columns.yaml").read_text()) == (
            "--look" in flags
        )


def test_a_table_s_cells_are_not_looked_at(tmp_path):
    written = []
    for name, more in (("without", ""), ("with", "c,999,x,1066-10-14,gone\n")):
        write(tmp_path / name / "a.csv", (PATIENTS + more).encode())
        answer = pe("init", "a.csv", "--table", "--declared-size", 100, *UNIT, cwd=tmp_path / name)
        assert answer.returncode == 0, answer.stderr
        written.append(
            (
                answer.stdout,
                *((tmp_path / name / f"{one}.yaml").read_text() for one in ("recipe", "columns")),
            )
        )
    assert written[0] == written[1]
    assert "age:                         # declare this\n" in written[0][2]
    assert_one_sentence(
        pe("plan", "recipe.yaml", cwd=tmp_path / "with"), r"must be .*, not empty: declare it"
    )
    refused = pe(
        "init", "a.csv", *STAY, "--privacy-unit", "record", "--out", "r.yaml", cwd=tmp_path / "with"
    )
    assert "has no column of words" in refused.stderr
    assert "add --table" in refused.stderr


def declared_by_looking(folder, cells, answers=""):
    """What `pe init --look` prints and writes for a table of these rows."""
    write(folder / "a.csv", cells.encode())
    result = pe("init", "a.csv", "--look", "--label-column", "", *STATED, cwd=folder, typed=answers)
    assert result.returncode == 0, result.stderr
    return (
        result.stdout,
        (folder / "columns.yaml").read_text(),
        (folder / "recipe.yaml").read_text(),
    )


RANDOM = "pseudonym,age,visit,score\n" + "".join(
    f"p{i},{20 + i},2020-01-{i % 28 + 1:02},{i / 10}\n" for i in range(50)
)
ODD = [
    "p99,999,1066-10-14,-77.125\n",
    "rare-HIV,3,,\n",
    "x,,2999-01-01,1e9\n",
    "a,b,c,d\n",
    "NA,NA,NA,NA\n",
]


@pytest.mark.parametrize("more", ODD)
@pytest.mark.parametrize("answers", ["", "-\ninteger\n0\n110\n\nn\n"])
def test_what_nobody_confirms_is_on_the_terminal_alone(tmp_path, more, answers):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    _, *without = declared_by_looking(tmp_path / "without", RANDOM, answers)
    told, *with_it = declared_by_looking(tmp_path / "with", RANDOM + more, answers)
    assert with_it == without
    assert "proposed" in told
    assert "p1" not in without[0]


def test_no_proposal_names_an_extreme(tmp_path):
    _, columns, _ = declared_by_looking(tmp_path, RANDOM, "-\nyes\nyes\nyes\n")
    assert "age: {kind: integer, min: 10, max: 70}" in columns
    assert "visit: {kind: date, min: '2019-01-01', max: '2020-12-31'}" in columns
    assert "score: {kind: real, min: -1.0, max: 5.0, unit: 0.1}" in columns


@pytest.mark.parametrize(
    "first", ["34,f,2020-02-03", "a,1,b", "no,home,f", "NA,b,c", "x@y.org,b,c", "2020-01-01,x,y"]
)
def test_a_first_row_of_values_is_never_printed(tmp_path, first):
    write(tmp_path / "a.csv", f"{first}\n61,m,2020-03-04\n".encode())
    for typed in ("", "n\n"):
        result = pe("init", "a.csv", "--table", *STATED, cwd=tmp_path, typed=typed)
        assert result.returncode == 2
        assert "look like values, not like names" in result.stderr
        assert not any(
            cell in result.stdout + result.stderr for cell in first.split(",") if len(cell) > 2
        )
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]
    assert pe("init", "a.csv", "--table", *STATED, cwd=tmp_path, typed="y\n").returncode == 0


def test_keys_that_nobody_answers_are_left_blank_and_named(tmp_path):
    write(tmp_path / "a.csv", PATIENTS.encode())
    result = pe("init", "a.csv", "--table", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    recipe = (tmp_path / "recipe.yaml").read_text()
    for key in ("privacy_unit", "declared_size", "label_column", "delta", "classes"):
        assert re.search(rf"^  {key}: +# declare this", recipe, re.M), key
    for option in ("--privacy-unit", "--declared-size", "--label-column"):
        assert f"({option})" in result.stdout
    assert_one_sentence(
        pe("plan", "recipe.yaml", cwd=tmp_path), r"must be .*, not empty: declare it"
    )
    answer = pe(
        "init",
        "a.csv",
        "--table",
        "--out",
        "r.yaml",
        cwd=tmp_path,
        typed="out\n-\nyes\nhousehold\n",
    )
    assert "there is no proposal: type what you declare" in answer.stdout
    assert "'household' is not one of 'record', 'patient', 'age'" in answer.stdout


def test_a_word_in_place_of_a_number_is_told_in_plain_words(tmp_path):
    write(tmp_path / "a.csv", PATIENTS.encode())
    result = pe(
        "init", "a.csv", "--table", "--privacy-unit", "record", cwd=tmp_path, typed="-\nsome\n"
    )
    assert "'some' is not a valid whole number" in result.stdout
