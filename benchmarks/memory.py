"""What a Parquet source of up to 10^7 records holds in memory: opened, checked, and compared.

    python benchmarks/memory.py [--records N M]

The images are not decoded, since no decoded image is kept: all records are the same grey pixel. Units: each record its
own; 8 records each, whole numbers; each record's own name of 32 characters. Each row of the table is two processes, of
N and M records; bytes a record are the difference of their peaks. Writes results/memory.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from record import keep, where

from pe.data.images import Images
from pe.private import ImageParquet
from pe.private import modalities as image_source
from pe.private.dataset import find_overlap

UNITS = {"each record": "record", "8 records, a number": "number", "one record, a name": "name"}
PIXEL = np.zeros((1, 1, 1), np.uint8)
TOGETHER, PUBLIC = 10**6, 1000


def write(path: Path, records: int) -> None:
    schema = pa.schema([("image", pa.binary()), ("label", pa.string()), ("number", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, records, TOGETHER):
            rows = np.arange(start, min(start + TOGETHER, records))
            columns = {
                "image": pa.array([b"x"]).take(pa.array(np.zeros(len(rows), np.int64))),
                "label": pa.array(["cat", "dog"]).take(pa.array(rows % 2)),
                "number": rows // 8,
                "name": [f"{row:032x}" for row in rows.tolist()],
            }
            writer.write_table(pa.table(columns, schema=schema))


def peak() -> int:
    """Bytes that this process has had in memory, at most so far."""
    status = Path("/proc/self/status").read_text()  # what getrusage has begins with the parent's
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure(path: Path, unit: str) -> list[int]:
    """The peak after opening, after the check, and after comparing with public samples."""
    image_source.decode_image = lambda *args, **settings: PIXEL  # type: ignore[assignment]
    public = np.random.default_rng(0).integers(0, 256, (PUBLIC, 1, 1, 1), dtype=np.uint8)
    source = ImageParquet(
        path, size=1, channels=1, classes=["cat", "dog"], label_column="label", privacy_unit=UNITS[unit]
    )
    dataset = source.open()
    peaks = [peak()]
    found = dataset.preflight(bytes(32))
    peaks.append(peak())
    find_overlap(found.digests, named(public), Images, source.shape)
    return [*peaks, peak()]


def named(public: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    return ((f"public/{number}.png", sample) for number, sample in enumerate(public))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs=2, default=[10**6, 10**7])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(Path(arguments.one[0]), arguments.one[1])))
        return
    few, many = arguments.records
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for records in (few, many):
            write(Path(folder) / f"{records}.parquet", records)
        for unit in UNITS:
            peaks = []
            for records in (few, many):
                command = [sys.executable, __file__, "--one", f"{folder}/{records}.parquet", unit]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                peaks.append(json.loads(answer))
            each = " | ".join(f"{(more - less) / (many - few):.0f}" for less, more in zip(*peaks, strict=True))
            rows.append(f"| {unit} | {each} | {peaks[0][-1] / 2**30:.2f} | {peaks[1][-1] / 2**30:.2f} |")
            print(rows[-1], flush=True)
    text = [
        f"# What a Parquet source of {few:,} to {many:,} records holds in memory",
        "",
        f"{where()}. Bytes a record, at the most, since the process began: (peak at {many:,} − peak at {few:,}) / "
        f"{many - few:,}. `python benchmarks/memory.py`",
        "",
        "| a privacy unit | opened | and checked | and compared with public samples "
        f"| peak at {few:,}, GB | at {many:,}, GB |",
        "| --- |" + "--: |" * 5,
        *rows,
    ]
    keep("memory.md", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
