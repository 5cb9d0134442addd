"""What the loggers write, by the libraries that they are for: read back, and searched for private
records.
"""

import base64
import io
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pe.report.loggers import make_entry
from pe.report.pages import public_plan
from pe.store.run import Run
from tests.peers.servers import python_of

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
SECRET = "Doe-Jane"
MAGENTA = (255, 0, 255)
RUN = "from pe.cli.main import main; main()"
READ = """
import base64, json
from pathlib import Path
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

logged = {"tensorboard": {}, "mlflow": {}}
def keep(logger, step, name, value):
    logged[logger].setdefault(str(step), {})[name] = value
def picture(content):
    return base64.b64encode(content).decode()

for event in EventFileLoader(str(next(Path("tb/run").iterdir()))).Load():
    for value in event.summary.value:
        assert event.wall_time == event.step
        if value.tag == "images":
            content = value.tensor.string_val[2]  # after width and height
            keep("tensorboard", event.step, "images", picture(content))
        else:
            keep("tensorboard", event.step, value.tag, value.tensor.float_val[0])

client = MlflowClient("sqlite:///mlflow.db")
(run,) = client.search_runs([client.get_experiment_by_name("private-evolution").experiment_id])
assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
for name in run.data.metrics:
    for one in client.get_metric_history(run.info.run_id, name):
        keep("mlflow", one.step, name, one.value)
for artifact in client.list_artifacts(run.info.run_id, "images"):
    path = Path(client.download_artifacts(run.info.run_id, artifact.path))
    keep("mlflow", int(path.stem), "images", picture(path.read_bytes()))
print(json.dumps(logged))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run logged by all three; its records are magenta, and their place has a
    patient's name.
    """
    folder = tmp_path_factory.mktemp("loggers")
    private, logs = folder / SECRET, folder / "logs"
    private.mkdir()
    logs.mkdir()
    magenta = np.full((60, 8, 8, 3), MAGENTA, np.uint8)
    greys = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 1)).astype(np.uint8)
    np.savez(private / "private.npz", images=magenta, labels=["a", "b"] * 30)
    np.savez(folder / "public.npz", images=greys.repeat(3, axis=-1))
    recipe = {
        "private": {
            "kind": "npz",
            "path": "private.npz",
            "size": 8,
            "classes": ["a", "b"],
            "declared_size": 60,
        },
        "api": {"kind": "public_images", "path": str(folder / "public.npz"), "size": 8},
        "embedding": {"kind": "pixels"},
        "privacy": {"epsilon": 5, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 20},
    }
    (private / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    loggers = ("tensorboard=tb", "mlflow=sqlite:///mlflow.db", "wandb=project")
    named = [word for logger in loggers for word in ("--logger", logger)]
    carry_out(
        "-c", RUN, "run", private / "recipe.yaml", "--out", private / "run", *named, folder=logs
    )
    return folder


def carry_out(*arguments: str | Path, folder: Path) -> str:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    env["WANDB_MODE"] = "offline"
    command = [python_of("loggers"), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def test_tensorboard_and_mlflow_have_every_number_and_picture(written: Path) -> None:
    logged = json.loads(carry_out("-c", READ, folder=written / "logs").splitlines()[-1])
    run = Run.open(written / SECRET / "run")
    _, plan = public_plan(run)
    for steps in logged.values():
        assert list(steps) == ["0", "1"]
        for t in range(2):
            entry = make_entry(
                run, plan, t, run.guarantee["epsilon"], 1e-5, images=20 * (t + 1), cost=0.0
            )
            picture = steps[str(t)].pop("images")
            assert np.array_equal(pixels(base64.b64decode(picture)), pixels(entry.picture))
            assert steps[str(t)] == pytest.approx(entry.numbers(), rel=1e-6)


def test_no_file_of_a_logger_holds_anything_of_a_private_record(written: Path) -> None:
    whole = (written / SECRET / "run" / "confidential" / "recipe.yaml").read_bytes()
    assert SECRET.encode() in whole  # which is one that a logger could have read
    files = [path for path in (written / "logs").rglob("*") if path.is_file()]
    assert {"mlflow.db", "001.png"} <= {path.name for path in files}
    assert ".wandb" in {path.suffix for path in files}
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content, path
        assert b"private.npz" not in content, path
        if path.suffix == ".png":
            red, green, blue = np.moveaxis(pixels(content).astype(int), -1, 0)
            assert not (np.minimum(red, blue) - green > 30).any(), path
