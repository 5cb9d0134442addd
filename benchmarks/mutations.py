"""Find wrong lines that the tests do not notice.

    python benchmarks/mutations.py [--count 200] [--seed 1] [--jobs 2]

Draws single mutations at random, by a fixed seed, over the parts where a wrong line costs privacy,
money or results. A mutation turns a comparison, changes an operator or a constant, negates a
condition, or leaves out a statement. Each is made in a copy of the checkout. Then the tests that
run its line run, the quickest first, for about two minutes or until one fails. For a line that runs
at import, the tests of its room run. A mutation that no test notices is harmless or shows a gap;
the page names them. Writes results/mutations.md. Needs pytest-cov, and about an hour on two cores.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

from coverage import CoverageData
from record import keep, where

ROOT = Path(__file__).parent.parent
TESTS = {
    "pe/privacy": "tests/privacy",
    "pe/private": "tests/private",
    "pe/histogram.py": "tests/test_histogram.py",
    "pe/selection.py": "tests/test_selection.py",
    "pe/dispatch": "tests/dispatch",
    "pe/store": "tests/store",
    "adapters/trained/dp_sgd": "tests/adapters/trained/dp_sgd",
    "adapters/http/retries.py": "tests/adapters/http",
}
"""Room → its own tests."""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
AT_ONCE, SECONDS = 40, 120  # tests of one call; for all calls over a mutation
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Mult(),
}  # fmt: skip
IGNORED = shutil.ignore_patterns(".venv*", ".git", "*cache*", "build", "dist", "*.egg-info")


def mutable(path: Path) -> list[int]:
    """The numbers, in the order of `ast.walk`, of the nodes of a file that can be mutated."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [number for number, node in enumerate(ast.walk(tree)) if change(node)]


def mutated(path: Path, number: int) -> tuple[int, str, str]:
    """A mutation: its line, the code before, and the file's text with it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(each for i, each in enumerate(ast.walk(tree)) if i == number)
    before = ast.unparse(node).splitlines()[0][:90]
    change(node)
    return getattr(node, "lineno", 1), before, ast.unparse(tree)


def change(node: ast.AST) -> bool:
    """Mutate `node` in place; False if there is nothing to mutate."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        node.ops[0] = COMPARISONS[type(node.ops[0])]
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        node.op = OPERATORS[type(node.op)]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1
    elif isinstance(node, ast.Return | ast.Expr) and isinstance(node.value, ast.Call):
        node.value = ast.Constant(None)  # the call is left out
    else:
        return False
    return True


def drawn(count: int, seed: int) -> list[tuple[str, Path, int, str, str]]:
    """`count` mutations: room, file, line, the code before, and the file's text with it."""
    every = []
    for room in TESTS:
        files = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
        every += [(room, path, number) for path in files for number in mutable(path)]
    sample = sorted(random.Random(seed).sample(every, count))
    return [(room, path.relative_to(ROOT), *mutated(path, number)) for room, path, number in sample]


def covering(folder: Path) -> tuple[CoverageData, dict[str, float]]:
    """Run all tests once: the tests that run each line, and the seconds that each test takes."""
    settings = ["--cov", "--cov-context=test", "--cov-report=", f"--cov-config={folder}/settings"]
    (folder / "settings").write_text(
        f"[run]\nsource = pe, adapters\ncore = ctrace\ndata_file = {folder}/data\n"
    )
    subprocess.run(
        [*PYTEST, "-n", "2", *settings, f"--junitxml={folder}/times.xml"], cwd=ROOT, check=False
    )
    data, seconds = CoverageData(str(folder / "data")), dict[str, float]()
    data.read()
    for case in ElementTree.parse(folder / "times.xml").iter("testcase"):
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        seconds[name] = seconds.get(name, 0.0) + float(case.attrib["time"])
    return data, seconds


def tests_of(path: Path, line: int, data: CoverageData, seconds: dict[str, float]) -> list[str]:
    """The tests that run a line, the quickest first; none for a line that runs at import."""
    by_line = data.contexts_by_lineno(str(path))
    statements = [
        node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.stmt)
    ]
    first = max(
        (node.lineno for node in statements if node.lineno <= line <= (node.end_lineno or 0)),
        default=line,
    )
    names = {
        one.partition("|")[0]
        for at in range(first, line + 1)
        for one in by_line.get(at, ())
        if len(one) < 300
    }
    return sorted(names - {""}, key=lambda name: seconds.get(name, 9.0))


def is_noticed(tree: Path, file: Path, text: str, tests: list[str]) -> bool:
    """Return True if one of the tests fails once `file` has this text in the copy `tree`."""
    original, begun = (tree / file).read_bytes(), time.monotonic()
    (tree / file).write_text(text, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tree / "tmp"),
    }
    command = [*PYTEST, "-x", "--timeout=60"]
    try:
        for start in range(0, len(tests), AT_ONCE):
            some = tests[start : start + AT_ONCE]
            if subprocess.run(
                [*command, *some], cwd=tree, env=environment, capture_output=True, check=False
            ).returncode:
                return True
            if time.monotonic() - begun > SECONDS:
                break
        return False
    finally:
        (tree / file).write_bytes(original)
        shutil.rmtree(tree / "tmp", ignore_errors=True)
        (tree / "tmp").mkdir()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen, trees = drawn(arguments.count, arguments.seed), SimpleQueue[Path]()
    with tempfile.TemporaryDirectory() as folder:
        data, seconds = covering(Path(folder))
        for job in range(arguments.jobs):
            trees.put(
                Path(shutil.copytree(ROOT, Path(folder) / str(job), ignore=IGNORED, symlinks=True))
            )
            (Path(folder) / str(job) / "tmp").mkdir()

        def try_one(mutation: tuple[str, Path, int, str, str]) -> bool:
            room, file, line, code, text = mutation
            tests, tree = tests_of(ROOT / file, line, data, seconds) or [TESTS[room]], trees.get()
            try:
                noticed = is_noticed(tree, file, text, tests)
            finally:
                trees.put(tree)
            print("noticed" if noticed else "MISSED ", f"{file}:{line}: {code}", flush=True)
            return noticed

        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(try_one, chosen))
    pairs = zip(chosen, results, strict=True)
    missed = [
        f"- `{file}:{line}`: `{code}`" for (_, file, line, code, _), noticed in pairs if not noticed
    ]
    head = (
        f"{where()}. `python benchmarks/mutations.py --count {arguments.count} --seed "
        f"{arguments.seed}`"
    )
    share = f"{sum(results)} of {len(results)} mutations noticed. Not noticed:"
    keep(
        "mutations.md",
        "\n".join(["# Wrong lines that the tests do not notice", "", head, "", share, "", *missed]),
    )


if __name__ == "__main__":
    main()
