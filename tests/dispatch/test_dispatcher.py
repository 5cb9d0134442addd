from threading import Event

import numpy as np
import pytest

from pe.data.images import Images
from pe.data.population import NO_PARENT, Members, Population
from pe.data.samples import Conditions
from pe.dispatch.limits import Limits, Meter
from pe.errors import APIError, ContractError, LimitReached, PluginError
from pe.lookahead import EmbeddingCache, lookahead_embeddings
from pe.plugins.protocols import Answer
from pe.progress import Progress
from tests.dispatch.runs import LABELS, dispatcher
from tests.generators import Mean, Moody, Shades


def test_every_item_of_a_population_is_made_for_its_label_and_never_asked_for_again(tmp_path):
    api = Shades()
    population = dispatcher(tmp_path / "run", api).random(LABELS)
    assert population.labels.tolist() == LABELS.tolist()
    assert (population.parents == NO_PARENT).all()
    assert [label for request in api.random_requests for label in request.labels] == [
        "cat"
    ] * 25 + ["dog"] * 25
    assert max(map(len, api.random_requests)) == 7
    again = dispatcher(tmp_path / "run", api).random(LABELS)
    assert api.asked == 50
    np.testing.assert_array_equal(population.samples.array, again.samples.array)


def test_a_kept_member_is_its_parent_and_nobody_is_asked_for_it(tmp_path):
    api = Shades()
    dispatch = dispatcher(tmp_path / "run", api)
    first = dispatch.random(LABELS)
    parents, kept = np.array([3, 8, 3, 40, 40]), np.array([True, False, False, True, False])
    second = dispatch.variations(1, first, Members(parents, kept), 0.5)
    assert api.asked == 50 + 3
    assert np.array_equal(second.samples.array[kept], first.samples.array[parents[kept]])
    assert not np.array_equal(second.samples.array[2], second.samples.array[0])
    assert second.conditions["tint"].tolist() == first.conditions["tint"][parents].tolist()
    assert second.labels.tolist() == [0, 0, 0, 1, 1]
    assert second.parents.tolist() == parents.tolist()
    dispatch.variations(2, second, Members(np.arange(5), np.ones(5, np.bool_)), 0.5)
    assert api.asked == 50 + 3


def test_initial_variations_stand_behind_the_random_sample_that_they_are_of(tmp_path):
    api = Shades()
    population = dispatcher(tmp_path / "run", api).random(LABELS, 3, 0.5)
    assert population.labels.tolist() == LABELS.tolist()
    founders = Population.load(tmp_path / "run" / "populations" / "founders")
    assert founders.labels.tolist() == [0] * 7 + [1] * 7
    assert population.parents.tolist() == [
        *np.repeat(range(7), 4)[:25],
        *np.repeat(range(7, 14), 4)[:25],
    ]
    assert np.array_equal(population.samples.array[[0, 4, 25]], founders.samples.array[[0, 1, 7]])
    assert sum(map(len, api.random_requests)) == 14
    assert sum(map(len, api.variation_requests)) == 50 - 14


def test_a_request_says_which_iteration_s_it_is(tmp_path):
    api = Shades()
    dispatch = dispatcher(tmp_path / "run", api)
    first = dispatch.random(LABELS)
    for t in (1, 2):
        assert list(dispatch.lookahead(t, first, 1, 0.5))
        dispatch.variations(t, first, Members.offspring(np.arange(9)), 0.5, reuse=t)
        assert {request.iteration for request in api.variation_requests} == {t}
        api.variation_requests.clear()
    assert list(dispatch.vary_each("degree/0.5", first, 0.5, 2, "trying the degree"))
    assert {request.iteration for request in api.variation_requests} == {2}


def test_variations_are_given_while_others_are_asked_for_and_again_in_the_same_order(tmp_path):
    class Slow(Shades):
        given = Event()

        def variation_api(self, request):
            assert not self.variation_requests or self.given.wait(60)
            return super().variation_api(request)

    dispatch = dispatcher(tmp_path / "run", api := Slow())
    variations = dispatch.lookahead(1, dispatch.random(LABELS), 2, 0.5)
    first = next(variations)
    assert api.asked < 150
    api.given.set()
    given = [first, *variations]
    again = list(
        dispatch.lookahead(1, dispatch.random(LABELS), 2, 0.5)
    )  # as a resumed run adds them up
    assert api.asked == 150
    for one, other in zip(given, again, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1].array, other[1].array)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_where_embedding_fails_what_was_asked_for_is_kept_and_nothing_is_asked_for_twice(
    tmp_path, concurrency
):
    class Failing(Mean):
        def embed(self, samples):
            raise ContractError("out of order")

    def ahead(api, embedding):
        dispatch = dispatcher(tmp_path / "run", api)
        return lookahead_embeddings(
            dispatch.random(LABELS), 1, 2, 0.5, dispatch, EmbeddingCache(embedding, Progress())
        )

    broken, api = Shades(concurrency=concurrency), Shades()
    with pytest.raises(ContractError) as failed:
        ahead(broken, Failing())
    ahead(api, Mean())
    assert broken.asked > 50 + 7 * concurrency
    assert broken.asked + api.asked == 150
    assert str(failed.value) == "out of order"  # held until here, and with it all that it passed


def test_requests_share_what_the_generator_says_they_must(tmp_path):
    api = Shades(shares="parent", max_chunk=3)
    dispatch = dispatcher(tmp_path / "run", api)
    dispatch.variations(
        1, dispatch.random(LABELS), Members.offspring(np.repeat([5, 6, 30], 4)), 0.5
    )
    assert all(len(set(request.labels)) == 1 for request in api.random_requests)
    assert all(len(np.unique(request.samples.array)) == 1 for request in api.variation_requests)
    assert [len(request) for request in api.variation_requests] == [3, 1, 3, 1, 3, 1]


def test_a_variation_that_is_always_refused_keeps_its_parent_and_a_random_sample_ends_the_run(
    tmp_path,
):
    first = dispatcher(tmp_path / "run", Shades()).random(LABELS)
    api = Moody(refuse=1)
    parents = np.array([7, 7, 30])
    child = dispatcher(tmp_path / "run", api, retries=3).variations(
        1, first, Members.offspring(parents), 1.0
    )
    assert api.asked == 4 * 3
    np.testing.assert_array_equal(child.samples.array, first.samples.array[parents])
    assert child.conditions["tint"].tolist() == first.conditions["tint"][parents].tolist()
    with pytest.raises(
        APIError, match=r"item 0 of population/0 \(label 'cat'\) in 4 attempts: not this one"
    ):
        dispatcher(tmp_path / "other", Moody(refuse=1), attempts=2, retries=1).random(LABELS)


def test_a_run_in_which_too_much_is_refused_stops_and_can_go_on(tmp_path):
    api = Moody(refuse=2)
    meter = Meter(Limits(max_refused=0.2))
    with pytest.raises(
        LimitReached,
        match=r"refusals.max_share = 0.2 is reached \(\d+ of \d+ samples asked for were",
    ):
        dispatcher(tmp_path / "run", api, meter=meter).random(LABELS)
    assert api.asked < 50
    more = Moody(refuse=2)
    dispatcher(tmp_path / "run", more, meter=Meter(Limits(max_refused=0.9))).random(LABELS)
    seeds = [
        int(seed)
        for one in (api, more)
        for request in one.random_requests
        for seed in request.seeds
    ]
    assert len(set(seeds)) == len(seeds)


class Prompted(Moody):
    """Draws its condition before it is asked; one request holds one prompt."""

    drawn = ()

    def draw_conditions(self, labels, seeds):
        self.drawn = (*self.drawn, len(labels))
        names = [
            f"a {label}, {seed % np.uint64(3)}" for label, seed in zip(labels, seeds, strict=True)
        ]
        return Conditions({"prompt": np.array(names)})

    def random_api(self, request):
        answer = super().random_api(request)
        return Answer(answer.samples, missing=answer.missing)


def test_conditions_that_the_generator_draws_part_the_requests_and_stay_with_the_samples(tmp_path):
    api = Prompted(shares="condition")
    population = dispatcher(tmp_path / "run", api).random(LABELS)
    assert api.drawn == (50,)  # for the population at once
    assert all(len(set(request.conditions["prompt"])) == 1 for request in api.random_requests)
    assert len({request.conditions["prompt"][0] for request in api.random_requests}) == 6
    for label, prompt in zip(population.labels, population.conditions["prompt"], strict=True):
        assert prompt.startswith(f"a {('cat', 'dog')[label]},")


def test_a_refused_sample_keeps_its_prompt_until_it_is_drawn_anew(tmp_path):
    api = Prompted(refuse=1, max_chunk=1)
    with pytest.raises(APIError):
        dispatcher(tmp_path / "run", api, retries=2, attempts=9).random(LABELS[:1])
    every = [request.conditions["prompt"][0] for request in api.random_requests]
    assert len(every) == 27
    assert all(len(set(every[i : i + 3])) == 1 for i in range(0, 27, 3))
    assert len(set(every)) == 3


def test_chunks_have_the_same_members_wherever_the_run_was_broken_off(tmp_path):
    whole = Shades(max_chunk=8)
    dispatcher(tmp_path / "whole", whole).random(LABELS)
    broken = Moody(fail=11, retryable=False, max_chunk=8, concurrency=3)
    with pytest.raises(APIError, match="busy"):
        dispatcher(tmp_path / "broken", broken).random(LABELS)
    rest = Shades(max_chunk=8)
    again = dispatcher(tmp_path / "broken", rest)
    kept = again.run.journal.totals().usage.images
    again.random(LABELS)
    assert rest.asked == 50 - kept < 50
    chunks = {tuple(request.seeds) for request in whole.random_requests}
    first_tries = [
        tuple(request.seeds) for request in rest.random_requests if tuple(request.seeds) in chunks
    ]
    assert len(first_tries) >= len(rest.random_requests) - 1  # one packs what had failed
    assert len(rest.random_requests) < len(whole.random_requests)


def test_a_crash_of_the_adapter_is_one_sentence_and_loses_nothing(tmp_path):
    class Crashing(Shades):
        def random_api(self, request):
            if request.labels[-1] == "dog":
                raise ZeroDivisionError("oops")
            return super().random_api(request)

    crashing = Crashing()
    with pytest.raises(
        PluginError, match="The adapter Crashing failed with ZeroDivisionError: oops"
    ):
        dispatcher(tmp_path / "run", crashing).random(LABELS)
    api = Shades()
    dispatcher(tmp_path / "run", api).random(LABELS)
    assert api.asked == 50 - crashing.asked


def test_answers_of_different_sizes_are_refused(tmp_path):
    class Growing(Shades):
        def random_api(self, request):
            answer = super().random_api(request)
            wide = len(self.random_requests) > 5
            return Answer(Images(answer.samples.array.repeat(1 + wide, axis=2)))

    with pytest.raises(ContractError, match="one shape"):
        dispatcher(tmp_path / "run", Growing()).random(LABELS)
