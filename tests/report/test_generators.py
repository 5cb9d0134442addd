"""Which of several generators the records preferred, as the shareable report tells it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.data.images import Images
from pe.data.population import Population
from pe.data.samples import Conditions
from pe.engine.report import write_report
from pe.privacy.certificate import verify
from pe.report.sections import Generation, generator_shares
from pe.store.run import Run
from tests.durability.driver import make_private
from tests.generators import Mean

SIGMA = 3.0


def population(makers: np.ndarray) -> Population:
    samples = Images(np.zeros((len(makers), 1, 1, 1), np.uint8))
    nobody = np.full(len(makers), -1, np.int64)
    return Population(samples, np.zeros(len(makers), np.int32), Conditions({"generator": makers}), nobody)


def generation(votes: np.ndarray) -> Generation:
    return Generation(1, 0.5, votes, 0.0, SIGMA, None, 0.5, 1.0, None, None, None, None)


def test_the_noise_beside_a_share_is_what_the_noise_does_to_it() -> None:
    makers = np.array(["a"] * 300 + ["b"] * 100)
    true = np.where(makers == "a", 20.0, 40.0)
    rng, shares = np.random.default_rng(0), []
    for _ in range(400):
        first, *_ = generator_shares([population(makers)], [generation(true + rng.normal(scale=SIGMA, size=400))])
        shares.append(first.votes)
    assert first.made == 0.75
    assert np.mean(shares) == pytest.approx(0.6, abs=0.001)
    assert first.noise == pytest.approx(np.std(shares), rel=0.1)


def test_without_votes_above_zero_and_without_makers_nothing_is_claimed() -> None:
    makers = np.array(["a", "b"])
    told = generator_shares([population(makers), population(makers)], [generation(np.array([-3.0, 1.0]))])
    assert [(one.t, one.name, one.made, one.votes) for one in told[:2]] == [(1, "a", 0.5, None), (1, "b", 0.5, None)]
    assert [one.votes for one in told[2:]] == [None, None]
    plain = population(makers)
    bare = Population(plain.samples, plain.labels, Conditions(), plain.parents)
    assert generator_shares([bare], [generation(np.ones(2))]) == []


def test_the_page_shows_each_generators_share_and_is_post_processing(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=60)
    small = {"kind": "glyphs", "size": 8}
    api = pe.api("portfolio", of=[small | {"name": "thin"}, small | {"name": "fat"}])
    given = {"population": 40, "iterations": 2, "lookahead": 0, "degree": 0.5, "noise_multiplier": 1, "delta": 1e-5}
    folder = pe.evolve(data, api, embedding=Mean(), out=tmp_path / "run", **given).folder
    page = write_report(folder).read_text()
    assert "Which generator the records preferred" in page
    section = page.partition("Which generator the records preferred")[2].partition("</section>")[0]
    rows = re.findall(r"<tr><td>(S\d)</td><td>(\w+)</td><td>([\d.]+%)</td><td>([^<]+)</td><td>([^<]+)</td>", section)
    assert [row[:2] for row in rows] == [(f"S{t}", name) for t in range(3) for name in ("fat", "thin")]
    assert rows[0][2] == rows[1][2] == "50.0%"
    assert [row[3:] for row in rows[4:]] == [("–", "–"), ("–", "–")]
    assert not verify(Run.open(folder).guarantee, folder)
