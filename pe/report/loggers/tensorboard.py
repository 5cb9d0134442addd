"""TensorBoard's event files, one folder per run."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from pe.report.logged import Logged


class TensorBoard:
    """Writes below a folder. The time of each event is its iteration: when work was done is not told.

    Args:
        where: the folder that `tensorboard --logdir` names.
    """

    def __init__(self, where: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder, self._open = Path(where), EventFileWriter
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer: EventFileWriter | None = None

    def log(self, logged: Logged) -> None:
        """One event: the numbers, and the picture of the samples."""
        if self._writer is None:
            self._writer = self._open(str(self._folder / logged.run))
        summary = self._summary()
        for name, value in logged.numbers().items():
            summary.value.add(tag=name, simple_value=value)
        width, height = Image.open(io.BytesIO(logged.picture)).size
        picture = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=logged.picture)
        summary.value.add(tag=logged.noun, image=picture)
        self._writer.add_event(self._event(step=logged.t, wall_time=logged.t, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
