"""Private embeddings: one call shape, NaN for what cannot vote, nothing half-written; and their
shards.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe.data.images import Images
from pe.errors import ContractError
from pe.histogram import InThisProcess, Voting, count_votes
from pe.private.embeddings import PrivateEmbeddings, embed_private, shard_of, shards
from pe.private.folder import ImageFolder
from tests.private.records import FILES, write
from tests.private_data import dataset_of

PIXELS = np.random.default_rng(0).integers(1, 256, (10, 2, 3, 1), dtype=np.uint8)
UNITS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


class Flat:
    """The pixels as numbers, but for what `change` makes of them; notes the shapes that it is
    called with.
    """

    def __init__(self, batch_size=4, change=None):
        self.batch_size, self.change = batch_size, change
        self.shapes = []

    def embed(self, samples):
        self.shapes.append(samples.pixels.shape)
        vectors = samples.pixels.reshape(len(samples), -1).astype(np.float32)
        return vectors if self.change is None else self.change(vectors, len(self.shapes))


def fail(vectors, call):
    if call > 1:
        raise RuntimeError("out of memory")
    return vectors


def dataset(chosen=slice(None)):
    pixels = PIXELS[chosen]
    return dataset_of(
        Images(pixels), np.arange(len(pixels)) % 2, classes=["a", "b"], units=UNITS[: len(pixels)]
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_vectors_labels_and_units_come_from_calls_of_one_shape(tmp_path, on_disk):
    embedding, order = (
        Flat(),
        slice(None, None, -1 if on_disk else 1),
    )  # memory may hold the other case's vectors
    answer = embed_private(dataset(order), embedding, tmp_path if on_disk else None)
    np.testing.assert_array_equal(answer.vectors, PIXELS[order].reshape(10, -1))
    assert answer.vectors.dtype == np.float32
    assert isinstance(answer.vectors, np.memmap) == on_disk
    assert not (on_disk and answer.vectors.flags.writeable)
    assert (answer.labels.tolist(), answer.units.tolist(), answer.classes) == (
        [0, 1] * 5,
        UNITS,
        ("a", "b"),
    )
    assert embedding.shapes == [(4, 2, 3, 1)] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["private_embeddings.npy"] * on_disk


@pytest.mark.parametrize("removed", [0, 4, 9])
def test_removing_a_record_leaves_all_other_vectors_bit_identical(removed):
    kept = [index for index in range(10) if index != removed]
    whole, less = (
        embed_private(dataset(chosen), Flat(), None).vectors for chosen in (slice(None), kept)
    )
    np.testing.assert_array_equal(whole[kept], less)


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_record_gives_no_vector(tmp_path, on_disk):
    assert embed_private(
        dataset(slice(0)), Flat(), tmp_path if on_disk else None
    ).vectors.shape == (0, 6)


def test_a_record_that_was_deleted_after_the_preflight_has_no_vector(tmp_path):
    for number in range(6):
        write(tmp_path / f"images/{number}.png", FILES[number])
    data = ImageFolder(tmp_path / "images", size=8).open()
    data.check()
    (tmp_path / "images/2.png").unlink()
    lacking = np.isnan(embed_private(data, Flat(), None).vectors)
    assert (
        lacking.all(axis=1).tolist() == lacking.any(axis=1).tolist() == [i == 2 for i in range(6)]
    )


def test_a_vector_that_is_not_finite_becomes_nan_as_a_whole():
    def spoil(vectors, _call):
        vectors[1, 0] = np.inf
        return vectors

    vectors = embed_private(dataset(), Flat(change=spoil), None).vectors
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False, False] * 2 + [False, True]
    assert np.isnan(vectors).any(axis=1).sum() == 3


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Flat(change=lambda *_: np.zeros((3, 6), np.float32)), r"Flat\.embed"),
        (Flat(change=lambda *_: np.zeros((4, 6))), r"Flat\.embed"),
        (Flat(change=fail), r"Flat\.embed fails even on blank samples .RuntimeError"),
        (
            Flat(change=lambda vectors, call: vectors[:, : 6 - call // 2]),
            r"Flat\.embed changed its dimension",
        ),
        (Flat(0), r"Flat\.batch_size"),
    ],
)
def test_an_embedding_that_breaks_the_contract_is_named_and_nothing_is_left(
    tmp_path, wrong, sentence
):
    with pytest.raises(ContractError, match=sentence):
        embed_private(dataset(), wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


class Picky(Flat):
    """Fails on whatever holds one of some records."""

    def __init__(self, hated):
        super().__init__()
        self.hated = hated

    def embed(self, samples):
        if any((image == PIXELS[i]).all() for image in samples.pixels for i in self.hated):
            raise ValueError("the patient's name is burned in: Doe^Jane")
        return super().embed(samples)


def test_a_record_that_the_embedding_fails_on_has_no_vector_and_the_others_have_theirs(
    caplog, capfd
):
    embedding = Picky({1, 9})
    answer = embed_private(dataset(), embedding, None)
    assert np.isnan(answer.vectors).all(axis=1).tolist() == [i in {1, 9} for i in range(10)]
    kept = [i for i in range(10) if i not in {1, 9}]
    np.testing.assert_array_equal(answer.vectors[kept], PIXELS.reshape(10, -1)[kept])
    assert set(embedding.shapes) == {(4, 2, 3, 1)}, "a call of another shape"
    assert "Record 9 casts no vote" in caplog.text
    assert "all votes are noise" not in caplog.text
    assert np.isnan(embed_private(dataset(), Picky(set(range(10))), None).vectors).all()
    assert "all votes are noise" in caplog.text
    assert repr(answer) == "PrivateEmbeddings(classes=('a', 'b'))"
    assert capfd.readouterr() == ("", "")


def calls_for(records, declared):
    embedding = Flat(batch_size=256)
    pixels = np.resize(PIXELS, (records, 2, 3, 1))
    data = dataset_of(Images(pixels), np.zeros(records, int), classes=["a"], declared_size=declared)
    assert len(embed_private(data, embedding, None)) == records
    return len(embedding.shapes)


def test_one_record_more_is_not_one_block_more_unless_far_more_are_there_than_declared():
    assert {calls_for(records, 256) for records in (0, 1, 255, 256, 257, 281)} == {2}
    assert calls_for(600, 256) == 3
    assert {calls_for(records, 1000) for records in (768, 769, 1024, 1025)} == {5}


KEYS = st.integers(0, 2**64 - 1)


@settings(max_examples=30)
@given(st.lists(st.integers(-1, 6), max_size=40), st.integers(1, 5), st.integers(1, 3), KEYS)
def test_the_votes_of_all_shards_are_the_votes_of_all(units, count, q, key):
    rng = np.random.default_rng(0)
    n = len(units)
    vectors = rng.standard_normal((n, 3)).astype(np.float32)
    private = PrivateEmbeddings(
        vectors, rng.integers(0, 2, n).astype(np.int32), np.array(units, np.int64), ("a", "b")
    )
    candidates, labels = (
        rng.standard_normal((9, 3)).astype(np.float32),
        np.array([0, 1, 0] * 3, np.int32),
    )
    parts = list(shards(private, count, key))
    assert len(parts) == count
    assert sorted(np.concatenate([part.vectors[:, 0] for part in parts])) == sorted(vectors[:, 0])
    for unit in set(units):
        assert sum(unit in part.units for part in parts) == 1
    whole = count_votes(private, candidates, labels, 2**16, Voting(q))
    np.testing.assert_array_equal(
        InThisProcess(batch=5).count_votes(private, candidates, labels, 2**16, Voting(q)), whole
    )
    np.testing.assert_array_equal(
        sum(count_votes(part, candidates, labels, 2**16, Voting(q)) for part in parts), whole
    )


@given(KEYS)
def test_a_key_spreads_units_that_lie_in_a_row(key):
    assert np.bincount(shard_of(np.arange(4000), 4, key), minlength=4).min() > 800
