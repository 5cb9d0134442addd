"""`finetune` over the small model that ships: printed characters fitted to handwriting, and PE over both.

    python benchmarks/finetune.py [--epsilon E] [--runs N] [--methods NAME …]
    python benchmarks/finetune.py --private FILE.npz --test FILE.npz [--set A.B=VALUE …]    # to choose settings

Private: the demo's 4,000 MNIST digits at 28×28. The checkpoint has seen drawn characters in printed fonts alone. With
digits of your own it prints each cell and writes nothing; without, it writes results/finetune.md from
results/finetune.jsonl, and what is there already is not run again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a cell's seconds are of one core

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from code_digest import code_digest
from methods import cell_of, digest_of, digits, measured
from methods_settings import DELTA, DIGITS, Setting
from methods_table import spread
from record import RESULTS, keep, where

KEPT = RESULTS / "finetune.jsonl"
SETTING = Setting(28, 2000, 0, {}, (0, 0), {}, (), 32)
STEPS = 12
EVOLUTION = {"iterations": 4, "degree": [0.9, 0.8, 0.7, 0.7], "lookahead": 0, "neighbors": 32, "threshold_sigmas": 1}
"""As `pe demo --api diffusion` has them, with fewer samples at the end; its ε is 1."""

FIT: dict[str, Any] = {
    "lora": {"rank": 4, "targets": ["to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2"]},
    "training": {"steps": 100, "expected_batch": 250, "draws": 1, "learning_rate": 5e-3, "ema": 0.9},
}
METHODS = {
    "small": "the small model as it is (no private data)",
    "small+pe": "PE over the small model",
    "finetune": "the small model, fine-tuned",
    "finetune+pe": "the small model, fine-tuned with ε/2, then PE with ε/2",
}


def recipe_of(method: str, epsilon: float, run: int, fit: dict[str, Any], private: Path | None) -> dict[str, Any]:
    name, _, evolved = method.partition("+")
    source: dict[str, Any] = {"kind": "mnist"} if private is None else {"kind": "npz", "path": str(private)}
    shape = {"size": 28, "channels": 1, "classes": list(DIGITS), "declared_size": 4000}
    sizes: Any = [1500] * 4 + [SETTING.samples] if evolved else SETTING.samples
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
    if evolved:
        privacy["schedule"] = [1, 1.5, 2.25, 3.375]
    if name == "small":
        api: dict[str, Any] = {"kind": "pixel_diffusion", "model": "small", "steps": STEPS}
        api["classes"] = {digit: digit for digit in DIGITS}
    else:
        api = {"kind": "finetune", "model": "small", "sampling": {"steps": STEPS}, **fit}
        api |= {"fit": {"budget_share": 0.5}} if evolved else {}
    return {
        "name": f"finetune-{method.replace('+', '-')}",
        "seed": run,
        "private": source | shape,
        "api": api,
        "embedding": {"kind": "pixels", "blur": 0.8},
        "privacy": privacy,
        "evolution": EVOLUTION | {"population": sizes, "keep": "winners"}
        if evolved
        else {"iterations": 0, "population": sizes},
    }


def cell(method: str, epsilon: float, run: int, fit: dict[str, Any], files: tuple[Path | None, Path | None]) -> Any:
    """One method, once; `small` releases nothing, and costs no ε."""
    from adapters.diffusion.pixel import PixelSpace
    from pe.evaluation.controls import unevolved
    from pe.evaluation.labelled import Labelled

    if method != "small":
        return cell_of(recipe_of(method, epsilon, run, fit, files[0]), run, SETTING, files, epochs=None)
    labels = np.arange(SETTING.samples, dtype=np.int32) % len(DIGITS)
    small = PixelSpace(model="small", steps=STEPS, classes={digit: digit for digit in DIGITS}, device="cpu")
    images = unevolved(small, labels, DIGITS, run).images
    private, test = digits("private", SETTING, files[0]), digits("test", SETTING, files[1])
    return measured(Labelled(images, labels), private, test, run, None)


def page(cells: list[dict[str, Any]]) -> str:
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for one in cells:
        groups.setdefault((one["epsilon"], one["method"]), []).append(one)
    text = [
        "# Fine-tuning the small model on handwriting, then PE",
        "",
        "Private: 4,000 MNIST digits at 28×28. The checkpoint has seen printed characters alone. Accuracy on 1,000 "
        f"held-out digits of classifiers trained on {SETTING.samples:,} samples, Fréchet distance of pixels; mean ± "
        f"standard deviation, where there are several runs. δ = {DELTA:g}. Fit: `{json.dumps(FIT)}`; sampled in "
        f"{STEPS} steps; PE as in `pe demo --api diffusion`. {cells[-1]['where']}. `python benchmarks/finetune.py`",
        "",
        "| ε | | runs | LR | MLP | Fréchet | seconds to fit | seconds for the rest |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    order = list(METHODS)
    for (epsilon, method), runs in sorted(groups.items(), key=lambda each: (each[0][0], order.index(each[0][1]))):
        found = [spread([one["accuracy"][name] for one in runs], 3) for name in ("logistic_regression", "mlp")]
        found += [spread([one["frechet"] for one in runs], 2)]
        found += [spread([one.get(f"{name}_seconds", 0) for one in runs], 0) for name in ("fit", "sample")]
        text.append(f"| {epsilon:g} | {METHODS[method]} | {len(runs)} | {' | '.join(found)} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--private", type=Path, help=".npz of digits that stand in for the private ones")
    parser.add_argument("--test", type=Path, help=".npz of digits to test on, with --private")
    parser.add_argument("--set", nargs="*", default=[], metavar="A.B=VALUE", help="change the fit, with --private")
    arguments = parser.parse_args()
    if (arguments.private is None) != (arguments.test is None) or (arguments.set and not arguments.private):
        parser.error("--private and --test go together, and --set with them")
    fit = json.loads(json.dumps(FIT))
    for change in arguments.set:
        path, _, value = change.partition("=")
        *keys, last = path.split(".")
        inner = fit
        for each in keys:
            inner = inner[each]
        inner[last] = yaml.safe_load(value)
    cells = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []
    code = code_digest("finetune")
    for run in range(arguments.runs):
        for method in arguments.methods:
            epsilon = 0.0 if method == "small" else arguments.epsilon
            recipe = recipe_of(method, epsilon, run, fit, None)
            key = f"{method} {epsilon:g} {run} {digest_of(recipe, SETTING)} {code}"
            if not arguments.private and any(one["key"] == key for one in cells):
                continue
            found = {"key": key, "method": method, "epsilon": epsilon, "run": run, "where": where()}
            found |= cell(method, epsilon, run, fit, (arguments.private, arguments.test))
            print(json.dumps(found), *arguments.set, flush=True)
            if not arguments.private:
                cells.append(found)
                with KEPT.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(found) + "\n")
    if not arguments.private:
        keep("finetune.md", page(cells))


if __name__ == "__main__":
    main()
