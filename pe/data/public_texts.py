"""Public texts on disk: a file of lines, a folder of .txt files, or tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pe.data.public_folders import files_below, folder_labels
from pe.data.tables import SUFFIXES, read_lines, read_rows, table_files, tables_in
from pe.data.text_decoding import UTF_8, decode_text
from pe.errors import RecipeError

TEXT = ".txt"
WHOLE = 2**24
"""Bytes of the longest text that is read whole."""


@dataclass(frozen=True)
class PublicText:
    """A public text.

    Attributes:
        name: its place, for messages.
        label: its label; None: it has none.
        utf8: the text.
    """

    name: str
    label: str | None
    utf8: bytes


@dataclass(frozen=True)
class PublicTexts:
    """Where public texts are.

    Attributes:
        path: a .txt file, each line of it a text; a folder of .txt files, each a text, labelled by `labels.csv` or the
            subfolders; a table (CSV, TSV, JSON lines, Parquet), or a folder with tables at its top.
        text_column: of tables.
        label_column: of tables; None: no labels.
        encoding: of all but Parquet.
    """

    path: Path
    text_column: str = "text"
    label_column: str | None = None
    encoding: str = UTF_8

    def check(self) -> None:
        """Refuse a place where no public texts can be; none is read.

        Raises:
            RecipeError: nothing is there, or no text or table.
        """
        if not self.path.exists():
            raise RecipeError(f"There are no public texts at {self.path}: name a file or a folder that is there.")
        if self.path.is_file() and self.path.suffix.lower() not in (TEXT, *SUFFIXES):
            known = ", ".join((TEXT, *SUFFIXES))
            raise RecipeError(f"{self.path} is no file of public texts: its name must end in one of {known}.")

    def read(self, longest: int, whole: bool = False) -> Iterator[PublicText]:
        """The texts in order, each cut to `longest` bytes; empty lines, cells and files are passed over.

        Args:
            longest: bytes, ≥ 1.
            whole: a .txt file is one text, not one for each of its lines.

        Raises:
            RecipeError: there are none.
            BadSample: one is not text in its encoding, or cannot be read.
            BadTable: a table cannot be read, or has no such column.
            MissingDependency: pyarrow is not installed, which reads Parquet.
        """
        self.check()
        found = False
        for name, label, source in self._sources(whole):
            if isinstance(source, str) and not source.strip():
                continue
            if isinstance(source, Path) and not (size := source.stat().st_size):
                continue
            if isinstance(source, Path) and whole and size > longest:
                raise RecipeError(f"{source} has more than {longest:,} bytes: split it into several files.")
            found = True
            utf8 = decode_text(source, longest=longest, cut=True, encoding=self.encoding, name=name)
            yield PublicText(name, label, utf8)
        if not found:
            raise RecipeError(f"{self.path} holds no public texts ({TEXT}, or {', '.join(SUFFIXES)}).")

    def _sources(self, whole: bool) -> Iterator[tuple[str, str | None, str | Path]]:
        """Each text's name, label and content, or the file that holds it."""
        if self.path.is_file() and self.path.suffix.lower() == TEXT:
            if whole:
                yield str(self.path), None, self.path
            else:
                for number, line in enumerate(read_lines(self.path, self.encoding), 1):
                    yield f"line {number:,} of {self.path}", None, line
        elif self.path.is_dir() and not tables_in(self.path):
            files = files_below(self.path, (TEXT,))
            for file, label in zip(files, folder_labels(self.path, files), strict=True):
                yield str(file), label, file
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[tuple[str, str | None, str]]:
        columns = [self.text_column] if self.label_column is None else [self.text_column, self.label_column]
        for file in table_files(self.path):
            for number, (text, *label) in enumerate(read_rows(file, columns, self.encoding), 1):
                if text is not None and not isinstance(text, str):
                    raise RecipeError(f"Row {number:,} of {file} holds no text in '{self.text_column}'.")
                yield f"row {number:,} of {file}", str(label[0]) if label else None, text or ""
