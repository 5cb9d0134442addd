"""Judge the default recipe on colour pictures beside all controls, by pool, embedding and ε.

    python benchmarks/pictures.py [--pools unlabelled by_class] [--embeddings …] [--epsilon E …]
                                  [--runs N]
    python benchmarks/pictures.py --private twitter --public facebook [--set A.B=VALUE …]

The picture set and the recipe are those of examples/emoji.py. A pool with classes draws by them.
The judgement is that of `pe evaluate` on held-out private pictures, under EfficientNet-Lite0. A
cell of the same recipe is not run again. Writes results/pictures.md and docs/images/pictures.png.

The second form is for choosing rules on another maker's private pictures. It prints each cell, and
keeps them beside the pictures.
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
from sets import CLASSES, SIDE, judged, make_picture_set, pictures_recipe

from adapters.public_files import SUFFIXES, read_folder
from embeddings.networks import EfficientNetLite
from pe.data.images import Images
from pe.data.population import Population
from pe.data.tables import files_below
from pe.engine.execution import RunContext, run_recipe
from pe.evaluation.sets import PUBLIC, Notes, Request, gather
from pe.judgement.judge import PRIVATE, SYNTHETIC, UNEVOLVED
from pe.judgement.labelled import Labelled
from pe.planning.choice import choose_evolution
from pe.planning.parts import build_generator, object_kind
from pe.plugins.protocols import PluginInfo, Vectors
from pe.progress import Progress
from pe.recipe.reading import with_change
from pe.recipe.schema import Recipe
from pe.report.pictures import contact_sheet
from pe.store.run import Run
from pe.store.writer import read_journal

POOLS = {
    "unlabelled": "public pictures without classes",
    "raw_votes": "the same, `evolution.votes: raw`",
    "by_class": "public pictures with classes",
}
EMBEDDINGS = ("efficientnet_lite", "pixels")
EPSILONS = (4.0, 1.0, 10.0)
SETS = {
    SYNTHETIC: "PE data",
    UNEVOLVED: "un-evolved",
    PUBLIC: "public, with their classes",
}
REPORTED = "google"
"""The private maker of the page."""
SHOWN = "twitter-"
"""Beginning of the names of pictures that may be shown: other makers' licences are not clear."""


class Remembering:
    """EfficientNet-Lite0 that embeds each picture once, since every population has the pool's."""

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
        """Embed these and write their vectors to the file. Others stay in memory only."""
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
        network: the embedding of the judgement, and of votes where a cell asks for it.
        public: the public pictures with their classes, a control of every cell.
        changes: to the recipe, `a.b=value`.
    """

    folder: Path
    network: Remembering
    public: Labelled
    changes: tuple[str, ...] = ()


def recipe_for(pool: str, embedding: str, epsilon: float, run: int, setting: Setting) -> Recipe:
    """Return the example's recipe with this pool, embedding, ε and seed, and all numbers chosen."""
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
    recipe: Recipe, pool: str, run: int, setting: Setting, sheet: Path | None
) -> dict[str, Any]:
    """Run the recipe: return what the judgement says of its pictures, and what the run took."""
    by_network = recipe.embedding.kind == object_kind(setting.network)
    around = RunContext(embedding=setting.network if by_network else None)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = run_recipe(recipe, Path(folder) / "run", around)
        seconds = round(time.monotonic() - started)
        with read_journal(made) as journal:
            images = int(journal.totals().usage.images)
        test = str(setting.folder / "test")
        asked = Request(test, embedding=around.embedding)
        sets = gather(made, asked, Notes(Progress()), around.stop)
        if sheet is not None and pool == "unlabelled" and by_network and run == 0:
            write_sheet(Run.open(made.folder), setting.folder / "public", sheet)
        generated = {**sets.by_name, PUBLIC: setting.public}
        found = judged(generated, sets.private, sets.test.content, setting.network, CLASSES)
    return {
        "score": {name: round(one.place.score, 2) for name, one in found.trained.items()},
        "accuracy": {name: round(one.accuracy, 4) for name, one in found.trained.items()},
        "variety": round(found.variety.score, 2),
        "shown": len(sets.by_name[SYNTHETIC]),
        "images": images,
        "seconds": seconds,
    }


def read_part(folder: Path, part: str) -> Labelled:
    """Return the pictures of a part of the set, with their classes."""
    pixels, labels = read_folder(folder / part, (SIDE, SIDE), "crop", 3)
    return Labelled(Images(pixels), np.array([CLASSES.index(one) for one in labels], np.int32))


def in_order(
    pools: list[str], embeddings: list[str], epsilons: list[float], runs: int
) -> list[tuple[Any, ...]]:
    """Return the cells, those that tell most first."""
    cells = [
        (p, v, e, run) for v in embeddings for p in pools for e in epsilons for run in range(runs)
    ]
    return sorted(
        cells,
        key=lambda one: (
            EMBEDDINGS.index(one[1]),
            one[2] > 4,
            [*POOLS].index(one[0]),
            -one[2],
            one[3],
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--private", default=REPORTED, help="the private maker")
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
        "--set",
        nargs="*",
        default=[],
        metavar="A.B=VALUE",
        help=f"change the recipe; not for {REPORTED}",
    )
    arguments = parser.parse_args()
    reported = arguments.private == REPORTED
    if reported and arguments.set:
        parser.error(
            "--set chooses rules, on other private pictures: give --private and --public with it"
        )
    folder = arguments.pictures or Path("pictures" if reported else f"pictures-{arguments.private}")
    make_picture_set(folder, private=arguments.private, public=arguments.public)
    network = Remembering(folder.with_name(f"{folder.name}-efficientnet_lite.npz"))
    read = {part: read_part(folder, part) for part in ("private", "test", "public-by-class")}
    for one in read.values():
        network.keep(one.images)
    setting = Setting(folder, network, read["public-by-class"], tuple(arguments.set))
    kept = (
        RESULTS / "pictures.jsonl" if reported else folder.with_name(f"{folder.name}-cells.jsonl")
    )
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    done = {json.loads(line)["key"] for line in lines}
    sheet = (
        RESULTS.parent.parent / "docs" / "images" / "pictures.png"
        if reported
        else folder.with_suffix(".png")
    )
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
            found = cell(recipe, pool, run, setting, sheet if epsilon == 4 else None)
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
    """Return a digest of a recipe without its places. Another recipe is another cell."""
    content = recipe.model_dump(mode="json")
    content["private"].pop("path")
    for place in ("path", "model"):
        content["api"].pop(place, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def write_table(found: list[dict[str, Any]]) -> None:
    """Write results/pictures.md: of each cell the last run, of runs those with the last numbers."""
    cells = {(one["embedding"], one["pool"], one["epsilon"], one["run"]): one for one in found}
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for (embedding, pool, epsilon, _), one in cells.items():
        groups.setdefault((embedding, pool, epsilon), []).append(one)
    for key, group in groups.items():
        last = max(group, key=found.index)
        groups[key] = [one for one in group if one["evolution"] == last["evolution"]]
    ordered = sorted(groups, key=lambda each: (each[0], [*POOLS].index(each[1]), each[2]))
    private = statistics.mean(one["accuracy"][PRIVATE] for one in found)
    text = "\n".join(
        [
            "# The default recipe on colour pictures",
            "",
            "Score for training, on held-out pictures of the private maker (Google), as `pe "
            "evaluate` gives it under EfficientNet-Lite0: 0 is a guess, 10 what the private "
            "pictures give; mean ± standard deviation over runs with other seeds and fresh noise. "
            f"Accuracy is that after PE data; after the private pictures it is {private:.3f}. "
            "Variety: 10 is that of the private pictures. δ = 1e-5. The recipe is that of "
            "`examples/emoji.py`. Seconds are those of the run alone, with the vectors of pool and "
            f"private pictures kept. {found[-1]['where']}. `python benchmarks/pictures.py`",
            "",
            f"| embedding of the votes | pool | ε | {' | '.join(SETS.values())} | accuracy | "
            "variety | shown | seconds | runs |",
            f"| --- | --- | ---: |{' ---: |' * (len(SETS) + 5)}",
            *[row(*key, groups[key]) for key in ordered],
            "",
        ]
    )
    keep("pictures.md", text)


def row(embedding: str, pool: str, epsilon: float, runs: list[dict[str, Any]]) -> str:
    """Return a line of the table."""
    scores = [[one["score"][name] for one in runs if name in one["score"]] for name in SETS]
    cells = [
        *(spread(values, ".1f") for values in scores),
        spread([one["accuracy"][SYNTHETIC] for one in runs], ".3f"),
    ]
    for name, form in (("variety", ".1f"), ("shown", ",.0f"), ("seconds", ".0f")):
        cells.append(f"{statistics.mean(one[name] for one in runs):{form}}")
    return f"| {embedding} | {POOLS[pool]} | {epsilon:g} | {' | '.join(cells)} | {len(runs)} |"


def spread(values: list[float], form: str) -> str:
    """Return mean ± standard deviation."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):{form}}" if len(values) > 1 else mean


def write_sheet(run: Run, pool: Path, file: Path) -> None:
    """Draw the run's evolution, S_0 above S_T, of those pictures that may be shown."""
    shown = np.array([path.name.startswith(SHOWN) for path in files_below(pool, SUFFIXES)])
    populations = [of_the_shown(population, shown) for population in run.populations()]
    file.write_bytes(contact_sheet(populations, CLASSES))


def of_the_shown(population: Population, shown: np.ndarray) -> Population:
    """Return the members whose picture of the pool may be shown; all, if that leaves none."""
    members = np.flatnonzero(shown[population.conditions["pool"]])
    return population.take(members) if members.size else population


if __name__ == "__main__":
    main()
