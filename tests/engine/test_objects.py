"""What a run gives back in Python."""

import re
import sys

import numpy as np
import pytest

from pe.errors import MissingDependency

NAMES = ["dark", "light"]


def test_a_run_s_data_are_handed_to_torch_datasets_and_pandas(made, monkeypatch):
    run, _ = made
    pairs, dataset, frame = run.to_torch(), run.to_datasets(), run.to_pandas()
    pixels, numbers = run.synthetic.samples.array, run.synthetic.labels.tolist()
    assert (pairs.classes, dataset.features["label"].names, frame["label"].cat.categories.tolist()) == (NAMES,) * 3
    assert [label.item() for _, label in pairs] == dataset["label"][:] == frame["label"].cat.codes.tolist() == numbers
    np.testing.assert_array_equal(np.asarray(dataset[3]["image"]), pixels[3, ..., 0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match=re.escape("run.to_pandas() needs pandas, which is not installed: pip")):
        run.to_pandas()
