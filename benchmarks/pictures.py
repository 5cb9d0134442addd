"""What a newcomer's default is worth on colour pictures: accuracy beside all controls, by pool,
embedding and ε.

    python benchmarks/pictures.py [--pools unlabelled by_class] [--embeddings …] [--epsilon E …]
    [--runs N] python benchmarks/pictures.py --private twitter --public facebook [--set A.B=VALUE …]
    # to choose rules

The picture set and the recipe are those of `examples/emoji.py`; a pool with classes draws by them.
Accuracy is that of a linear probe on features of EfficientNet-Lite0, on held-out private pictures.
A cell that was measured, of the same recipe, is not run again. Writes results/pictures.md and
docs/images/pictures.png; with another private maker it prints each cell, and keeps them beside the
pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from record import RESULTS, keep, where
from sets import CLASSES, SIDE, make_picture_set, pictures_recipe, probe_accuracies

from adapters.public_files import SUFFIXES, read_folder
from embeddings.networks import EfficientNetLite
from pe.data.images import Images
from pe.data.population import Population
from pe.data.tables import files_below
from pe.engine.execution import RunContext, run_recipe
from pe.evaluation.grade import variety_of
from pe.evaluation.labelled import Labelled
from pe.evaluation.sets import Notes, Request, gather
from pe.lookahead import embed
from pe.planning.choice import choose_evolution
from pe.planning.parts import build_generator, object_kind
from pe.plugins.protocols import PluginInfo, Vectors
from pe.progress import Progress
from pe.recipe.reading import with_change
from pe.recipe.schema import Recipe
from pe.report.pictures import contact_sheet
from pe.store.run import Run
from pe.store.writer import read_journal

POOLS, EMBEDDINGS, EPSILONS = (
    ("unlabelled", "raw_votes", "by_class"),
    ("efficientnet_lite", "pixels"),
    (4.0, 1.0, 10.0),
)


class Remembering:
    """EfficientNet-Lite0, which embeds each picture once: a pool's picture occurs in every
    population.
    """

    info = PluginInfo(hosts=())

    def __init__(self, file: Path) -> None:
        self._network, self._file = EfficientNetLite(device="cpu"), file
        self._known: dict[bytes, Vectors] = {}
        if file.is_file():
            with np.load(file) as kept:
                self._known = {
                    name.tobytes(): vector for name, vector in zip(*kept.values(), strict=True)
                }
        self.batch_size = self._network.batch_size

    def embed(self, images: Images) -> Vectors:
        names = [hashlib.sha256(image.tobytes()).digest() for image in images.pixels]
        new = {
            name: image
            for name, image in zip(names, images.pixels, strict=True)
            if name not in self._known
        }
        if new:
            padded = np.zeros((self.batch_size, *images.shape), np.uint8)
            padded[: len(new)] = list(new.values())
            vectors = self._network.embed(Images(padded))
            self._known |= dict(zip(new, vectors, strict=False))
        return np.stack([self._known[name] for name in names])

    def keep(self, images: Images) -> None:
        """Embed these and write their vectors to the file, batch by batch; others stay in memory
        only.
        """
        for start in range(0, len(images), self.batch_size):
            before = len(self._known)
            self.embed(images.take(slice(start, start + self.batch_size)))
            if len(self._known) > before:
                names = np.array([list(name) for name in self._known], np.uint8)
                np.savez(self._file, names=names, vectors=np.stack(list(self._known.values())))


@dataclass(frozen=True, eq=False)
class Setting:
    """What all cells share.

    Attributes:
        folder: the picture set.
        network: the embedding of the probe, and of votes where a cell asks for it.
        changes: to the recipe, `a.b=value`.
    """

    folder: Path
    network: Remembering
    changes: tuple[str, ...] = ()


def recipe_for(pool: str, embedding: str, epsilon: float, run: int, setting: Setting) -> Recipe:
    """The demo's recipe with another pool, embedding, ε or seed, and with what it leaves open
    chosen.
    """
    content = pictures_recipe(setting.folder) | {"seed": run}
    content["privacy"]["epsilon"] = epsilon
    content["embedding"] = {
        "kind": object_kind(setting.network) if embedding == "efficientnet_lite" else embedding
    }
    if pool == "by_class":
        content["api"] |= {"path": str(setting.folder / "public-by-class"), "by_label": True}
    if (setting.changes or pool == "raw_votes") and content["evolution"] == "auto":
        content["evolution"] = {"votes": "raw"} if pool == "raw_votes" else {}
    for change in setting.changes:
        content = with_change(content, change)
    recipe = Recipe.parse(content, "benchmarks/pictures.py")
    return choose_evolution(recipe, build_generator(recipe)).recipe


def cell(
    recipe: Recipe, pool: str, run: int, setting: Setting, sheet: Path | None, controls: bool = True
) -> dict[str, Any]:
    """One run of the engine: the accuracies of its pictures and of their controls, and how long it
    took.

    Without `controls`, those that ask the generator are left out.
    """
    by_network = recipe.embedding.kind == object_kind(setting.network)
    around = RunContext(embedding=setting.network if by_network else None)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = run_recipe(recipe, Path(folder) / "run", around)
        seconds = round(time.monotonic() - started)
        with read_journal(made) as journal:
            images = int(journal.totals().usage.images)
        test = str(setting.folder / "test")
        asked = Request(
            test, random_selection=controls, one_vote=controls, embedding=around.embedding
        )
        sets = gather(made, asked, Notes(Progress()), around.stop)
        if sheet is not None and pool == "unlabelled" and by_network and run == 0:
            write_sheet(Run.open(made.folder), setting.folder / "public", sheet)
        scores = probe_accuracies(sets.by_name, sets.test.content, setting.network, Progress())
        shown, private = (
            embed(setting.network, one.images) for one in (sets.by_name["synthetic"], sets.private)
        )
    different = variety_of(shown, private, 0).synthetic
    return {
        "accuracy": scores,
        "seconds": seconds,
        "images": images,
        "shown": len(shown),
        "different": different,
    }


def fixed(setting: Setting) -> dict[str, Any]:
    """What the private pictures are worth, and the public ones with their true classes: neither
    costs an ε.
    """
    sets = {}
    for name, part in (("real", "private"), ("pool", "public-by-class"), ("test", "test")):
        pixels, labels = read_folder(setting.folder / part, (SIDE, SIDE), "crop", 3)
        sets[name] = Labelled(
            Images(pixels), np.array([CLASSES.index(label) for label in labels], np.int32)
        )
        setting.network.keep(sets[name].images)
    return {"accuracy": probe_accuracies(sets, sets.pop("test"), setting.network, Progress())}


def in_order(
    pools: list[str], embeddings: list[str], epsilons: list[float], runs: int
) -> list[tuple[Any, ...]]:
    """The cells, those that tell most first: EfficientNet before pixels, the usual ε before 10."""
    cells = [
        (p, v, e, run) for v in embeddings for p in pools for e in epsilons for run in range(runs)
    ]
    return sorted(
        cells,
        key=lambda one: (
            EMBEDDINGS.index(one[1]),
            one[2] > 4,
            POOLS.index(one[0]),
            -one[2],
            one[3],
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--private", default="google", help="the private maker")
    parser.add_argument(
        "--public", nargs="+", default=["twitter", "facebook"], help="the public makers"
    )
    parser.add_argument(
        "--pictures", type=Path, help="the set's folder; default: pictures, or pictures-MAKER"
    )
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--embeddings", nargs="+", choices=EMBEDDINGS, default=list(EMBEDDINGS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--no-controls", action="store_true", help="leave out those that ask the generator"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="A.B=VALUE",
        help="change the recipe, not for google",
    )
    arguments = parser.parse_args()
    reported = arguments.private == "google"
    if reported and arguments.set:
        parser.error(
            "--set chooses rules, on other private pictures: give --private and --public with it"
        )
    folder = arguments.pictures or Path("pictures" if reported else f"pictures-{arguments.private}")
    make_picture_set(folder, private=arguments.private, public=arguments.public)
    network = Remembering(folder.with_name(f"{folder.name}-efficientnet_lite.npz"))
    setting = Setting(folder, network, tuple(arguments.set))
    kept = (
        RESULTS / "pictures.jsonl" if reported else folder.with_name(f"{folder.name}-cells.jsonl")
    )
    done = (
        {found["key"]: found for found in map(json.loads, kept.read_text().splitlines())}
        if kept.exists()
        else {}
    )
    sheet = (
        RESULTS.parent.parent / "docs" / "images" / "pictures.png"
        if reported
        else folder.with_suffix(".png")
    )
    if "fixed" not in done:
        keep_cell({"key": "fixed", "where": where()} | fixed(setting), kept)
    for pool, embedding, epsilon, run in in_order(
        arguments.pools, arguments.embeddings, arguments.epsilon, arguments.runs
    ):
        recipe = recipe_for(pool, embedding, epsilon, run, setting)
        key = f"{pool} {embedding} {epsilon:g} {run} {digest_of(recipe)}"
        if key not in done:
            named = {
                "key": key,
                "pool": pool,
                "embedding": embedding,
                "epsilon": epsilon,
                "run": run,
            }
            found = cell(
                recipe,
                pool,
                run,
                setting,
                sheet if epsilon == 4 else None,
                not arguments.no_controls,
            )
            settled = {"changes": arguments.set, "evolution": recipe.evolution.own_values}
            keep_cell(named | {"where": where()} | settled | found, kept)
    if reported:
        write_table([json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()])


def keep_cell(found: dict[str, Any], kept: Path) -> None:
    """Print a cell, and add it to those that are kept."""
    print(json.dumps(found), flush=True)
    with kept.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")


def digest_of(recipe: Recipe) -> str:
    """Of a recipe without its places: another one is another cell."""
    content = recipe.model_dump(mode="json")
    content["private"].pop("path")
    for place in ("path", "model"):
        content["api"].pop(place, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


POOL_NAMES = {
    "unlabelled": "public pictures without classes",
    "raw_votes": "the same, `evolution.votes: raw`",
    "by_class": "public pictures with classes",
}
SETS = {
    "synthetic": "PE data",
    "unevolved": "un-evolved",
    "one_vote": "one vote",
    "random_selection": "random selection",
}
_SHOWN = "twitter-"  # the licence of the other makers' pictures is not clear, so they are not shown


def write_table(found: list[dict[str, Any]]) -> None:
    """results/pictures.md of the cells, the last one of each, of those with the last evolution that
    was measured.
    """
    scale = next(one for one in reversed(found) if one["key"] == "fixed")["accuracy"]
    cells = {
        (one["embedding"], one["pool"], one["epsilon"], one["run"]): one
        for one in found
        if one.get("pool") in POOLS
    }
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for (embedding, pool, epsilon, _), one in cells.items():
        groups.setdefault((embedding, pool, epsilon), []).append(one)
    for key, group in groups.items():
        last = max(group, key=found.index)
        groups[key] = [one for one in group if one.get("evolution") == last.get("evolution")]
    ordered = sorted(groups, key=lambda each: (each[0], list(POOL_NAMES).index(each[1]), each[2]))
    text = "\n".join(
        [
            "# The default recipe on colour pictures",
            "",
            "Accuracy on held-out pictures of the private maker (Google), of a linear probe on "
            "features of EfficientNet-Lite0 that was trained on one set of pictures alone; mean ± "
            "standard deviation over runs with other seeds and fresh noise. δ = 1e-5. The recipe "
            "is that of `examples/emoji.py`. For comparison: trained on the private pictures "
            f"themselves (not DP) {scale['real']:.3f}, on the public ones with their true classes "
            f"{scale['pool']:.3f}; guessing {scale['chance']:.3f}. The probe's penalty is chosen "
            "on held-out parts of the training set. Different is the share of pictures that are no "
            "copies or near copies of another one, as `pe evaluate` counts variety. Seconds are "
            "those of the run alone, with the vectors of pool and private pictures kept. "
            f"{found[-1]['where']}. `python benchmarks/pictures.py`",
            "",
            f"| embedding of the votes | pool | ε | {' | '.join(SETS.values())} | shown | "
            "different | seconds | runs |",
            f"| --- | --- | ---: |{' ---: |' * (len(SETS) + 4)}",
            *[row(*key, groups[key]) for key in ordered],
            "",
        ]
    )
    keep("pictures.md", text)


def row(embedding: str, pool: str, epsilon: float, runs: list[dict[str, Any]]) -> str:
    cells = [
        spread([one["accuracy"][name] for one in runs if name in one["accuracy"]]) for name in SETS
    ]
    means = [
        statistics.mean(one[name] for one in runs) for name in ("shown", "different", "seconds")
    ]
    numbers = f"{means[0]:,.0f} | {means[1]:.0%} | {means[2]:.0f}"
    return (
        f"| {embedding} | {POOL_NAMES[pool]} | {epsilon:g} | {' | '.join(cells)} | {numbers} | "
        f"{len(runs)} |"
    )


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def write_sheet(run: Run, pool: Path, file: Path) -> None:
    """The run's evolution, S_0 above S_T, of those pictures of the pool that may be shown."""
    shown = np.array([path.name.startswith(_SHOWN) for path in files_below(pool, SUFFIXES)])
    populations = [of_the_shown(population, shown) for population in run.populations()]
    file.write_bytes(contact_sheet(populations, CLASSES))


def of_the_shown(population: Population, shown: np.ndarray) -> Population:
    """The members whose picture of the pool is one of `shown`, or all, where that leaves none."""
    members = np.flatnonzero(shown[population.conditions["pool"]])
    return population.take(members) if members.size else population


if __name__ == "__main__":
    main()
