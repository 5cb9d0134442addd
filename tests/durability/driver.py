"""Processes to be killed at any instant, forked from a server that is warm; and a small run
in one.
"""

import importlib
import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.engine.execution import RunContext, resume_run, run_recipe
from pe.planning.parts import object_kind
from pe.recipe.schema import Recipe
from tests.generators import Mean, Shades

WARM = (
    *(
        "faiss",
        "PIL.PngImagePlugin",
        "scipy.optimize",
        "scipy.special",
        "httpx2",
        "jinja2",
        "openai",
        "rich.progress",
    ),
    *(
        "pe.cli.main",
        "pe.engine.report",
        "pe.engine.execution",
        "pe.evaluation.evaluate",
        "pe.engine.status",
    ),
    *("adapters.openai_images", "adapters.pools", "adapters.server_client", "embeddings.pixels"),
    *("adapters.caption_then_draw", "adapters.chat", "adapters.comfyui", "adapters.glyphs"),
    *("adapters.pools", "embeddings.tfidf"),
    *("tests.durability.driver", "tests.endpoints.job_hosts", "tests.endpoints.openai_server"),
)

CHUNK, WORKERS = 5, 2
POPULATION, ITERATIONS, LOOKAHEAD = 20, 3, 2


class Counting:
    """Writes the seed of every item that it is asked for to a file, before it answers."""

    def __init__(self, log, **settings):
        super().__init__(**settings)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def random_api(self, request):
        self._count(request.seeds)
        return super().random_api(request)  # type: ignore[misc]

    def variation_api(self, request):
        self._count(request.seeds)
        return super().variation_api(request)  # type: ignore[misc]

    def _count(self, seeds):
        os.write(self._log, "".join(f"{seed}\n" for seed in seeds).encode())


class Counted(Counting, Shades):
    def __init__(self, log, deterministic=True):
        super().__init__(log, max_chunk=CHUNK, concurrency=WORKERS)
        self.capabilities = replace(self.capabilities, deterministic=deterministic)


class CountedTexts(Counting, PublicTexts):
    def __init__(self, log, deterministic=True):
        super().__init__(log, path=log.with_name("public.txt"), longest=60)
        self._deterministic = deterministic

    @property
    def capabilities(self):
        found = super().capabilities
        return replace(
            found, max_chunk=CHUNK, concurrency=WORKERS, deterministic=self._deterministic
        )


class SameNoise:
    """UNSAFE: the same draws at every call, so that a run that was killed can be compared with one
    that was not.
    """

    unsafe = True

    def discrete_gaussian(self, shape, scale):
        return np.rint(np.random.default_rng(0).normal(scale=scale, size=shape)).astype(np.int64)

    discrete_laplace = discrete_gaussian


PRIVATE = {"images": "private.npz", "texts": "private.csv"}


def make_private(path):
    rng = np.random.default_rng(0)
    if path.name == PRIVATE["texts"]:
        path.with_name("public.txt").write_text(
            "".join(f"the shade {i:b} of number {i % 7}\n" for i in range(90))
        )
        path.write_text(
            "".join(["text,label\n", *(f"a shade of {i:b},{'ab'[i % 2]}\n" for i in range(60))])
        )
        return
    images = rng.integers(0, 255, (60, 4, 4, 1)).astype(np.uint8)
    whole = path.with_suffix(".new.npz")
    np.savez(whole, images=images, labels=np.array(["a", "b"] * 30))
    whole.rename(path)


def surroundings_of(private):
    """What a run over these private records is given as objects; what the API is asked goes to
    `asked` beside them.
    """
    log, noise = private.with_name("asked"), SameNoise()
    if private.name == PRIVATE["texts"]:
        return RunContext(api=CountedTexts(log), embedding=TfIdf(), noise=noise)
    return RunContext(api=Counted(log), embedding=Mean(), noise=noise)


RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "reusing its lookahead, the last taken as chosen": {
        "reuse_lookahead": True,
        "degree": [0.5, 0.5, 0],
    },
    "keeping what it paid for": {
        "keep": ["selected", "winners", "all"],
        "population": [POPULATION, POPULATION, POPULATION, 2 * POPULATION],
        "selection": ["rank", "systematic", "sample"],
        "offspring": [1, 2, 3],
        "initial_variations": 3,
        "lookahead": 0,
    },
}


def recipe(private, rule="plain"):
    source: dict[str, Any] = {"kind": "npz", "size": 4, "channels": 1}
    api, embedding = f"object:{Counted.__module__}.{Counted.__qualname__}", object_kind(Mean())
    if private.name == PRIVATE["texts"]:
        source = {"kind": "text_table", "label_column": "label", "longest": 60}
        api, embedding = (
            f"object:{CountedTexts.__module__}.{CountedTexts.__qualname__}",
            object_kind(TfIdf()),
        )
    return Recipe.parse(
        {
            "name": "small",
            "private": source | {"path": private, "classes": ["a", "b"]},
            "api": {"kind": api},
            "embedding": {"kind": embedding},
            "privacy": {"noise_multiplier": 1, "delta": 1e-5},
            "evolution": {
                "iterations": ITERATIONS,
                "population": POPULATION,
                "lookahead": LOOKAHEAD,
            }
            | RULES[rule],
        },
        "the test",
    )


def begin_or_go_on(recipe, run, context):
    """Carry a run out to its end, whether it is there already or not."""
    return resume_run(run, context) if run.exists() else run_recipe(recipe, run, context)


def carry_out(folder, kind="images", rule="plain"):
    """Begin the run in `folder`/run, or go on with it, to its end; what the API is asked goes to
    `folder`/asked.
    """
    private = folder / PRIVATE[kind]
    if not private.exists():
        make_private(private)
    begin_or_go_on(recipe(private, rule), folder / "run", surroundings_of(private))


def start(folder, kind="images", rule="plain"):
    """`carry_out` in a process of its own."""
    return forked(carry_out, folder, kind, rule)


def forked(target, *arguments):
    """A process that carries out `target`, forked from the one server of a session."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(WARM))
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def swept(target, folder, numbers, at="", modules=()):
    """Carry out `target(folder)`, each time killed before the next of these operations, until it
    ends: how many kills.

    An operation is a file's renaming, or the opening of a folder, which is synced then. `at`: those
    alone count whose place has this in its name. `modules` are imported once for all.
    """
    process = forked(_sweep, target, folder, numbers, at, modules)
    process.join(200)
    assert process.exitcode == 0
    return int((folder / "kills").read_text())


def _sweep(target, folder, numbers, at, modules):
    for name in modules:
        importlib.import_module(name)
    for kills, number in enumerate(numbers):
        child = os.fork()
        if not child:
            _be_killed_before(number, at)
            target(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            (folder / "kills").write_text(str(kills))
            sys.exit(os.WEXITSTATUS(status))


def _be_killed_before(number, at):
    left = number

    def hook(event, arguments):  # Python tells it before it asks the system
        nonlocal left
        opens_folder = event == "open" and os.path.isdir(arguments[0])  # noqa: PTH112
        if opens_folder or event == "os.rename":
            left -= at in str(arguments[0 if opens_folder else 1])
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
