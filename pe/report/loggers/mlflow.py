"""MLflow: a run in the experiment `private-evolution`."""

from __future__ import annotations

import io

from PIL import Image

from pe.report.logged import Logged

_EXPERIMENT = "private-evolution"


class MLflow:
    """Logs to a tracking server or store.

    Args:
        where: its URI, as `mlflow.set_tracking_uri` takes it.
    """

    def __init__(self, where: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=where)
        self._run: str | None = None

    def log(self, logged: Logged) -> None:
        """A metric for each number, and an artifact for the picture."""
        if self._run is None:
            known = self._client.get_experiment_by_name(_EXPERIMENT)
            experiment = known.experiment_id if known else self._client.create_experiment(_EXPERIMENT)
            self._run = self._client.create_run(experiment, run_name=logged.run).info.run_id
        for name, value in logged.numbers().items():
            self._client.log_metric(self._run, name, value, step=logged.t)
        self._client.log_image(self._run, Image.open(io.BytesIO(logged.picture)), f"{logged.noun}/{logged.t:03d}.png")

    def close(self) -> None:
        """Mark the run as ended."""
        if self._run is not None:
            self._client.set_terminated(self._run)
