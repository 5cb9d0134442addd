"""A release states its parameters, all of them valid, and survives JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe.errors import PrivacyError
from pe.privacy.release import Poisson, Relation, Release

VALID = {
    "name": "h/1",
    "mechanism": "discrete_gaussian",
    "sensitivity": 1.0,
    "noise_multiplier": 2.0,
    "grid": 256,
}


@given(
    z=st.floats(1e-3, 1e6),
    sensitivity=st.floats(0.1, 10),
    relation=st.sampled_from(list(Relation)),
    count=st.integers(1, 10**4),
    kind=st.sampled_from(["discrete_gaussian", "discrete_laplace", "sampled"]),
)
def test_json_gives_the_same_release_back(z, sensitivity, relation, count, kind):
    mechanism = "discrete_gaussian" if kind == "sampled" else kind
    sampling = Poisson(0.25) if kind == "sampled" else None
    release = Release("a/1", mechanism, sensitivity, z, relation, "patient", sampling, count, 2**20)
    assert Release.from_dict(json.loads(json.dumps(release.to_dict()))) == release


WRONG = {
    "name": [""],
    "unit": [""],
    "mechanism": ["magic"],
    "sensitivity": [0.0, math.inf, math.nan],
    "noise_multiplier": [0.0, -1.0, math.nan],
    "relation": ["neighbours"],
    "count": [0, 1.5, True],
    "grid": [None, 3, 0, 2**41],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, one) for field, values in WRONG.items() for one in values]
)
def test_a_value_out_of_range_is_refused_and_named(field, value):
    with pytest.raises(PrivacyError, match=field if value != "" else "non-empty"):
        Release(**VALID | {field: value})


def test_without_noise_there_is_no_noise_multiplier():
    assert not Release("h/1", "none", 1.0, 0.0).has_noise
    with pytest.raises(PrivacyError, match="0 where the mechanism is 'none'"):
        Release("h/1", "none", 1.0, 2.0)


def test_sampling_needs_gaussian_noise_on_a_fine_grid_and_a_rate():
    sampled = VALID | {"sampling": Poisson(0.5)}
    assert Release(**sampled | {"grid": 4}).scale == 8
    for coarse in ({"grid": 2}, {"mechanism": "discrete_laplace"}):
        with pytest.raises(PrivacyError, match="sampling is Poisson"):
            Release(**sampled | coarse)
    for rate in (0, 1, -0.1, 2, math.nan):
        with pytest.raises(PrivacyError, match="sampling rate"):
            Poisson(rate)


@pytest.mark.parametrize(
    "damage", [{"grid": "x"}, {"extra": 1}, {"sampling": {"rate": 1}}, {"sensitivity": "1"}]
)
def test_damaged_json_is_refused(damage):
    with pytest.raises(PrivacyError):
        Release.from_dict(Release(**VALID).to_dict() | damage)


def test_the_scale_is_in_grid_steps():
    assert Release(**VALID).scale == 512
    assert Release("counts", "discrete_laplace", 3.0, 2.0).scale == 6
