"""Memorisation and attacks show where it was planted, and nowhere else; copies of records are named
and told of.
"""

import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import pe
from embeddings.pixels import Pixels
from pe.cli.evaluate import evaluate
from pe.data.images import Images
from pe.engine.execution import RunContext, run_recipe
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.memorisation import (
    LEAST,
    MOST,
    PAIRS,
    _alike,
    loss_attack,
    membership,
    memorisation,
    nearer_private,
)
from pe.fit.trainer import FITTED
from pe.judgement.labelled import Labelled
from pe.privacy.release import Release
from pe.recipe.schema import Recipe
from pe.report.pages import internal_report
from pe.store.run import Run
from tests.evaluation import conftest
from tests.generators import images_of

DIGITS = np.random.default_rng(0).permutation((load_digits().images * 15).astype(np.uint8))[
    ..., None
]
PRIVATE, HELDOUT, OTHERS = DIGITS[:900], DIGITS[900:1350], DIGITS[1350:]
ALIKE = np.clip(
    PRIVATE[:400] + np.random.default_rng(1).normal(0, 8, (400, 8, 8, 1)), 0, 255
).astype(np.uint8)


def measured(generated, private=PRIVATE, heldout=HELDOUT):
    return memorisation(
        *map(Images, (generated, private, heldout)),
        CachedEmbedding("pixels", Pixels(size=8, blur=0)),
    )


def join(*parts):
    return np.concatenate(parts)


def noise(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def test_copies_of_private_records_are_found_and_nothing_else_is():
    private, heldout, generated = noise(200, 0), noise(150, 1), noise(80, 2)
    found = measured(generated, private, heldout)
    assert found.membership.low < 0.5 < found.membership.high
    assert np.median(found.private_to_generated) == pytest.approx(
        np.median(found.heldout_to_generated), rel=0.05
    )
    generated[10:50] = private[:40]
    found = measured(generated, private[:60], heldout)
    assert sorted(map(tuple, found.pairs.tolist())) == [(10 + i, i) for i in range(PAIRS)]
    assert not found.pair_distances.any()
    assert found.membership.low > 0.6
    assert np.median(found.generated_to_private) < 0.5 * np.median(found.heldout_to_private)


def test_distances_are_those_of_brute_force():
    sets = noise(30, 2), noise(20, 0), noise(25, 1)
    found = measured(*sets)
    made, records, unseen = (
        Pixels(size=8, blur=0).embed(Images(each)).astype(np.float64) for each in sets
    )

    def to_nearest(x, y):
        return np.linalg.norm(x[:, None] - y, axis=2).min(axis=1)

    np.testing.assert_allclose(found.generated_to_private, to_nearest(made, records), rtol=1e-9)
    np.testing.assert_allclose(found.private_to_generated, to_nearest(records, made), rtol=1e-9)
    np.testing.assert_allclose(found.heldout_to_private, to_nearest(unseen, records), rtol=1e-9)
    np.testing.assert_allclose(found.heldout_to_generated, to_nearest(unseen, made), rtol=1e-9)
    quantiles = found.to_dict()["generated_to_private"]
    assert quantiles["quantiles"][50] == pytest.approx(np.median(found.generated_to_private))
    assert len(quantiles["levels"]) == len(quantiles["quantiles"]) == 101


def test_the_auc_is_scikit_learns():
    rng = np.random.default_rng(0)
    members, others = (
        rng.integers(0, 20, 70).astype(float),
        rng.integers(3, 25, 50).astype(float),
    )  # with ties
    truth = np.repeat([1, 0], [70, 50])
    assert membership(members, others).auc == pytest.approx(
        roc_auc_score(truth, -np.concatenate([members, others]))
    )


@pytest.mark.parametrize("shift", [0.0, 1.2])
def test_the_interval_holds_the_true_area_as_often_as_it_says(shift):
    """Normal distances a shift apart: the true area is Φ(shift/√2)."""
    rng, truth = np.random.default_rng(1), norm.cdf(shift / np.sqrt(2))
    drawn = (membership(rng.normal(0, 1, 40), rng.normal(shift, 1, 30)) for _ in range(1000))
    held = np.mean([found.low <= truth <= found.high for found in drawn])
    assert 0.93 < held <= 0.98


def compressed(image):
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0]).save(buffer, "JPEG", quality=75)
    return np.asarray(Image.open(buffer))[..., None]


COMPRESSED = np.stack([compressed(image) for image in PRIVATE[:200]])
NEAR_ONE = PRIVATE[:1] ^ (np.arange(64) == 0).reshape(8, 8, 1)
SAME = join(ALIKE[:200], OTHERS[:200])
BLANK, LARGER = np.zeros((60, 8, 8, 1), np.uint8), PRIVATE[:50].repeat(2, axis=1).repeat(2, axis=2)
CASES = {
    "real images that no run has seen": (OTHERS, PRIVATE, HELDOUT, 0, (0, 3), False),
    "exact copies": (
        join(OTHERS[:100], PRIVATE[:7], PRIVATE[:1]),
        PRIVATE,
        HELDOUT,
        8,
        (0, 3),
        False,
    ),
    "noised copies": (ALIKE[:200], PRIVATE, HELDOUT, 0, (181, 200), True),
    "compressed copies": (COMPRESSED, PRIVATE, HELDOUT, 0, (181, 200), True),
    "held-out images of the same people": (
        SAME,
        PRIVATE,
        join(ALIKE[200:], HELDOUT[:200]),
        0,
        (151, 400),
        False,
    ),
    "one near copy over and over": (
        join(OTHERS, NEAR_ONE.repeat(400, axis=0)),
        PRIVATE,
        HELDOUT,
        0,
        (400, 410),
        False,
    ),
    "images of one colour": (
        join(OTHERS[:100], BLANK),
        join(PRIVATE, BLANK),
        HELDOUT,
        0,
        (0, 3),
        False,
    ),
    "copies of another size": (LARGER, PRIVATE, HELDOUT, 0, (0, 50), False),
}


@pytest.mark.parametrize(
    ("generated", "private", "heldout", "exact", "near", "alarm"), CASES.values(), ids=CASES
)
def test_copies_are_counted_and_alarming_if_they_are_more_than_held_out_images_explain(
    generated, private, heldout, exact, near, alarm
):
    found = measured(generated, private, heldout).copies
    assert (found.exact, found.generated, found.beyond_chance) == (exact, len(generated), alarm)
    assert near[0] <= found.near <= near[1]
    said = [
        f"{exact} of {len(generated)} generated images are private records, pixel by pixel"
    ] * bool(exact)
    said += [
        f"{found.near} of {len(generated)} generated images are near copies of private records, "
        "more"
    ] * alarm
    assert [
        warning[: len(start)] for warning, start in zip(found.warnings, said, strict=True)
    ] == said


def test_the_owner_alone_is_told_on_the_console_in_the_metrics_and_in_the_report(
    tmp_path, monkeypatch
):
    for name, images in (("private", PRIVATE[:60]), ("test", HELDOUT[:40])):
        np.savez(tmp_path / f"{name}.npz", images=images)
    run = pe.evolve(
        pe.ImageNpz(tmp_path / "private.npz", size=8, channels=1),
        pe.api("public_images", path=str(tmp_path / "private.npz"), channels=1),
        out=tmp_path / "run",
        pool_overlaps="declared",
        **{"epsilon": 4, "delta": 1e-3, "population": 30, "iterations": 1, "lookahead": 0},
    )
    monkeypatch.chdir(tmp_path)
    asked = [
        "run",
        "--test",
        "test.npz",
        "--metrics",
        "memorisation",
        "--no-one-vote",
    ]
    result = CliRunner().invoke(evaluate, asked, catch_exceptions=False)
    told = "30 of 30 generated images are private records, pixel by pixel"
    assert f"warning: {told}" in result.stderr
    assert "copies of private records: 30 exact, 0 near, of 30" in result.stdout
    assert (
        json.loads((run.confidential / "metrics.json").read_text())["memorisation"]["copies"][
            "exact"
        ]
        == 30
    )
    assert told in internal_report(run)
    files = [
        path
        for path in run.folder.rglob("*")
        if path.is_file() and "confidential" not in path.parts
    ]
    assert not any(b"pixel by pixel" in path.read_bytes() for path in files)


SIDE, CLASSES, COUNT = 4, ["no", "yes"], 60
FEW = 24
"""Of two labels, fewer of each than the 16 pixels: the directions of a Gaussian without noise are
its own records."""


def noisy_npz(path, seed, count):
    """Images of which nothing tells of another."""
    np.savez(
        path,
        images=noise(count, seed)[:, :SIDE, :SIDE],
        labels=np.array(CLASSES)[np.arange(count) % 2],
    )
    return path


def fitted(folder, epsilon, count):
    private = {
        "path": noisy_npz(folder / "private.npz", 0, count),
        "classes": CLASSES,
        "declared_size": count,
    }
    content = {
        "private": {"kind": "npz", "size": SIDE, "channels": 1, **private},
        "api": {
            "kind": "dp_gaussian",
            "public": {"kind": "noise", "count": 50},
            "covariance": "per_label",
        },
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": epsilon, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 8},
    }
    run_recipe(Recipe.parse(content, "the test"), folder / "run", RunContext())
    return Run.open(folder / "run")


def attacked(run, count=COUNT, **changes):
    """The evaluation of the run, whose model says of itself what it says, but for `changes`."""
    file = run.folder / "model" / FITTED
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | changes))
    test = noisy_npz(run.folder.parent / "test.npz", 1, count)
    values = conftest.evaluate(run, test, metrics=("memorisation",), api=None, embedding=None)
    file.write_text(before)
    return values


def test_the_records_of_a_fit_without_privacy_are_found_and_a_false_claim_is_told(tmp_path):
    run = fitted(tmp_path, 1e5, FEW)
    found = attacked(run)["memorisation"]["membership_by_loss"]
    assert found["each"] == FEW
    assert found["tpr"]["low"] > 0.5
    assert found["auc"]["auc"] > 0.9
    assert found["allowed"]["tpr"] == 1
    assert found["warnings"] == []
    claimed = Release("fit/sums", "discrete_gaussian", 1.0, 5.0, grid=2**30).to_dict()
    told = attacked(run, releases=[claimed])["memorisation"]
    (warning,) = told["membership_by_loss"]["warnings"]
    assert "the fit's guarantee allows 19%" in warning
    assert warning in told["warnings"]
    assert attacked(run, holds=False)["memorisation"]["membership_by_loss"]["allowed"] is None


def test_those_of_a_private_fit_are_not_found(tmp_path):
    run = fitted(tmp_path, 1.0, COUNT)
    found = attacked(run)["memorisation"]["membership_by_loss"]
    assert 0.1 < found["allowed"]["tpr"] < found["allowed"]["by_epsilon"]
    assert found["tpr"]["low"] < found["allowed"]["tpr"]
    assert found["auc"]["high"] < 0.9
    assert found["allowed"]["epsilon"] == pytest.approx(1, rel=1e-6)
    few = attacked(run, LEAST - 2)
    assert "membership_by_loss" not in few["memorisation"]
    assert f"and there are {LEAST - 2}." in few["notes"][-1]
    assert "the run 'run' fitted it on its own records" in attacked(run, kind="dpdm")["notes"][-1]


def test_its_hits_are_those_of_the_threshold_that_the_held_out_samples_set():
    rng, mu, n = np.random.default_rng(0), 1.5, 4000
    found = loss_attack(rng.normal(-mu, 1, n), rng.normal(0, 1, n))
    assert found.alarms == 0.1 * n
    assert found.interval[0] < norm.sf(norm.isf(0.1) - mu) < found.interval[1]
    assert found.most_alarms > 0.1
    same = loss_attack(np.zeros(50), np.zeros(50))  # a model that knows nothing of anyone
    assert (same.hits, same.alarms, same.auc.auc) == (0, 0, 0.5)


def test_members_and_held_out_samples_are_as_many_of_each_label():
    sets = []
    for counts in ((900, 30, 0), (600, 50, 40)):
        labels = np.repeat(np.arange(3), counts).astype(np.int32)
        sets.append(Labelled(images_of(np.zeros(len(labels), np.uint8)), labels))
    rows = _alike(*sets, seed=0)
    one, other = (
        np.bincount(each.labels[row], minlength=3).tolist()
        for each, row in zip(sets, rows, strict=True)
    )
    assert one == other == [MOST * 600 // 630, MOST * 30 // 630, 0]
    assert all(len(set(row)) == len(row) for row in rows)


def test_fresh_samples_lie_as_near_to_held_out_ones_and_copies_nearer_to_the_records():
    rng = np.random.default_rng(0)
    fresh, private, heldout = (rng.normal(size=(300, 4)).astype(np.float32) for _ in range(3))
    found = nearer_private(fresh, private, heldout, 0)
    assert found.low < 0.5 < found.high
    assert found.records == 300
    assert "chance gives 50%" in found.sentence("rows")
    copies = nearer_private(private, private, heldout, 0)
    assert (copies.share, copies.high) == (1, 1)
    assert copies.low > 0.95
    # Many samples beside one record are no more than one sign of it.
    one = nearer_private(np.repeat(private[:1], 300, axis=0), private, heldout, 0)
    assert one.low < 0.5
