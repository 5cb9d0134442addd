"""`--check`: what a script lacks on this machine, and what its runs will ask for and cost.

python -m published.check room DISK MEMORY GPU     gigabytes of each, 0: none
python -m published.check weights NAME …           OWNER/NAME of the hub, or a file of torch.hub's
pe plan RECIPE --json | python -m published.check plan RUN
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path


def room(disk: str, memory: str, gpu: str) -> list[str]:
    """Return what is missing of this disk, of memory, and of the largest GPU's memory."""
    missing = []
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for what, size, least in (
        ("disk", shutil.disk_usage(".").free, disk),
        ("memory", physical, memory),
    ):
        if size < 1e9 * float(least):
            missing.append(f"{least} GB of {what}: here are {size / 1e9:.1f}.")
    if float(gpu):
        try:
            command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
            mebibytes = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.split()
        except (OSError, subprocess.CalledProcessError):
            mebibytes = []
        largest = max((int(each) * 2**20 / 1e9 for each in mebibytes), default=0)
        if largest < float(gpu):
            missing.append(f"a GPU of {gpu} GB: the largest has {largest:.0f}.")
    return missing


def weights(*names: str) -> list[str]:
    """Say which weights a run will fetch; none of them is missing."""
    from huggingface_hub import constants
    from torch.hub import get_dir

    for name in names:
        cached = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "refs", "main")
        if not (cached if "/" in name else Path(get_dir(), "checkpoints", name)).exists():
            print(f"to be fetched: {name}")
    return []


def plan(run: str) -> list[str]:
    """Print the plan on stdin in a line; return its obstacles, except for the data, which are made
    later.
    """
    text = sys.stdin.read()
    if not text:
        return [f"a plan of {run}: `pe plan` says why."]
    forecast = json.loads(text)
    calls, seconds = forecast["api_calls"], forecast["seconds"]
    words = [
        f"{run}: ε = {forecast['epsilon']:.4g} at δ = {forecast['delta']:g}",
        f"{calls['images']:,} {forecast['noun']} in {calls['random'] + calls['variation']:,} calls",
        f"{forecast['cost']:,.2f} {forecast['currency']}" if forecast["cost"] else "free",
        "time unknown" if seconds is None else f"{timedelta(seconds=round(seconds))} hours",
    ]
    print("; ".join(words))
    start = "A run would not start: "
    for warning in forecast["warnings"]:
        if not warning.startswith(start):
            print(f"  note: {warning}")
    obstacles = [
        each.removeprefix(start) for each in forecast["warnings"] if each.startswith(start)
    ]
    return [each for each in obstacles if not each.startswith("private.path")]


def main(name: str, *arguments: str) -> int:
    """Carry out one command; print what is missing."""
    missing = {"room": room, "weights": weights, "plan": plan}[name](*arguments)
    for sentence in missing:
        print(f"missing: {sentence}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
