"""Small runs over images and over texts in two worlds of private records, and all that each shows
on the way.
"""

from contextlib import contextmanager

import numpy as np
import pytest

import pe
from adapters.pools import PublicTexts
from adapters.portfolio import Portfolio
from embeddings.tfidf import TfIdf
from pe.plugins.protocols import RandomRequest
from pe.progress import Progress, Task
from tests.generators import Mean, Shades, images_of
from tests.neighbours import releases_held

SETTINGS = {"epsilon": 2.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 2}
HERE = ([10, 20, 30, 200, 210], ["dark", "dark", "dark", "light", "light"])
NEIGHBOURS = {
    "one record less": ([10, 20, 30, 200], ["dark", "dark", "dark", "light"]),
    "one record replaced": ([10, 20, 250, 200, 210], ["dark", "dark", "light", "light", "light"]),
    "a label emptied": ([200, 210], ["light", "light"]),
    "ten times the size": (HERE[0] * 10, HERE[1] * 10),
}


@pytest.fixture(scope="module")
def held_votes():
    """Every release is drawn as shipped, clean votes and all, and then replaced by public
    numbers.
    """
    with releases_held():
        yield


class Listener(Progress):
    """Writes down all that a run tells; a phase's advances sorted, since threads commit in any
    order.
    """

    def __init__(self) -> None:
        self.told = []

    @contextmanager
    def task(self, description, total):
        advances = []

        class Counted(Task):
            def advance(self, count, spent=""):
                advances.append((count, spent))

        yield Counted()
        self.told.append((description, total, sorted(advances)))

    def warn(self, message):
        self.told.append(message)


class Asked:
    """Keeps all that a generator is asked, to the byte."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.requests = []

    def random_api(self, request):
        self.requests.append(_words(request))
        return super().random_api(request)

    def variation_api(self, request):
        self.requests.append(_words(request))
        return super().variation_api(request)


def _words(request):
    held = [request.labels, request.seeds.tobytes()]
    if not isinstance(request, RandomRequest):
        conditions = [(name, request.conditions[name].tobytes()) for name in request.conditions]
        held += [request.degree, request.samples.array.tobytes(), conditions]
    return str(held)


class AskedShades(Asked, Shades):
    """4×4 grey images."""


class AskedTexts(Asked, PublicTexts):
    """Texts of a public file."""


class Several(Asked, Portfolio):
    """Two generators of digits in one."""

    def __init__(self):
        digits = {"kind": "glyphs", "size": 8, "texts": {"dark": ["1"], "light": ["8"]}}
        super().__init__(of=[digits, digits | {"stroke": [0.2, 0.25]}], explore=0.3)


def evolved(kind, folder, shades, labels, generator=AskedShades, **changes):
    """Evolve over a record of each shade, which always lie in the same file; the run, and all that
    it showed.
    """
    root, settings = folder.parent.parent, SETTINGS | changes
    common = {"classes": ["dark", "light"], "declared_size": 10}
    path = root / {"images": "private.npz", "texts": "private.csv"}[kind]
    path.with_name(f"{path.name}.ledger.json").unlink(missing_ok=True)  # each world has its own
    if kind == "images":
        np.savez(path, images=images_of(np.array(shades, np.uint8)).pixels, labels=labels)
        source, api = pe.ImageNpz(path, size=4, channels=1, **common), generator()
        settings = {"embedding": Mean()} | settings
    else:
        rows = [
            f"a shade of {shade:b},{label}\n" for shade, label in zip(shades, labels, strict=True)
        ]
        path.write_text("".join(["text,label\n", *rows]))
        (root / "public.txt").write_text(
            "\n".join(f"the shade {i:b} of number {i % 7}" for i in range(40))
        )
        source = pe.TextTable(path, label_column="label", longest=60, **common)
        api = AskedTexts(path=root / "public.txt")
        settings = {"embedding": TfIdf()} | settings
    listener = Listener()
    run = pe.evolve(source, api, out=folder, progress=listener, **settings)
    return run, {
        "asked": sorted(api.requests),
        "told": listener.told,
        "certificate": run.guarantee | {"run": ""},
    }
