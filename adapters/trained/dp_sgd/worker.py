"""The other process of a training: a thread ends it when the pipe to the process that started it closes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from io import BytesIO
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from adapters.trained.dp_sgd.processes import Start, Task
from adapters.trained.dp_sgd.training import Training
from pe.data.quiet import quiet
from pe.errors import PEError
from pe.plugins.devices import find_device


def work(connection: Connection) -> None:
    """Answer the start with None, and every step's part with its sum, or with the error that ended it.

    Guarantee: it tells nothing to anyone but the process that started it, and keeps nothing.
    """
    messages: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(connection, messages), daemon=True).start()
    with quiet():
        try:
            _answer(messages, connection.send)
        except PEError as error:
            connection.send(error)
        except Exception:  # its words may be about a private record: they are for the ledger, which logs them
            connection.send(RuntimeError(traceback.format_exc()))


def _answer(messages: SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    start: Start = messages.get()
    torch.set_num_threads(start.threads)
    device = find_device(start.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    send(None)
    training: Training | None = None
    while True:
        message = messages.get()
        if isinstance(message, Task):
            # The process that started this one is all that can write to the pipe.
            content = torch.load(BytesIO(message.content), map_location=message.places, weights_only=False)
            training = Training(*content, device)
            continue
        assert training is not None
        parameters, parts = message
        send(training.share(torch.from_numpy(parameters).to(device), parts).cpu().numpy())


def _receive(connection: Connection, messages: SimpleQueue[Any]) -> None:
    """Pass on what arrives; end this process when the pipe is closed."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
