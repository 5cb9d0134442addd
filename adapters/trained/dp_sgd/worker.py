"""One more process of a training: it sums the gradients of the micro-batches that it is handed, and keeps nothing.

`group.start` starts it, with a pipe. It ends with the process that started it, however that ends: a thread waits for
the pipe to close, also while gradients are computed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from io import BytesIO
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from adapters.trained.dp_sgd.processes import Start, Task
from pe.data.quiet import quiet
from pe.errors import PEError

if TYPE_CHECKING:
    import torch

    from adapters.trained.dp_sgd.training import Training


def work(connection: Connection) -> None:
    """Answer the start with None, and every step's part with its sum, or with the error that ended it.

    Guarantee: nothing is said but to the process that started this one.
    """
    received: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(connection, received), daemon=True).start()
    with quiet():
        try:
            _work(received, connection.send)
        except PEError as error:
            connection.send(error)
        except Exception:  # its words may be about a private record: they are for the ledger, which logs them
            connection.send(RuntimeError(traceback.format_exc()))


def _work(received: SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    start: Start = received.get()

    import torch

    from pe.plugins.devices import find_device

    torch.set_num_threads(start.threads)
    device = find_device(start.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    send(None)
    training: Training | None = None
    while True:
        message = received.get()
        if isinstance(message, Task):
            training = _training(message, device)
            continue
        assert training is not None
        parameters, parts = message
        send(training.share(torch.from_numpy(parameters).to(device), parts).cpu().numpy())


def _training(task: Task, device: torch.device) -> Training:
    import torch

    from adapters.trained.dp_sgd.training import Training

    # The process that started this one is all that can write to the pipe.
    model, loss, settings = torch.load(BytesIO(task.content), map_location=task.places, weights_only=False)
    return Training(model, loss, settings, device)


def _receive(connection: Connection, received: SimpleQueue[Any]) -> None:
    """Pass on what arrives, and end this process when nothing can arrive any more."""
    try:
        while True:
            received.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
