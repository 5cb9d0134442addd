"""Public images that lie where the private records do are refused, by whatever name, and no file is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pe.errors import RecipeError
from pe.planning.checks import check_apart


@pytest.fixture
def private(tmp_path: Path) -> Path:
    (tmp_path / "data" / "scans" / "a").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "data" / "scans" / "a" / f"{i}.png").write_bytes(bytes([i]))
    return tmp_path / "data" / "scans"


def pool(private: Path) -> Path:
    (private.parent.parent / "public" / "b").mkdir(parents=True)
    (private.parent.parent / "public" / "b" / "0.png").write_bytes(b"other")
    return private.parent.parent / "public"


def itself(private: Path) -> Path:
    return private


def with_another_name(private: Path) -> Path:
    return private / "a" / ".." / "a" / ".."


def a_link_to_it(private: Path) -> Path:
    (private.parent / "link").symlink_to(private)
    return private.parent / "link"


def the_folder_that_holds_it(private: Path) -> Path:
    return private.parent


def a_folder_in_it(private: Path) -> Path:
    return private / "a"


def a_folder_in_it_that_is_not_there_yet(private: Path) -> Path:
    return private / "public"


def a_file_in_it(private: Path) -> Path:
    (private / "public.npz").touch()
    return private / "public.npz"


def a_folder_with_a_link_into_it(private: Path) -> Path:
    folder = pool(private)
    (folder / "b" / "1.png").symlink_to(private / "a" / "1.png")
    return folder


def a_folder_with_a_linked_folder_of_it(private: Path) -> Path:
    folder = pool(private)
    (folder / "c").symlink_to(private / "a")
    return folder


def a_folder_with_a_hard_link_of_one_file(private: Path) -> Path:
    folder = pool(private)
    os.link(private / "a" / "2.png", folder / "b" / "x.png")
    return folder


MEETING = {
    itself: "are the private records",
    with_another_name: "are the private records",
    a_link_to_it: "are the private records",
    the_folder_that_holds_it: "contain the private records",
    a_folder_in_it: "lie in the private records",
    a_folder_in_it_that_is_not_there_yet: "lie in the private records",
    a_file_in_it: "lie in the private records",
    a_folder_with_a_link_into_it: r"link to the private records by .*b/1\.png",
    a_folder_with_a_linked_folder_of_it: "link to the private records by .*c",
    a_folder_with_a_hard_link_of_one_file: r"share a file with the private records, .*a/2\.png",
}


@pytest.mark.parametrize("place", MEETING)
def test_public_images_where_the_private_records_are_get_refused(private: Path, place: Callable[[Path], Path]) -> None:
    with pytest.raises(RecipeError, match=MEETING[place]) as refused:
        check_apart(private, [place(private)])
    assert "\n" not in str(refused.value)


def test_a_private_file_is_compared_like_a_folder(tmp_path: Path) -> None:
    for name in ("private.npz", "public.npz"):
        (tmp_path / name).touch()
    check_apart(tmp_path / "private.npz", [tmp_path / "public.npz"])
    os.link(tmp_path / "private.npz", tmp_path / "copy.npz")
    with pytest.raises(RecipeError, match="are the private records"):
        check_apart(tmp_path / "private.npz", [tmp_path / "copy.npz"])
    with pytest.raises(RecipeError, match="contain the private records"):
        check_apart(tmp_path / "private.npz", [tmp_path])


def test_images_elsewhere_pass_and_so_do_links_among_themselves(private: Path) -> None:
    folder = pool(private)
    os.link(folder / "b" / "0.png", folder / "b" / "1.png")
    (folder / "b" / "2.png").symlink_to(folder / "b" / "0.png")
    (folder / "b" / "3.png").symlink_to(folder / "nowhere")
    check_apart(private, [folder, private.parent / "not-there"])


def test_no_file_is_opened(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    folder = pool(private)
    os.link(folder / "b" / "0.png", folder / "b" / "1.png")
    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr("io.open", opened)
    check_apart(private, [folder])
