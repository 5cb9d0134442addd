"""The recipes with the paper's settings, run end to end over random weights of the real shapes.

    python benchmarks/paper_recipes.py [--only NAME]

Each recipe of examples/ goes through `pe plan` as it is, then through `pe run` and `pe export` with fewer private
records, samples, iterations and steps, on the processor. Resolution, architecture, file formats, embedding and all else
stay as in the recipe, so that only trained weights and data are missing. The weights, up to 4.3 GB, are written to a
temporary folder, where the recipes look for them: improved diffusion's under its published name in torch.hub's folder,
Stable Diffusion's in diffusers' format, Inception's in a .safetensors file. Writes results/paper_recipes.md, a row of
which `--only` replaces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import yaml
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from record import RESULTS, keep, where
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from adapters.diffusion.improved_unet import ImprovedUNet, Shape
from embeddings.inception_network import InceptionNetwork
from pe.data.images import Images
from pe.planning.build import build_generator
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.recipe.schema import Recipe

EXAMPLES = Path(__file__).parent.parent / "examples"
ROWS = RESULTS / "paper_recipes.jsonl"
IMAGENET = "imagenet64_cond_270M_250K"


@dataclass(frozen=True)
class Case:
    """A recipe and how it is cut.

    Attributes:
        name: of the file in examples/.
        files: height, width and suffix of the made-up private images, as they lie in their folder.
        make: writes the generator's weights to a folder; returns the changes that name them, and the parameters.
        changes: keys of the recipe and what they are cut to.
        few: denoising steps of the shorter of two variations whose times are compared; the longer has twice as many.
    """

    name: str
    files: tuple[int, int, str]
    make: Callable[[Path], tuple[dict[str, Any], dict[str, int]]]
    changes: Mapping[str, Any]
    few: int


def lively(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A random state dict with which signals neither die nor grow."""
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=draw)
        if tensor.ndim > 1:
            state[name] = noise * (2 / tensor[0].numel()) ** 0.5
        elif name.endswith("num_batches_tracked"):
            state[name] = tensor
        else:
            state[name] = 0.1 * noise.abs() + (1.0 if name.endswith(("weight", "running_var")) else 0.0)
    return state


def parameters(*modules: torch.nn.Module) -> int:
    return sum(tensor.numel() for module in modules for tensor in module.parameters())


def imagenet(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The 270M network of improved diffusion, where torch.hub keeps what it fetches: the recipe names it itself."""
    place = folder / "hub" / "checkpoints" / f"{IMAGENET}.pt"
    place.parent.mkdir(parents=True)
    network = ImprovedUNet(Shape(192, (1, 2, 3, 4), 3, (2, 3), 1000))
    torch.save(lively(network), place)
    return {"api.precision": "fp32"}, {"U-Net": parameters(network)}


def stable_diffusion(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Stable Diffusion 1.x in diffusers' format; of its tokenizer's 49,408 words only letters are real."""
    torch.manual_seed(0)
    letters = [f"{letter}{end}" for end in ("", "</w>") for letter in "abcdefghijklmnopqrstuvwxyz"]
    unused = [f"<unused{i}>" for i in range(49_408 - 2 - len(letters))]
    words = [*letters, *unused, "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer({word: i for i, word in enumerate(words)}, [], model_max_length=77)
    text = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            projection_dim=768,
            bos_token_id=49_406,
            eos_token_id=49_407,
            pad_token_id=49_407,
        )
    )
    unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    vae = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
        sample_size=512,
    )
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    )
    pipeline = StableDiffusionPipeline(vae, text, tokenizer, unet, scheduler, None, None, requires_safety_checker=False)
    pipeline.save_pretrained(folder / "stable-diffusion-v1-4")
    changes = {"api.model": str(folder / "stable-diffusion-v1-4"), "api.offline": True, "api.precision": "fp32"}
    return changes, {"U-Net": parameters(unet), "VAE": parameters(vae), "text encoder": parameters(text)}


CASES = (
    Case(
        "cifar10",
        (32, 32, ".png"),
        imagenet,
        {"population": 10, "iterations": 1, "degree": 0.98, "lookahead": 1, "steps": 4, "declared_size": 40},
        1,
    ),
    Case(
        "camelyon17",
        (96, 96, ".png"),
        imagenet,
        {"population": 4, "iterations": 2, "degree": [1.0, 0.9], "lookahead": 1, "declared_size": 20},
        2,
    ),
    Case(
        "cats",
        (600, 800, ".jpg"),
        stable_diffusion,
        {"population": 2, "iterations": 1, "degree": 0.98, "lookahead": 1, "steps": 2, "declared_size": 10},
        1,
    ),
)
SECTIONS = {"declared_size": "private", "steps": "api"}
"""Where a key that is cut stands, if not under `evolution`."""


def private_folder(folder: Path, classes: list[str], files: tuple[int, int, str], count: int) -> None:
    """`count` made-up images, a folder for each class."""
    height, width, suffix = files
    for i, pixels in enumerate(Images.examples(count, (height, width, 3)).pixels):
        place = folder / classes[i % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}{suffix}")


def command(*words: str) -> str:
    """What `pe WORDS` prints on stdout; its messages go to this script's."""
    pe = [sys.executable, "-c", "from pe.cli.main import main; main()", *words]
    return subprocess.run(pe, check=True, stdout=subprocess.PIPE, text=True).stdout


def settings(changes: Mapping[str, Any]) -> list[str]:
    return [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """What the page tells of a recipe."""
    file = EXAMPLES / f"{case.name}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    os.environ["TORCH_HOME"] = str(folder)
    places, sizes = case.make(folder)
    inception = InceptionNetwork()
    save_file(lively(inception), folder / "inception.safetensors")
    places |= {"private.path": str(folder / "private"), "embedding.weights": str(folder / "inception.safetensors")}
    cut = {f"{SECTIONS.get(key, 'evolution')}.{key}": value for key, value in case.changes.items()}
    private_folder(folder / "private", content["private"]["classes"], case.files, case.changes["declared_size"])
    planned = json.loads(command("plan", str(file), *settings(places), "--json"))

    start = time.perf_counter()
    out = str(folder / "run")
    done = json.loads(command("run", str(file), *settings(places | cut), "--out", out, "--json", "--quiet"))
    seconds = time.perf_counter() - start
    command("export", out, "--to", str(folder / "exported"), "--format", "folder")
    exported = [
        np.asarray(Image.open(path)).shape for path in sorted((folder / "exported" / "synthetic").rglob("*.png"))
    ]
    with np.load(folder / "run" / "synthetic.npz") as synthetic:
        shape = synthetic["images"].shape
    assert done["images"] == len(exported) == shape[0], (done, len(exported), shape)
    assert set(exported) == {shape[1:]}, (set(exported), shape)
    return {
        "name": case.name,
        "parameters": sizes | {"Inception": parameters(inception)},
        "epsilon": planned["epsilon"],
        "planned_images": planned["api_calls"]["images"],
        "cut": " ".join(f"{key} {_of(content, key)} → {_short(value)};" for key, value in cut.items()).rstrip(";"),
        "seconds": seconds,
        "step": seconds_a_step(Recipe.load(file, tuple(settings(places | cut)[1::2])), case.few),
        "shape": shape,
        "where": f"{where()}, torch {torch.__version__}, diffusers {diffusers.__version__}, "
        f"{torch.get_num_threads()} thread(s)",
    }


def seconds_a_step(recipe: Recipe, few: int) -> float:
    """Of one image and one denoising step: a variation of twice as many steps, less one of `few`."""
    api: Any = build_generator(recipe)
    labels, seeds = tuple(map(str, recipe.private.classes or ()))[:1], np.zeros(1, np.uint64)
    steps = recipe.api.settings["steps"]
    made = api.random_api(RandomRequest(labels, seeds))  # the first call loads the weights
    clocks = []
    for run in (few, 2 * few):
        start = time.perf_counter()
        api.variation_api(VariationRequest(made.samples, labels, made.conditions, seeds, run / steps))
        clocks.append(time.perf_counter() - start)
    return (clocks[1] - clocks[0]) / few


def _of(content: Mapping[str, Any], key: str) -> str:
    section, name = key.split(".")
    return _short(content[section][name])


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{value[0]} … {value[-1]}"
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}"


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# The paper's recipes over random weights of the real shapes",
        "",
        "Each recipe of examples/ through `pe plan` as it is, then through `pe run` and `pe export` with the keys "
        "below cut and made-up private images, fp32 on a processor. All else is the recipe's: only trained weights and "
        "data are missing. A step is one denoising step of one image, guidance included, by the difference of two "
        "variations. `python benchmarks/paper_recipes.py`",
        "",
        "| recipe | parameters, millions | planned: ε, API images | cut | run, s | s per image and step | samples |",
        "|---|---|---|---|--:|--:|---|",
    ]
    for row in rows:
        sizes = ", ".join(f"{part} {count / 1e6:,.1f}" for part, count in row["parameters"].items())
        shape = "×".join(map(str, row["shape"]))
        lines.append(
            f"| {row['name']} | {sizes} | {row['epsilon']:.2f}, {row['planned_images']:,} | {row['cut']} | "
            f"{row['seconds']:,.0f} | {row['step']:.2f} | {shape}, exported as PNG |"
        )
    return "\n".join([*lines, "", *(f"- {row['name']}: {row['where']}" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[case.name for case in CASES])
    only = parser.parse_args().only
    kept = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    rows = {row["name"]: row for row in kept}
    for case in CASES:
        if only in (None, case.name):
            with tempfile.TemporaryDirectory() as folder:
                rows[case.name] = run_case(case, Path(folder))
            ordered = [rows[each.name] for each in CASES if each.name in rows]
            ROWS.write_text("".join(json.dumps(row) + "\n" for row in ordered))
            keep("paper_recipes.md", page(ordered))


if __name__ == "__main__":
    main()
