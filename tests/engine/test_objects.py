"""Records in memory, as people have them in Python: what pe.evolve takes, and what a run gives
back.
"""

import re
import sys

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

import pe
from pe.errors import LimitReached, MissingDependency, PrivateDataError, RecipeError
from pe.private.memory import source_of
from tests.engine.small import SETTINGS, evolve
from tests.generators import Mean, Shades

NAMES = ["dark", "light"]
SHAPE = {"size": 4, "channels": 1}
PIXELS = np.concatenate([np.full((30, 4, 4), 20, np.uint8), np.full((30, 4, 4), 220, np.uint8)])
NUMBERS = np.repeat([0, 1], 30)
TENSORS = torch.tensor(PIXELS)[:, None] / 255
PICTURES = [Image.fromarray(one) for one in PIXELS]
TYPED = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
HUGGING_FACE = datasets.Dataset.from_dict({"image": PICTURES, "label": NUMBERS}, features=TYPED)
TWO_LABELS = datasets.Dataset.from_dict(
    {"image": PICTURES, "fine": NUMBERS, "coarse": NUMBERS},
    features=datasets.Features(
        {"image": datasets.Image(), "fine": TYPED["label"], "coarse": TYPED["label"]}
    ),
)
FRAME = pd.DataFrame(
    {"scan": PICTURES, "kind": [NAMES[one] for one in NUMBERS], "patient": range(60)}
)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):  # endless, as those of torch may be
        return PICTURES[index % 60], int(NUMBERS[index % 60])


IMAGES = {
    "arrays": ((PIXELS, NUMBERS), {"classes": NAMES}),
    "arrays by name": (
        {"images": PIXELS / 255, "labels": NUMBERS.astype(str)},
        {"classes": range(2)},
    ),
    "tensors": (
        torch.utils.data.TensorDataset(torch.tensor(PIXELS)[:, None] / 255, torch.tensor(NUMBERS)),
        {"classes": NAMES} | SHAPE,
    ),
    "a data set of torch": (Pairs(), {"classes": NAMES} | SHAPE),
    "a data frame": (FRAME, {"label": "kind", "classes": NAMES, "privacy_unit": "patient"} | SHAPE),
    "a data set of Hugging Face": (HUGGING_FACE, {"classes": NAMES} | SHAPE),
    "a table of pyarrow": (HUGGING_FACE.data.table, {"classes": NAMES} | SHAPE),
}


@pytest.mark.parametrize("form", IMAGES)
def test_images_in_memory_are_the_private_records_of_a_run(form, tmp_path):
    private, settings = IMAGES[form]
    source = source_of(private, settings | {"ledger_file": tmp_path / "l.json"}, "the test", ())
    (block, _), labels = next(source.open().blocks(60)), source.open().labels
    assert (source.size in (4, (4, 4)), source.channels) == (True, 1)
    np.testing.assert_array_equal(block.array[..., 0], PIXELS)
    np.testing.assert_array_equal(labels, NUMBERS)
    run = evolve(private, tmp_path / "run", ledger_file=tmp_path / "l.json", **settings)
    shades = run.synthetic.samples.array.mean((1, 2, 3))
    assert shades[run.synthetic.labels == 0].mean() + 50 < shades[run.synthetic.labels == 1].mean()
    assert run.guarantee["data_set"]["runs"] == 1
    assert str(tmp_path) not in (run.folder / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("private", "settings"),
    [
        (
            pd.DataFrame({"review": ["a b", "c d"], "stars": [4, 5]}),
            {"label": "stars", "classes": [4, 5]},
        ),
        (
            pa.table({"text": ["a b", "c d"], "label": ["4", "5"], "title": ["e", "f"]}),
            {"classes": [4, 5]},
        ),
        ((["a b", "c d"], [4, 5]), {"classes": [4, 5]}),
        ([{"text": "a b", "label": 4}, {"text": "c d", "label": 5}], {"classes": [4, 5]}),
        ("file.csv", {"classes": [4, 5]}),
    ],
)
def test_texts_in_memory_or_at_a_path_are_found(private, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.csv").write_text("label,text\n4,a b\n5,c d\n")
    dataset = source_of(
        private, settings | {"ledger_file": "l.json", "longest": 9}, "the test", ()
    ).open()
    assert (dataset.labels.tolist(), dataset.classes) == ([0, 1], ("4", "5"))
    assert next(dataset.blocks(2))[0].strings == ["a b", "c d"]


def computed(column):
    """The data of TYPED, whose label names `class_encode_column` computes from the records, the
    last one rare.
    """
    names = [NAMES[one] for one in NUMBERS[:-1]] + ["rare-HIV"]
    data = datasets.Dataset.from_dict({"image": PICTURES, column: names}).class_encode_column(
        column
    )
    return data.cast_column("image", datasets.Image())


NAMES_IN_TYPES = {
    "a data set of Hugging Face": (
        computed("label"),
        {},
        "confirm it with classes: [dark, light, rare-HIV]",
    ),
    "its table": (
        computed("label").data.table,
        {},
        "confirm it with classes: [dark, light, rare-HIV]",
    ),
    "a column of another name": (
        computed("diagnosis"),
        {},
        "no 'label': name the column of labels by label=…",
    ),
    "names that are not those declared": (
        computed("label"),
        {"classes": NAMES},
        "rare-HIV', which the public class",
    ),
}


@pytest.mark.parametrize("form", NAMES_IN_TYPES)
def test_names_of_labels_in_a_type_are_not_public_unasked(form, tmp_path):
    private, settings, sentence = NAMES_IN_TYPES[form]
    settings = settings | SHAPE | {"ledger_file": tmp_path / "l.json"}
    with pytest.raises((RecipeError, PrivateDataError), match=re.escape(sentence)):
        source_of(private, settings, "t", ()).open()
    source = source_of(
        private,
        settings | {"classes": [*NAMES, "rare-HIV"], "label": private.column_names[-1]},
        "t",
        (),
    )
    assert source.open().labels.tolist() == [*NUMBERS[:-1], 2]
    with pytest.raises(
        (RecipeError, PrivateDataError)
    ):  # one name is not declared, whatever the type says
        source_of(
            private, settings | {"classes": NAMES, "label": private.column_names[-1]}, "t", ()
        ).open()


def test_a_table_s_columns_that_are_not_declared_are_left_out(tmp_path):
    rows = datasets.Dataset.from_dict(
        {"age": [20, 30], "label": ["a", "rare-HIV"]}
    ).class_encode_column("label")
    columns = {"age": {"kind": "integer", "min": 0, "max": 99}}
    for private in (rows, rows.data.table, rows.to_pandas().astype({"label": "category"})):
        source = source_of(
            private, {"columns": columns, "ledger_file": tmp_path / "l.json"}, "t", ()
        )
        assert (source.classes, source.labels, source.open().labels.tolist()) == (
            None,
            ("all",),
            [0, 0],
        )


@pytest.mark.parametrize("odd", [None, 7, (), {}, ["x"], {"note": "x"}, "x", b"x"], ids=repr)
@pytest.mark.parametrize(("text", "label"), [(0, 1), ("text", "label")])
def test_one_record_of_another_form_is_a_bad_record_wherever_it_stands(odd, text, label, tmp_path):
    rows = [
        [f"text {i}", "a"] if text == 0 else {"text": f"text {i}", "label": "a"} for i in range(5)
    ]
    settings = {
        "classes": ["a"],
        "ledger_file": tmp_path / "l.json",
        "longest": 9,
        "on_bad_record": "skip",
    }
    for place in (0, 3):
        data = source_of([*rows[:place], odd, *rows[place:]], settings, "t", ()).open()
        assert [bad.index for bad in data.check()] == [place]
        assert next(data.blocks(6))[1].tolist() == [i != place for i in range(6)]


@pytest.mark.parametrize(
    ("private", "settings", "sentence"),
    [
        (FRAME[["scan", "kind"]], {"classes": NAMES}, "the columns 'kind', but no 'label': name "
                                                      "the column of"),
        (FRAME.assign(second=PICTURES), {"label": "kind"}, "'scan', 'second': name the one of "
                                                           "samples by image=… or"),
        (TWO_LABELS, {}, "the columns 'fine', 'coarse', but no 'label': name the column of labels "
                         "by label=…"),
        (FRAME, {"label": "sort"}, "`label` names 'sort', but the records have the columns 'scan', "
                                   "'kind', 'patient'"),
        (FRAME, {"label": "record"}, "`label` names 'record', but the records have the columns"),
        ((PIXELS, NUMBERS), {}, "the class list, which is public, is not given: confirm it with "
                                "classes: [0, 1]"),
        # it is computed
        ((PIXELS, pd.Categorical(NUMBERS)), {}, "the class list, which is public, is not given"),
        # one record would tell it
        (HUGGING_FACE, {}, "size is missing: state the images' height and width in pixels"),
        (PIXELS / 200, {}, "Record 31 has values outside 0…1: scale floating-point pixels"),
        (datasets.DatasetDict(train=HUGGING_FACE), {}, "private has the splits train: give one of "
                                                       "them."),
        (HUGGING_FACE.to_iterable_dataset(), {}, "private is an object of the class "
                                                 "IterableDataset: give a path"),
        (pd.concat([FRAME, FRAME[["kind"]]], axis=1), {}, "private has two columns named 'kind': "
                                                          "rename or drop one"),
        (PIXELS, {"output": "run"}, "unknown setting 'output'; did you mean 'out'?"),
        (PIXELS, {"iteratons": 2}, "unknown setting 'iteratons'; did you mean 'iterations'?"),
        (PIXELS, {"ledger_file": None}, "ledger_file must be a path"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_refused_by_a_sentence(private, settings, sentence, tmp_path):
    with pytest.raises((RecipeError, PrivateDataError), match=re.escape(sentence)):
        evolve(private, tmp_path / "run", **{"ledger_file": tmp_path / "l.json"} | settings)


def test_no_record_in_memory_is_shown_by_what_python_prints():
    texts = pd.DataFrame({"text": ["Meier has asthma"] * 9, "label": ["a"] * 9})
    settings = {
        "classes": ["a"],
        "ledger_file": "l.json",
        "declared_size": 9,
        "epsilon": 1,
        "delta": 1e-5,
    }
    planned = pe.plan(
        texts, pe.api("public_texts", path=__file__), iterations=0, population=2, **settings
    )
    source = source_of(texts, {"classes": ["a"], "ledger_file": "l.json"}, "the test", ())
    assert not [
        shown
        for shown in (repr(planned), str(planned), repr(source), str(source))
        if "Meier" in shown
    ]


def test_a_run_over_records_in_memory_goes_on_when_it_is_given_them_again(tmp_path):
    settings = {"classes": NAMES, "ledger_file": tmp_path / "l.json"}
    with pytest.raises(LimitReached):
        evolve((PIXELS, NUMBERS), tmp_path / "run", **settings, max_images=30)
    with pytest.raises(PrivateDataError, match=r"call pe\.evolve with them"):
        pe.resume(tmp_path / "run", api=Shades(), embedding=Mean(), progress=pe.Progress())
    run = evolve((PIXELS, NUMBERS), tmp_path / "run", resume=True, **settings, max_images=100)
    assert len(run.synthetic) == 20
    assert (
        pe.plan(
            HUGGING_FACE, Shades(), embedding=Mean(), **SETTINGS, **SHAPE, ledger_file="l.json"
        ).random
        == 3
    )


def test_a_run_s_data_are_handed_to_torch_datasets_and_pandas_which_evolve_again(
    made, tmp_path, monkeypatch
):
    run, _ = made
    pairs, dataset, frame = run.to_torch(), run.to_datasets(), run.to_pandas()
    pixels, numbers = run.synthetic.samples.array, run.synthetic.labels.tolist()
    assert (
        pairs.classes,
        dataset.features["label"].names,
        frame["label"].cat.categories.tolist(),
    ) == (NAMES,) * 3
    assert (
        [label.item() for _, label in pairs]
        == dataset["label"][:]
        == frame["label"].cat.codes.tolist()
        == numbers
    )
    np.testing.assert_array_equal(np.asarray(dataset[3]["image"]), pixels[3, ..., 0])
    for one in (pairs, dataset, frame):
        source = source_of(
            one, {"classes": NAMES, "ledger_file": tmp_path / "l.json"} | SHAPE, "the test", ()
        )
        np.testing.assert_array_equal(next(source.open().blocks(20))[0].array, pixels)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingDependency,
        match=re.escape("`run.to_pandas()` needs pandas, which is not installed. Call `pip"),
    ):
        run.to_pandas()
