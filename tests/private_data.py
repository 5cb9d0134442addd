"""Private data sets of samples in memory."""

import numpy as np

from pe.private.dataset import PrivateDataset


def dataset_of(samples, labels, *, classes, units=None, **settings):
    """A data set of samples; without units, each record is its own."""
    labels = np.asarray(labels, np.int32)
    units = np.arange(len(labels)) if units is None else np.array(units, np.int64)
    return PrivateDataset(
        samples.array,
        labels,
        units,
        classes=classes,
        modality=type(samples),
        shape=samples.shape,
        **settings,
    )
