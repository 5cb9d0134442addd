"""Compare the speed of the diffusion server with a bare loop over the same network.

    python benchmarks/server.py [--rounds N]

The bare loop is DDIM over the shipped model's network, written out, at its best batch size. The
server is `pe serve small` with that batch, asked by the client adapter over HTTP. Both take turns:
one is idle while the other works. The table has medians over the rounds. On a processor each engine
has one core. Writes a part of results/diffusion.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import argparse
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from record import keep, where

from adapters.diffusion.items import normals, torch_rng
from adapters.diffusion.pixel import PixelFiles
from adapters.server.formats import ARRAYS, BatchRequest, pack_request
from adapters.server_client import ServerClient
from pe.plugins.devices import keep_memory
from pe.plugins.protocols import RandomRequest

CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu"
STEPS, PORT = 10, 18765
BATCHES = (256, 512, 1024) if CUDA else (16, 32, 64)
TURN = 8 if CUDA else 4  # batches per turn
CALLERS = 32
REQUESTS = 5  # alone, in each round
UNDER_WAY = 3  # requests at once: one is made while another waits and a third is read and written
URL = f"http://127.0.0.1:{PORT}"


def bare() -> Callable[[np.ndarray], None]:
    """Images of these seeds, in one batch."""
    if not CUDA:
        keep_memory()  # as the engine does: like is compared with like
    files = PixelFiles.find("small", None, offline=True)
    network = files.network().eval().requires_grad_(False).to(DEVICE)
    scheduler = files.sampler("ddim")
    scheduler.set_timesteps(STEPS)

    @torch.no_grad()
    def run(seeds: np.ndarray) -> None:
        x = normals((1, 28, 28), [torch_rng(int(seed)) for seed in seeds]).to(DEVICE)
        classes = torch.zeros(len(x), dtype=torch.long, device=DEVICE)
        for t in scheduler.timesteps:
            x = scheduler.step(network(x, t, class_labels=classes).sample, t, x).prev_sample
        ((x + 1) * 127.5).round().clamp(0, 255).byte().cpu().numpy()

    return run


def best_batch(run: Callable[[np.ndarray], None]) -> int:
    """The size at which the bare loop makes most images per second."""

    def speed(size: int) -> float:
        seeds = np.arange(size, dtype=np.uint64)
        return max(size / timed(lambda: run(seeds)) for _ in range(3))

    speeds = {size: speed(size) for size in BATCHES}
    return max(speeds, key=lambda size: speeds[size])


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def serving(replicas: int, batch: int) -> Iterator[int]:
    """`pe serve small`, for as long as the block lasts; its session's number."""
    limits = ["--limit", f"images={batch}", "--limit", "waiting=100000", "--limit", "requests=1000"]
    options = ["--port", str(PORT), "--replicas", str(replicas), "--max-batch", str(batch), *limits]
    pe = str(Path(sys.executable).with_name("pe"))
    command = [pe, "serve", "small", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if URL in line:
                break
        else:
            raise RuntimeError("the server did not start")
        yield server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(120)


def memory(session: int) -> float:
    """GB of main memory of a session's processes, what they share counted once."""
    kilobytes = 0
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and os.getsid(int(place.name)) == session:
                lines = (place / "smaps_rollup").read_text().splitlines()
                kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue  # it has just ended
    return kilobytes / 2**20


def many(callers: int) -> float:
    """Images per second of callers who want one each, again and again."""

    def ask(seed: int) -> None:
        wanted = BatchRequest(
            np.array([seed], dtype=np.uint64), steps=STEPS, classes=np.zeros(1, dtype=np.int64)
        )
        request = urllib.request.Request(
            f"{URL}/v1/batch/images", pack_request(wanted), {"Content-Type": ARRAYS}
        )
        urllib.request.urlopen(request, timeout=120).read()

    with ThreadPoolExecutor(callers) as threads:
        return 4 * callers / timed(lambda: list(threads.map(ask, range(4 * callers))))


def mean_batch(before: dict[str, float], after: dict[str, float]) -> float:
    """Images per batch between two looks at the counters."""
    images, batches = (
        after[name] - before[name]
        for name in ("pe_server_images_total", "pe_server_batch_images_count")
    )
    return images / batches


def asked(batch: int) -> Callable[[np.ndarray], None]:
    """Images of these seeds, by the batch route, several requests at once."""
    client = ServerClient(base_url=URL, steps=STEPS, chunk=batch, concurrency=2 * UNDER_WAY)

    def run(seeds: np.ndarray) -> None:
        parts = [seeds[start : start + batch] for start in range(0, len(seeds), batch)]
        with ThreadPoolExecutor(2 * UNDER_WAY) as threads:
            answers = threads.map(
                lambda part: client.random_api(RandomRequest(("a",) * len(part), part)), parts
            )
            assert all(len(answer.samples) == batch for answer in answers)

    return run


def counters() -> dict[str, float]:
    time.sleep(15)  # Ray gathers them every ten seconds
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{URL}/metrics", timeout=20) as page:
        for line in page.read().decode().splitlines():
            if not line.startswith("#"):
                name = line.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def lone(rounds: int, run: Callable[[np.ndarray], None]) -> tuple[float, float, float]:
    """Milliseconds to one image when nobody else asks: by HTTP, by the bare loop, and to
    /healthz.
    """
    one = np.zeros(1, dtype=np.uint64)
    body = pack_request(BatchRequest(one, steps=STEPS, classes=np.zeros(1, dtype=np.int64)))
    request = urllib.request.Request(
        f"{URL}/v1/batch/images", data=body, headers={"Content-Type": ARRAYS}
    )
    http, loop, ping = [], [], []
    for _ in range(REQUESTS * rounds):
        http.append(timed(lambda: urllib.request.urlopen(request, timeout=60).read()))
        loop.append(timed(lambda: run(one)))
        ping.append(timed(lambda: urllib.request.urlopen(f"{URL}/healthz", timeout=60).read()))
    return tuple(1000 * statistics.median(times) for times in (http, loop, ping))  # type: ignore[return-value]


@dataclass
class Found:
    """What one replica was measured at.

    Attributes:
        speeds: images per second, by HTTP and by the bare loop.
        ratio: the first over the second: lower quartile, median, upper quartile over the rounds.
        busy: the share of the requests' time in which the engine was at work.
        fill: images per batch, by the batch route.
        latency: of a lone request, ms: by HTTP, by the bare loop, and to /healthz.
        alone: of which the engine's, ms.
        crowd: images per second of callers of one image each.
        crowd_fill: their images per batch.
        memory: of all processes, GB.
    """

    speeds: tuple[float, float]
    ratio: tuple[float, float, float]
    busy: float
    fill: float
    latency: tuple[float, float, float]
    alone: float
    crowd: float
    crowd_fill: float
    memory: float


def engine_seconds(before: dict[str, float], after: dict[str, float]) -> float:
    """Seconds in which engines were at work between two looks at the counters."""
    return after["pe_server_engine_seconds_total"] - before["pe_server_engine_seconds_total"]


def in_turns(
    rounds: int, one: Callable[[], object], other: Callable[[], object]
) -> list[tuple[float, float]]:
    """Seconds of both in each round; who begins changes from round to round."""
    times = []
    for turn in range(rounds):
        if turn % 2:
            times.append((timed(one), timed(other)))
        else:
            there = timed(other)
            times.append((timed(one), there))
    return times


def one_replica(
    rounds: int, run: Callable[[np.ndarray], None], batch: int, seeds: np.ndarray
) -> Found:
    """The server beside the bare loop."""

    def loop() -> None:
        for start in range(0, len(seeds), batch):
            run(seeds[start : start + batch])

    with serving(1, batch) as session:
        ask = asked(batch)
        ask(seeds)  # the engine finds its batch size
        before = counters()
        pairs = in_turns(rounds, lambda: ask(seeds), loop)
        after = counters()
        latency = lone(rounds, run)
        between = counters()
        crowd = many(CALLERS)
        crowded = counters()
        http, bare_loop = (
            len(seeds) / statistics.median(each) for each in zip(*pairs, strict=True)
        )
        low, median, high = statistics.quantiles((there / here for here, there in pairs), n=4)
        return Found(
            speeds=(http, bare_loop),
            ratio=(low, median, high),
            busy=engine_seconds(before, after) / sum(here for here, _ in pairs),
            fill=mean_batch(before, after),
            latency=latency,
            alone=1000 * engine_seconds(after, between) / (REQUESTS * rounds),
            crowd=crowd,
            crowd_fill=mean_batch(between, crowded),
            memory=memory(session),
        )


def two_replicas(rounds: int, batch: int, seeds: np.ndarray) -> tuple[float, float]:
    """Images per second by HTTP of twice as many images, and GB of all processes."""
    double = np.concatenate([seeds, seeds])
    with serving(2, batch) as session:
        ask = asked(batch)
        ask(double)
        held = memory(session)
        return len(double) / statistics.median(
            timed(lambda: ask(double)) for _ in range(rounds)
        ), held


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    run = bare()
    run(np.arange(4, dtype=np.uint64))
    batch = best_batch(run)
    seeds = np.random.default_rng(0).integers(0, 2**64, TURN * batch, dtype=np.uint64)
    one = one_replica(rounds, run, batch, seeds)
    keep("diffusion.md", table(rounds, batch, one, *two_replicas(rounds, batch, seeds)))


def table(rounds: int, batch: int, one: Found, two: float, two_memory: float) -> str:
    """The page: how it was measured, and the numbers."""
    device = (
        torch.cuda.get_device_name(0)
        if CUDA
        else f"no GPU: the processor, {torch.get_num_threads()} thread each"
    )
    low, median, high = one.ratio
    rows = {
        "by HTTP, the batch route, images/s": f"{one.speeds[0]:.1f}",
        "bare loop, images/s": f"{one.speeds[1]:.1f}",
        "ratio of the two, median over the rounds (quartiles)": f"{median:.3f} ({low:.3f} to "
        f"{high:.3f})",
        "share of that time in which the engine was at work": f"{one.busy:.3f}",
        f"images per batch, of {batch}": f"{one.fill:.1f}",
        f"{CALLERS} callers of one image each, again and again, images/s": f"{one.crowd:.1f}",
        "their images per batch": f"{one.crowd_fill:.1f}",
        "a lone request of one image, ms": f"{one.latency[0]:.1f}",
        "of which the engine's, ms (mean)": f"{one.alone:.1f}",
        "the bare loop for one image, ms": f"{one.latency[1]:.1f}",
        "/healthz, ms": f"{one.latency[2]:.1f}",
        "two replicas, images/s": f"{two:.1f} ({two / one.speeds[0]:.2f} of one)",
        "main memory of all processes, one and two replicas, GB": f"{one.memory:.1f} and "
        f"{two_memory:.1f}",
    }
    return (
        "## The diffusion server, compared with a bare loop over the same network\n\n"
        f"{where()}, torch {torch.__version__}. Device: {device}. The shipped model (0.69M, "
        f"28×28), {STEPS} DDIM "
        f"steps, batches of {batch} (the bare loop's best of {', '.join(map(str, BATCHES))}), "
        f"{TURN} batches a turn, "
        f"{2 * UNDER_WAY} requests at once, both sides in turns, medians of {rounds} rounds. "
        f"Client, proxy and "
        "replicas share the machine. Targets: a ratio of at least 0.90 on a processor, 0.95 on a "
        "GPU. "
        "`python benchmarks/server.py`\n\n"
        "| | |\n|---|--:|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    )


if __name__ == "__main__":
    main()
