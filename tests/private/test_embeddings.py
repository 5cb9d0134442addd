"""Private embeddings: one call shape, NaN for what cannot vote, nothing half-written."""

import numpy as np
import pytest

from pe.data.images import Images
from pe.errors import ContractError
from pe.private import ImageFolder, PrivateDataset, embed_private

PIXELS = np.random.default_rng(0).integers(1, 256, (10, 2, 3, 1), dtype=np.uint8)


class Flat:
    """The pixels as numbers; notes the shapes that it is called with."""

    def __init__(self, batch_size=4):
        self.batch_size = batch_size
        self.shapes = []

    def embed(self, samples):
        self.shapes.append(samples.pixels.shape)
        return samples.pixels.reshape(len(samples), -1).astype(np.float32)


def dataset(chosen=slice(None)):
    pixels = PIXELS[chosen]
    return PrivateDataset.of(
        Images(pixels), np.arange(len(pixels)) % 2, classes=["a", "b"], units=np.arange(len(pixels)) // 3
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_vectors_labels_and_units(tmp_path, on_disk):
    embedding = Flat()
    answer = embed_private(dataset(), embedding, tmp_path if on_disk else None)
    np.testing.assert_array_equal(answer.vectors, PIXELS.reshape(10, -1))
    assert answer.vectors.dtype == np.float32
    assert isinstance(answer.vectors, np.memmap) == on_disk
    assert not (on_disk and answer.vectors.flags.writeable)
    assert answer.labels.tolist() == [0, 1] * 5
    assert answer.units.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert answer.classes == ("a", "b")
    assert embedding.shapes == [(4, 2, 3, 1)] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["private_embeddings.npy"] * on_disk


@pytest.mark.parametrize("removed", [0, 3, 4, 9])
def test_removing_a_record_leaves_all_other_vectors_bit_identical(removed):
    kept = [index for index in range(10) if index != removed]
    whole, less = (embed_private(dataset(chosen), Flat(), None).vectors for chosen in (slice(None), kept))
    np.testing.assert_array_equal(whole[kept], less)


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_record_gives_no_vector(tmp_path, on_disk):
    embedding = Flat()
    answer = embed_private(dataset(slice(0)), embedding, tmp_path if on_disk else None)
    assert answer.vectors.shape == (0, 6)
    assert len(answer) == 0
    assert embedding.shapes == [(4, 2, 3, 1)]


def test_a_record_that_cannot_be_read_is_nan_even_when_it_was_deleted_after_the_preflight(tmp_path, picture):
    for number in range(6):
        picture(tmp_path / f"images/{number}.png", number)
    data = ImageFolder(tmp_path / "images", size=8).open()
    data.check()
    (tmp_path / "images/2.png").unlink()
    vectors = embed_private(data, Flat(), None).vectors
    assert np.isnan(vectors[2]).all()
    assert np.isfinite(np.delete(vectors, 2, axis=0)).all()


def test_a_vector_that_is_not_finite_becomes_nan_as_a_whole():
    class Broken(Flat):
        def embed(self, samples):
            answer = super().embed(samples)
            answer[1, 0] = np.inf
            return answer

    vectors = embed_private(dataset(), Broken(), None).vectors
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False, False] * 2 + [False, True]
    assert np.isnan(vectors).any(axis=1).sum() == 3


@pytest.mark.parametrize(
    "answer",
    [
        np.zeros((3, 6), np.float32),
        np.zeros((4, 6)),
        np.zeros(4, np.float32),
        [[0.0] * 6] * 4,
        None,
    ],
)
def test_an_embedding_that_breaks_the_contract_is_named_and_nothing_is_left(tmp_path, answer):
    class Wrong(Flat):
        def embed(self, samples):
            return answer

    with pytest.raises(ContractError, match="Wrong"):
        embed_private(dataset(), Wrong(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_that_fails_or_changes_halfway_leaves_nothing(tmp_path):
    class Fails(Flat):
        def embed(self, samples):
            if len(self.shapes) >= 1:
                raise RuntimeError("out of memory")
            return super().embed(samples)

    class Changes(Flat):
        def embed(self, samples):
            return super().embed(samples)[:, : 6 - len(self.shapes) // 2]

    with pytest.raises(ContractError, match=r"Fails\.embed fails even on blank samples .RuntimeError"):
        embed_private(dataset(), Fails(), tmp_path)
    with pytest.raises(ContractError, match="Changes"):
        embed_private(dataset(), Changes(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, -1, 2.0, None])
def test_a_wrong_batch_size_is_named(size):
    with pytest.raises(ContractError, match=r"Flat\.batch_size"):
        embed_private(dataset(), Flat(size), None)


def test_nothing_is_printed_and_the_repr_hides_the_number(capfd):
    answer = embed_private(dataset(), Flat(), None)
    assert repr(answer) == "PrivateEmbeddings(classes=('a', 'b'))"
    assert capfd.readouterr() == ("", "")


class Picky(Flat):
    """Fails on whatever holds one of some records, in one of two ways."""

    def __init__(self, hated, **settings):
        super().__init__(**settings)
        self.hated = hated

    def embed(self, samples):
        if any((image == PIXELS[i]).all() for image in samples.pixels for i in self.hated):
            raise ValueError("the patient's name is burned in: Doe^Jane")
        return super().embed(samples)


def test_a_record_that_the_embedding_fails_on_has_no_vector_and_the_others_have_theirs(caplog, capfd):
    embedding = Picky({1, 9})
    vectors = embed_private(dataset(), embedding, None).vectors
    assert np.isnan(vectors).all(axis=1).tolist() == [i in {1, 9} for i in range(10)]
    kept = [i for i in range(10) if i not in {1, 9}]
    np.testing.assert_array_equal(vectors[kept], PIXELS.reshape(10, -1)[kept])
    assert set(embedding.shapes) == {(4, 2, 3, 1)}, "a call of another shape"
    assert "Record 9 casts no vote" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_an_embedding_that_fails_on_every_record_is_told_in_the_log_alone(caplog, capfd):
    assert np.isnan(embed_private(dataset(), Picky(set(range(10))), None).vectors).all()
    assert "all votes are noise" in caplog.text
    assert capfd.readouterr() == ("", "")


def calls_for(records, declared):
    embedding = Flat(batch_size=256)
    pixels = np.resize(PIXELS, (records, 2, 3, 1))
    data = PrivateDataset.of(Images(pixels), np.zeros(records, int), classes=["a"], declared_size=declared)
    assert len(embed_private(data, embedding, None)) == records
    return len(embedding.shapes)


def test_the_number_of_calls_follows_from_the_declared_size():
    """One record more is not one block more; only far more records than declared are."""
    assert {calls_for(records, 256) for records in (0, 1, 255, 256, 257, 281)} == {2}
    assert calls_for(600, 256) == 3
    assert {calls_for(records, 1000) for records in (768, 769, 1024, 1025)} == {5}
