"""Public images that lie where the private records do are refused, by whatever name, and no file is
read.
"""

import os

import pytest

from pe.errors import RecipeError
from pe.planning.checks import check_apart


@pytest.fixture
def private(tmp_path):
    for folder in ("data/scans/a", "public/b"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(3):
            (tmp_path / folder / f"{i}.png").touch()
    return tmp_path / "data" / "scans"


@pytest.fixture
def pool(private):
    return private.parents[1] / "public"


def linked(place, target, link=os.symlink):
    link(target, place)
    return place


MEETING = {
    "itself": (lambda private, _: private, "are the private records"),
    "another name": (
        lambda private, _: private / "a" / ".." / "a" / "..",
        "are the private records",
    ),
    "a link to it": (
        lambda private, pool: linked(pool / "link", private),
        "are the private records",
    ),
    "the folder that holds it": (lambda private, _: private.parent, "contain the private records"),
    "a folder in it": (lambda private, _: private / "a", "lie in the private records"),
    "a folder in it that is not there yet": (
        lambda private, _: private / "public",
        "lie in the private records",
    ),
    "a linked folder of it": (
        lambda private, pool: linked(pool / "c", private / "a").parent,
        "link to the private records by .*c",
    ),
    "a linked file of it": (
        lambda private, pool: linked(pool / "b" / "x.png", private / "a" / "1.png").parents[1],
        r"link to the private records by .*b/x\.png",
    ),
    "a hard link of one file": (
        lambda private, pool: linked(
            pool / "b" / "x.png", private / "a" / "2.png", os.link
        ).parents[1],
        r"share a file with the private records, .*a/2\.png",
    ),
}


@pytest.mark.parametrize("name", MEETING)
def test_public_images_where_the_private_records_are_get_refused(private, pool, name):
    place, sentence = MEETING[name]
    with pytest.raises(RecipeError, match=sentence) as refused:
        check_apart(private, [place(private, pool)])
    assert "\n" not in str(refused.value)


def test_a_private_file_is_compared_like_a_folder(private, pool):
    file = private / "a" / "1.png"
    check_apart(file, [private / "a" / "2.png"])
    for place, how in (
        (linked(pool / "x.png", file, os.link), "share a file with"),
        (private, "contain"),
    ):
        with pytest.raises(RecipeError, match=f"{how} the private records"):
            check_apart(file, [place])


def test_images_elsewhere_and_links_among_themselves_pass_and_no_file_is_opened(
    private, pool, monkeypatch
):
    linked(pool / "x.png", pool / "b" / "0.png", os.link)
    linked(pool / "y.png", pool / "b" / "0.png")
    linked(pool / "z.png", pool / "nowhere")
    for name in ("builtins.open", "io.open"):
        monkeypatch.setattr(name, None)
    check_apart(private, [pool, private.parent / "not-there"])
