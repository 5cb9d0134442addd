"""A dispatcher over a run of two labels."""

import numpy as np

from pe.dispatch.dispatcher import Dispatcher
from pe.plugins.protocols import as_generator
from pe.store.writer import RunWriter

LABELS = np.repeat(np.arange(2, dtype=np.int32), 25)


def dispatcher(folder, api, **settings):
    """Begin the run in `folder`, or go on with it; its lock is released, as by a crash."""
    run = (
        RunWriter.reopen(folder)
        if folder.exists()
        else RunWriter.create(folder, {"recipe.yaml": b""})
    )
    run.lock.release()
    return Dispatcher(as_generator(api), run, ("cat", "dog"), seed=3, **settings)
