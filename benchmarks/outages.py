"""Measure a run whose server goes away three times for two minutes, with and without `kill -9`.

    python benchmarks/outages.py [--seconds 120]

Four cases run side by side: texts by `chat`, whose connections break off, and images by `sdapi`,
which answers 503. Each is compared with the same run over a server that stays. Takes about seven
minutes. Writes a part of results/endpoint.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from record import keep, where

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.durability.driver import PRIVATE, forked, make_private
from tests.durability.test_outages import KINDS, SAMPLES, address, carry_out, result
from tests.endpoints.faults import Script
from tests.endpoints.outages import Away
from tests.endpoints.serving import serving

PAUSES = 0.5, 30.0
FAULTS = {"texts": "dropped", "images": "503 html"}


def measure(folder: Path, kind: str, killed: bool, seconds: float) -> str:
    """One case as a row of the table."""
    plain, other, script = folder / f"plain-{killed}", folder / f"away-{killed}", Script()
    for each in (plain, other):
        each.mkdir(parents=True)
        make_private(each / PRIVATE[kind])
    with serving(KINDS[kind][0](Script())) as url:
        forked(carry_out, plain, kind, address(kind, url)).join()
    away, kills, began = (
        Away(KINDS[kind][0](script), every=SAMPLES // 4, seconds=seconds, fault=FAULTS[kind]),
        0,
        0.0,
    )
    with serving(away) as url:
        began = time.monotonic()
        process = forked(carry_out, other, kind, address(kind, url), 900.0, PAUSES)
        while process.is_alive() or process.exitcode == -9:
            time.sleep(0.1)
            if killed and kills < away.gone and time.monotonic() > away.since + seconds / 2:
                process.kill()
                process.join()
                kills += 1
                process = forked(carry_out, other, kind, address(kind, url), 900.0, PAUSES)
        took = time.monotonic() - began
    same = process.exitcode == 0 and result(other) == result(plain)
    what = (
        f"{kind}, {FAULTS[kind].split()[0]} | {away.gone} × {seconds:g} s | {kills} | "
        f"{process.exitcode}"
    )
    paid = f"{script.delivered} of {SAMPLES} | {'yes' if same else 'NO'}"
    return f"| {what} | {took:.0f} s | {away.asked} | {paid} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    seconds = parser.parse_args().seconds
    cases = [(kind, killed) for kind in KINDS for killed in (False, True)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(cases)) as pool:
        rows = list(pool.map(lambda case: measure(Path(folder) / case[0], *case, seconds), cases))
    head = (
        "| case | away | kills | exit status | took | requests while away | answers paid for | "
        "same bytes |"
    )
    table = "\n".join([head, "| --- | --- | --- | --- | --- | --- | --- | --- |", *rows])
    text = (
        f"## Runs whose server goes away\n\n{where()}. `python benchmarks/outages.py`\n\n{table}\n"
    )
    keep("endpoint.md", text)


if __name__ == "__main__":
    main()
