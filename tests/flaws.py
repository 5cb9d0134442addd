"""What stands in place of a weight file after a download that failed, or without Git LFS."""

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
FLAWS = {
    "a Git LFS pointer": lambda whole: POINTER,
    "a web page": lambda whole: b"\n<!DOCTYPE html>\n<html><body>Log in first.</body></html>",
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) * 2 // 3],
}
"""What the message says of it → the bytes of the whole file to those that came."""


def spoil(file, flaw):
    """Write what came in place of a file."""
    file.write_bytes(FLAWS[flaw](file.read_bytes()))
