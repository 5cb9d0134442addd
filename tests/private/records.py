"""Real records in the forms in which people keep them, for the tests of private sources."""

import io
import re
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from pe.errors import PrivateDataError


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PIXELS = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
FILES = [png(pixels) for pixels in PIXELS]
LABELS = ["cat", "dog", "cat", "dog", "cat", "cat", "dog"]
UNITS = ["a", "b", "a", "c", "c", "d", "b"]


def write(path, data=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def arrow(path, table, stream=True, together=None):
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=together)
    return path


def tar(path, members):
    """A .tar file of these names, each with its bytes or its header."""
    with tarfile.open(path, "w") as file:
        for name, data in members:
            member = tarfile.TarInfo(name) if isinstance(data, bytes) else data
            member.name, member.size = name, len(data) if isinstance(data, bytes) else 0
            file.addfile(member, io.BytesIO(data) if isinstance(data, bytes) else None)
    return path


def read(dataset, size=3):
    """All valid samples of a data set, and which of the records are valid."""
    samples, flags = [], []
    for block, valid in dataset.blocks(size):
        assert len(block) == len(valid) == size
        assert not block.array[~valid].astype(bool).any()
        samples.append(block.array[valid])
        flags.append(valid)
    valid = np.concatenate(flags)
    assert not valid[len(dataset) :].any()
    return np.concatenate(samples), valid[: len(dataset)]


def fingerprint(source):
    return source.open().preflight(b"key").fingerprint


def refused(source, *parts):
    with pytest.raises(PrivateDataError) as caught:
        source.open().check()
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith((".", "?"))
    for part in parts:
        assert re.search(part, said), said
    return said
