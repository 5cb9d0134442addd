"""No single record of a table or among texts decides whether a run starts, what it asks, prints or
writes.
"""

import csv
import io
import json
from functools import partial

import pytest

from tests.endpoints.asking import serve
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.neighbours import releases_held, shown

__all__ = ["serve"]  # a fixture
PUBLIC = ["the room was warm", "ok", "the staff is slow, the food cold", "Zürich 😀"]
TEXTS = [f"a review of {number} words" for number in range(8)]
GOOD_TEXTS = {
    "equal to a public text": PUBLIC[0],
    "equal to a public text of one word": PUBLIC[1],
    "equal to the last public text": PUBLIC[-1],
    "equal but for white space": f"  {PUBLIC[0]} \r\n",
    "equal but for its normal form": "Zu\u0308rich 😀",
    "equal but for a control character": "o\x07k",
    "equal in small letters": PUBLIC[2].upper(),
    "equal to the beginning of a public text": "the room was",
    "equal to a public text and more": f"{PUBLIC[0]} and quiet",
    "equal to a record": TEXTS[0],
    "equal to the prompt": "Write a short hotel review.",
    "one letter": "x",
    "a number": "12345678901234567890",
    "a point": ".",
    "another script": "المحطة",
    "one long word": "w" * 60,
    "many words": " ".join("abcdefghijklmnopqrstuvwxyz"),
    "lines": "one\ntwo\n\nthree",
    "JSON": '{"text": "the room was warm"}',
    "a formula": "=HYPERLINK(A1)",
}
BAD_TEXTS = {"empty": "", "of white space": " \t\n", "with a NUL": "o\0k", "too long": 61 * "x"}
BAD_LINES = {  # bytes are a line as it stands
    "a cut line": b'{"text": "the room',
    "no object": b'["the room was warm"]',
    "a key twice": b'{"text": "one", "text": "two"}',
    "without the key": b'{"note": "one"}',
    "null": b'{"text": null}',
    "a list": b'{"text": ["one"]}',
    "a number of 5,000 digits": b'{"text": ' + b"9" * 5000 + b"}",
    "deep brackets": b"[" * 100_000,
    "half a character": b'{"text": "half \\ud83d"}',
    "bytes of another encoding": b'{"text": "caf\xe9"}',
}
BAD_FILES = {
    "bytes of another encoding": b"caf\xe9",
    "a link": ("x.txt", None),
    "a file of another type": ("x.docx", b"a review"),
    "a file in a folder": ("a/x.txt", b"a review"),
    "a file with a name that is no text": ("x\udce9.docx", b"a review"),
}
ROWS = [("f", 18 + 7 * i % 70, "ab"[i % 3 == 0]) for i in range(12)]
POOL = [("m", 19), ("f", 44), ("f", 60), ("m", 90), ("f", 18)]
GOOD_ROWS = {
    "equal to a public row": (*POOL[0], "a"),
    "equal to a public row, of the other label": (*POOL[0], "b"),
    "equal to the last public row": (*POOL[-1], "a"),
    "equal to a public row, in other words": (" f", "44.0", "a"),
    "equal in all but one number": ("f", 45, "a"),
    "equal in all but a category": ("m", 44, "a"),
    "equal to a record": ROWS[0],
    "the least": ("f", 18, "a"),
    "the most": ("m", 90, "b"),
    "without a number": ("m", "", "a"),
    "without a category": ("", 44, "a"),
    "without anything": ("", "", "b"),
    "another age": ("m", 30, "a"),
    "yet another age": ("f", 71, "b"),
    "an age with zeros": ("f", "044", "a"),
}
BAD_ROWS = {
    "of an unlisted category": ("x", 44, "a"),
    "of an age out of range": ("f", 999, "a"),
    "of an age below": ("m", -1, "b"),
    "of an age in words": ("f", "forty", "a"),
    "of an age with a comma": ("f", "4,5", "b"),
    "of an infinite age": ("f", "inf", "b"),
    "of a label that is not declared": ("f", 44, "rare-HIV"),
    "without a label": ("f", 44, ""),
    "a cell more": b"f,44,a,b",
    "a cell fewer": b"f,44",
    "an open quote": b'f,44,"a',
    "a quote in the middle": b'f,"4"4,a',
    "a long cell": b"f," + b"4" * 140_000 + b",a",
    "bytes of another encoding": b"\xe9,44,a",
    "a label of another encoding": b"f,44,\xe9",
    "a NUL": b"f,4\0004,a",
}


def write_table(rows, path):
    """Put an odd row in the middle, where it could take others with it."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows(row for row in rows if isinstance(row, tuple))
    lines = file.getvalue().encode().splitlines(keepends=True)
    lines[3:3] = [row + b"\r\n" for row in rows if isinstance(row, bytes)]
    path.write_bytes(b"sex,age,y\r\n" + b"".join(lines))


def write_text_table(texts, path):
    lines = [
        text if isinstance(text, bytes) else json.dumps({"text": text}).encode() for text in texts
    ]
    path.write_bytes(b"\n".join([lines[-1], *lines[:-1]]))


def write_text_folder(texts, path):
    path.mkdir()
    for number, text in enumerate(texts):
        name, content = text if isinstance(text, tuple) else (f"{number}.txt", text)
        (path / name).parent.mkdir(exist_ok=True)
        if content is None:
            (path / name).symlink_to(path / "0.txt")
        else:
            (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def recipe_of(private, api, embedding):
    private = {"declared_size": 12, **private}
    embedding = {"batch_size": 16, **embedding}
    evolution = {"iterations": 1, "population": 4, "lookahead": 0, "degree": 0.5}
    privacy = {"noise_multiplier": 1, "delta": 1e-4, "hold": "off"}
    return {
        "private": private,
        "api": api,
        "embedding": embedding,
        "privacy": privacy,
        "evolution": evolution,
    }


COLUMNS = {
    "sex": {"kind": "category", "values": ["f", "m"], "missing": True},
    "age": {"kind": "integer", "min": 18, "max": 90, "missing": True},
}


def a_table(folder, _):
    (folder / "public.csv").write_text(
        "\n".join(["sex,age", *(f"{sex},{age}" for sex, age in POOL), ""])
    )
    private = {
        "kind": "table",
        "path": "p.csv",
        "columns": COLUMNS,
        "label_column": "y",
        "classes": ["a", "b"],
    }
    return recipe_of(private, {"kind": "public_table", "path": "public.csv"}, {"kind": "mixed"})


def a_text_table(folder, url):
    (folder / "public.txt").write_text("\n".join(PUBLIC))
    private = {"kind": "text_table", "path": "p.jsonl", "longest": 60}
    price = {"price": {"call": 0}, "key_env": None, "base_url": f"{url}/v1"}
    api = {"kind": "chat", "model": "m", "prompts": "Write a short hotel review.", **price}
    return recipe_of(private, api, {"kind": "tfidf", "public": "public.txt"})


def a_text_folder(folder, _):
    write_text_folder(PUBLIC, folder / "public")
    private = {"kind": "text_folder", "path": "p", "longest": 60}
    return recipe_of(private, {"kind": "public_texts", "path": "public"}, {"kind": "tfidf"})


@pytest.mark.parametrize(
    ("world", "write", "records", "good", "bad"),
    [
        (a_table, write_table, ROWS, GOOD_ROWS, BAD_ROWS),
        (a_text_table, write_text_table, TEXTS, GOOD_TEXTS, BAD_TEXTS | BAD_LINES),
        (a_text_folder, write_text_folder, TEXTS, GOOD_TEXTS, BAD_TEXTS | BAD_FILES),
    ],
    ids=["table", "text_table", "text_folder"],
)
def test_a_run_shows_the_same_whatever_one_record_more_is(
    tmp_path, serve, world, write, records, good, bad
):
    script = Script()
    recipe = world(tmp_path, serve(ChatServer(script)))

    def show(records, rule):
        recipe["private"]["on_bad_record"] = rule
        return shown(tmp_path, recipe, partial(write, records), script.requests)

    with releases_held():
        usual = {rule: show(records, rule) for rule in ("skip", "fail")}
        assert {rule: one.status for rule, one in usual.items()} == {"skip": 0, "fail": 0}, usual
        assert bool(usual["fail"].requests) == (world is a_text_table)
        rules = {name: "fail" if name.startswith("equal") else "skip" for name in good | bad}
        odd = [
            name
            for name, rule in rules.items()
            if show([*records, (good | bad)[name]], rule) != usual[rule]
        ]
        assert not odd
        assert all(
            show([*records, record], "fail").status == 2 for record in [*bad.values()][-3:]
        )  # it is a fault
