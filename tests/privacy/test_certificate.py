"""The certificate says what holds, what does not, and finds what was tampered with."""

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from scipy.stats import norm

from pe.planning.releases import PlanSettings, plan
from pe.privacy.certificate import FORMAT, build_certificate, verify
from pe.privacy.certificate_text import (
    certificate_markdown,
    found_at_most,
    power,
    round_up,
    statement,
)
from pe.privacy.covered import hash_files, release_file
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.mechanisms import gaussian_epsilon
from pe.privacy.release import Poisson, Relation, Release
from tests.seeded_noise import UnsafeSeededNoise

BUDGET = Budget(4, 1e-6)
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / f"certificate-{FORMAT}.schema.json").read_text()
)
SETTINGS = PlanSettings(3, Relation.ADD_REMOVE, "patient", class_counts=0.05)


@cache
def planned(settings):
    """The releases; each plan is calibrated once for all tests."""
    return plan(BUDGET, settings)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "0.png").write_bytes(b"image")
    (tmp_path / "recipe.yaml").write_text("epsilon: 4\n")
    (tmp_path / "confidential").mkdir()
    (tmp_path / "confidential" / "journal").write_text("secret")
    (tmp_path / "certificate.json").write_text("{}")
    return tmp_path


def certify(ledger, files, size=10_000, **more):
    given = {
        "run": "cats-1",
        "files": files,
        "declared_size": size,
        "software": {"evolution": "0.1"},
    }
    return json.loads(json.dumps(build_certificate(ledger, **given | more)))


def certified(folder, *, noise=None, settings=SETTINGS, **more):
    ledger = Ledger(
        BUDGET, settings.relation, settings.unit, planned(settings), MemoryStore(), noise
    )
    first = ledger.plan[0]
    ledger.release(first, lambda noise: noise.discrete_laplace(2, first.scale))
    (folder / "releases").mkdir(exist_ok=True)
    (folder / release_file(first.name)).write_bytes(b"counts")
    return certify(ledger, hash_files(folder), **more)


def test_a_fresh_certificate_verifies_after_json(folder):
    certificate = certified(folder)
    assert verify(certificate, folder) == []
    assert certificate["holds"]
    assert 3.99 < certificate["epsilon"] <= 4
    files = ["recipe.yaml", "releases/class_counts.npy", "synthetic/0.png"]
    assert [one["file"] for one in certificate["covered"]] == files
    assert [one["state"] for one in certificate["releases"]] == [
        "released",
        "planned",
        "planned",
        "planned",
    ]


def test_a_changed_a_missing_and_a_new_file_are_named(folder):
    certificate = certified(folder)
    (folder / "synthetic" / "0.png").write_bytes(b"Image")
    (folder / "recipe.yaml").unlink()
    (folder / "link.png").symlink_to(folder / "confidential" / "journal")
    assert verify(certificate, folder) == [
        "'recipe.yaml' is covered but missing.",
        "'synthetic/0.png' was changed: its SHA-256 is not the certificate's.",
        "'link.png' is there but not covered.",
    ]
    assert "link.png" not in hash_files(folder)  # nor is it followed


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.update(epsilon=1.0), "not 1 as it says"),
        (lambda c: c["epsilon_at"][0].update(epsilon=1.0), "not 1 as it says"),
        (lambda c: c["releases"].pop(), "as it says"),
        (lambda c: c["releases"][1].update(charges=2), "as it says"),
        (lambda c: c["releases"][0].update(count=10**9), "count is 1000000000"),
        (
            lambda c: c.update(releases=[one | {"charges": 9_000} for one in c["releases"]]),
            "9000 times",
        ),
        (lambda c: c["releases"][1].update(sensitivity=10**400), "not a release"),
        (lambda c: c["releases"][1].update(relation="zero_out"), "cannot be added up"),
        (lambda c: c["releases"][1].update(unsafe=True), "unsafe noise was used"),
        (lambda c: c["relation"].update(name="zero_out"), "another relation"),
        (lambda c: c["unit"].update(words="everybody"), "'unit' is not"),
        (lambda c: c.update(statement="All is well."), "'statement' is not"),
        (lambda c: c.update(not_covered=[]), "'not_covered' is not"),
        (lambda c: c["budget"].update(epsilon=3.0), "exceed the budget"),
        (lambda c: c.update(gdp_mu=0.1), "μ is None"),
        (lambda c: c.update(format=99), "format 99"),
        (lambda c: c.pop("releases"), "damaged"),
        (
            lambda c: c["covered"].append({"file": "../secret", "sha256": "0"}),
            "'../secret' is covered but missing",
        ),
    ],
)
def test_a_tampered_certificate_is_found_out(folder, change, complaint):
    certificate = certified(folder)
    change(certificate)
    assert complaint in "\n".join(verify(certificate, folder))


def test_a_certificate_is_as_its_schema_says(folder):
    more = {
        "pool_overlaps": "declared",
        "declared_units": 7,
        "data_set": {"epsilon": 8.0, "delta": 2e-6, "runs": 2},
    }
    more |= {"private_data_sent_to": "host.example"}
    nothing = [Release("histogram/1", "none", 1.0, 0.0)]
    noiseless = certify(
        Ledger(None, Relation.ADD_REMOVE, "record", nothing, MemoryStore()), {}, None
    )
    for certificate in (certified(folder), certified(folder, **more), noiseless):
        jsonschema.validate(certificate, SCHEMA)
        assert certificate.keys() == SCHEMA["properties"].keys()
        assert certificate["releases"][0].keys() == SCHEMA["$defs"]["release"]["properties"].keys()


def test_unsafe_noise_voids_it_in_every_form(folder):
    certificate = certified(folder, noise=UnsafeSeededNoise(1))
    assert not certificate["holds"]
    assert certificate["statement"].startswith("NO GUARANTEE")
    assert certificate_markdown(certificate).startswith("# Privacy certificate: NO GUARANTEE")
    assert verify(certificate, folder) == []
    assert verify(certificate | {"holds": True}, folder) != []


def test_the_page_says_what_a_lawyer_needs(folder):
    page = certificate_markdown(
        certified(folder, data_set={"epsilon": 7.5, "delta": 1e-6, "runs": 2})
    )
    for words in (
        "ε = 4 at δ = 1e-06",
        "for itself: nobody else has checked it",
        "all records of the same 'patient' together",
        "confidential/",
        "trained beforehand",
        "| evolution | 0.1 |",
        "All 2 runs over this data that were recorded when it ended, together: ε = 7.5",
    ):
        assert words in page
    assert "Warnings" not in page


def test_it_speaks_of_the_unit_by_its_name_and_states_how_many_are_declared(folder):
    certificate = certified(folder, size=2_000_000, declared_units=300)
    page = certificate_markdown(certificate)
    assert "user" not in page
    assert "for one patient." in page
    assert "any one patient had never been in the data" in page
    assert "- Declared number of units, by 'patient' (public): 300" in page
    assert certificate["warnings"] == []  # δ is below one over the units, which it protects
    many = certified(folder, declared_units=2_000_000)
    assert "one over the declared number of privacy units" in many["warnings"][0]
    assert verify(many, folder) == []


def test_warnings_follow_from_the_numbers_and_cannot_be_left_out(folder):
    certificate = certified(folder, size=2_000_000)
    assert "Choose a smaller δ" in certificate["warnings"][0]
    assert "Warnings" in certificate_markdown(certificate)
    budget = Budget(20, 1e-6)
    ledger = Ledger(
        budget, Relation.ADD_REMOVE, "record", plan(budget, PlanSettings(3)), MemoryStore()
    )
    (folder / "releases" / "class_counts.npy").unlink()
    certificate = certify(ledger, hash_files(folder), warnings=["Few votes."])
    first, second = certificate["warnings"]
    assert first.startswith("ε = 20 is above 10")
    assert second == "Few votes."
    assert verify(certificate, folder) == []
    for left in ([], [second], [second, first]):
        assert verify(certificate | {"warnings": left}, folder) == [
            "Its 'warnings' is not what its numbers say."
        ]


def test_a_certificate_of_the_first_format_is_read_as_it_was(folder):
    budget = Budget(20, 1e-2)
    ledger = Ledger(
        budget, Relation.ADD_REMOVE, "record", plan(budget, PlanSettings(3)), MemoryStore()
    )
    now = certify(ledger, hash_files(folder), 1000)
    first = now | {"format": 1, "warnings": now["warnings"][:1]}  # of δ alone
    assert len(now["warnings"]) == 2
    assert verify(first, folder) == []
    assert verify(first | {"warnings": []}, folder) == [
        "Its 'warnings' is not what its numbers say."
    ]


def test_mu_stands_where_all_noise_is_gaussian_and_unsampled(folder):
    dp_sgd = Release(
        "dp_sgd", "discrete_gaussian", 1.0, 20.0, sampling=Poisson(0.01), count=10, grid=2**30
    )
    sampled = certified(folder, settings=PlanSettings(1, preset=(dp_sgd,)))
    assert sampled["gdp_mu"] is None
    next((folder / "releases").iterdir()).unlink()
    gaussian = certified(folder, settings=replace(SETTINGS, class_counts=None))
    assert gaussian["gdp_mu"] == pytest.approx(0.8, abs=0.1)
    assert "μ = 0." in certificate_markdown(gaussian)
    assert "as all noise is Gaussian" in gaussian["statement"]
    assert gaussian["notes"] == sampled["notes"]
    # the sentence of older ones, by ε and δ alone, is as valid
    older = statement(gaussian["epsilon"], gaussian["delta"], SETTINGS.relation, SETTINGS.unit, [])
    assert verify(gaussian | {"statement": older}, folder) == []
    forged = gaussian["statement"].replace("in 100, as", "in 1000, as")
    assert verify(gaussian | {"statement": forged}, folder) == [
        "Its 'statement' is not what its numbers say."
    ]


def test_a_printed_epsilon_is_never_below_the_true_one():
    assert [round_up(value) for value in (4.0000001, 3.9999999, 0)] == ["4.00001", "4", "0"]
    shown = [round_up(value, 4) for value in (1.0090957, 9.9999976, math.inf, 1.2340001)]
    assert shown == ["1.01", "10", "inf", "1.235"]


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1, 2.5, 5, 10, 20, 100])
def test_no_number_of_the_promise_is_below_the_true_one(epsilon):
    sentence = statement(epsilon, 1e-5, Relation.ADD_REMOVE, "record", [])
    factor, found = re.search(r"at most (\S+) times .* at most (\S+) in 100", sentence).groups()
    assert math.exp(epsilon) <= float(factor) * (1 + 1e-9) < math.exp(epsilon) * 1.002
    assert 100 * power(epsilon, 1e-5, 0.01) <= float(found) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.1, 0.27, 0.92, 2.0])
def test_what_gaussians_allow_is_never_below_the_best_test_and_far_below_what_epsilon_says(mu):
    epsilon = gaussian_epsilon(mu, 1e-5)
    best = 100 * norm.sf(norm.isf(0.01) - mu)
    found, alone = map(float, re.findall(r"(\S+) in 100", found_at_most(epsilon, 1e-5, mu)))
    assert best <= found * (1 + 1e-9) < best * 1.01
    assert found < alone
    assert found_at_most(epsilon, 1e-5, None) == f"{alone:g} in 100"


def test_a_delta_that_is_nearly_too_small_is_certified_without_the_smaller_ones(folder):
    budget = Budget(4.0, 1e-13)
    planned = plan(budget, PlanSettings(2, class_counts=0.1))
    certificate = certify(
        Ledger(budget, Relation.ADD_REMOVE, "record", planned, MemoryStore()), {}, None
    )
    assert [one["delta"] for one in certificate["epsilon_at"]] == pytest.approx(
        [1e-14, 1e-13, 1e-12]
    )
    assert verify(certificate, folder / "nothing") == []


def test_a_certificate_with_more_sampled_releases_than_the_accountant_can_add_up_soon_is_refused(
    folder,
):
    certificate = certified(folder)
    sampled = Release("fit/1", "discrete_gaussian", 1.0, 20.0, sampling=Poisson(0.01), grid=2**30)
    entry = {"charges": 1, "state": "planned", "unsafe": False}
    certificate["releases"] = [
        replace(sampled, name=f"fit/{i}", noise_multiplier=20.0 + i).to_dict() | entry
        for i in range(600)
    ]
    assert verify(certificate, folder) == [
        "The certificate is not valid: It lists 600 different sampled releases, more than 500."
    ]


def test_a_covered_name_leads_nowhere_else(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("mine")
    (folder / "d").symlink_to(outside)
    certificate = certified(folder)
    certificate["covered"].append({"file": "d/secret.txt", "sha256": "0"})
    assert "'d/secret.txt' is covered but missing." in verify(certificate, folder)


def test_a_generator_that_is_an_object_is_told_to_declare_nothing_and_an_earlier_cost_left_out_is_found(
    folder,
):
    undeclared = certified(folder, fitted_on_others="not declared")
    assert verify(undeclared, folder) == []
    assert "an object that does not declare any" in undeclared["not_covered"][0]
    assert verify(undeclared | {"fitted_on_others": None}, folder) != []
    earlier = undeclared | {
        "fitted_on_others": {"run": "a", "private_sets": "declared disjoint, not verified"}
    }
    (found,) = verify(earlier, folder)
    assert (
        found == "It leaves out the cost of another run's model, which this version always counts."
    )
