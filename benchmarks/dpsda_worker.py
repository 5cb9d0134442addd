"""Run DPSDA's loop for dpsda.py and dpsda_text.py. The generator is at the other end of a socket.

    PYTHONPATH=CHECKOUT python benchmarks/dpsda_worker.py SETTINGS

SETTINGS is a .json file that one of these scripts writes. Only DPSDA's code and its libraries run
here. Libraries that it imports but does not use in this run are replaced by empty ones, since not
all of them can be installed everywhere.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from multiprocessing.connection import Client
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

NEVER_USED = set(
    """
    azure blobfile clip cleanfid dotenv fastchat fld gdown generalimport imageio improved_diffusion cairosvg lightgbm
    openai ot python_avatars sentence_transformers tabicl tabpfn tenacity tiktoken wandb wilds xgboost
    """.split()
)


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty library for each of NEVER_USED."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Of an empty library."""
        if name.partition(".")[0] in NEVER_USED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        """One that has every name."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        """Nothing."""


sys.meta_path.insert(0, Empty())

import pandas as pd  # noqa: E402
from pe.api.api import API  # noqa: E402
from pe.constant.data import LABEL_ID_COLUMN_NAME, TEXT_DATA_COLUMN_NAME  # noqa: E402
from pe.embedding import Embedding  # noqa: E402
from pe.embedding.image import RawPixel  # noqa: E402
from pe.population import PEPopulation  # noqa: E402
from pe.runner import PE  # noqa: E402

from pe.data import Data  # noqa: E402
from pe.histogram import NearestNeighbors  # noqa: E402

pd.options.mode.copy_on_write = True


class Remote(API):  # type: ignore[misc]
    """The generator at the other end; a row's condition goes with it."""

    def __init__(self, address: str, degrees: list[float], column: str) -> None:
        super().__init__()
        self.connection, self._degrees, self._column = Client(address, "AF_UNIX"), degrees, column

    def random_api(self, label_info, num_samples):  # type: ignore[no-untyped-def]
        """New samples of a label."""
        self.connection.send(("random", label_info.name, int(num_samples)))
        return self._answer({"label_info": [label_info]})

    def variation_api(self, syn_data):  # type: ignore[no-untyped-def]
        """A variation of each row."""
        frame, t = syn_data.data_frame, getattr(syn_data.metadata, "iteration", -1) + 1
        samples = np.stack(frame[self._column].values)
        names = [syn_data.metadata.label_info[i].name for i in frame[LABEL_ID_COLUMN_NAME]]
        self.connection.send(
            ("vary", samples, names, list(frame["condition"]), self._degrees[max(t - 1, 0)])
        )
        answer = self._answer(syn_data.metadata)
        answer.data_frame[LABEL_ID_COLUMN_NAME] = frame[LABEL_ID_COLUMN_NAME].values
        return answer

    def _answer(self, metadata):  # type: ignore[no-untyped-def]
        samples, conditions = self.connection.recv()
        return Data(
            pd.DataFrame(
                {self._column: list(samples), "condition": conditions, LABEL_ID_COLUMN_NAME: 0}
            ),
            metadata,
        )


class RemoteEmbedding(Embedding):  # type: ignore[misc]
    """The embedding at the other end, asked as DPSDA asks its own of texts: for the rows that have
    no vector yet.
    """

    def __init__(self, connection) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self._connection = connection

    def compute_embedding(self, data):  # type: ignore[no-untyped-def]
        """The vectors as a column."""
        missing = self.filter_uncomputed_rows(data)
        if not len(missing.data_frame):
            return data
        self._connection.send(("embed", np.stack(missing.data_frame[TEXT_DATA_COLUMN_NAME].values)))
        missing.data_frame[self.column_name] = pd.Series(
            list(self._connection.recv()), index=missing.data_frame.index
        )
        return self.merge_computed_rows(data, missing)


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    private = np.load(settings["private"])
    column, classes = settings["column"], settings["classes"]
    frame = pd.DataFrame(
        {column: list(private["samples"]), LABEL_ID_COLUMN_NAME: private["labels"].astype(int)}
    )
    data = Data(frame, {"label_info": [{"name": name} for name in classes]})
    api = Remote(settings["address"], settings["degrees"], column)
    histogram = NearestNeighbors(
        embedding=RemoteEmbedding(api.connection)
        if column == TEXT_DATA_COLUMN_NAME
        else RawPixel(),
        mode="l2",
        lookahead_degree=settings["lookahead"],
        api=api,
        num_nearest_neighbors=settings["neighbors"],
    )
    population = PEPopulation(
        api=api,
        histogram_threshold=settings["threshold"],
        initial_variation_api_fold=settings["first"],
        next_variation_api_fold=settings["fold"],
        keep_selected=settings["keep_selected"],
        selection_mode=settings["selection"],
    )
    found = PE(priv_data=data, population=population, histogram=histogram).run(
        num_samples_schedule=settings["schedule"],
        delta=settings["delta"],
        epsilon=settings["epsilon"],
        checkpoint_path=settings["checkpoint"],
        fraction_per_label_id=[1.0] * len(classes),
    )
    samples = np.stack(found.data_frame[column].values)
    np.savez(
        settings["result"],
        samples=samples,
        labels=found.data_frame[LABEL_ID_COLUMN_NAME].to_numpy(np.int32),
    )
    os._exit(0)  # threads of the libraries are not waited for


if __name__ == "__main__":
    main()
