"""Private Evolution: differentially private synthetic data from any generator you can call.

    data = pe.ImageFolder("scans", size=128, classes=["benign", "malignant"],
    privacy_unit="patient") run = pe.evolve(data, pe.api("public_images", path="public"), epsilon=4,
    delta=1e-6,
                    population=2000, iterations=6)

Importing this package loads nothing; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pe.version import MIXED, __version__

if (
    find_spec("pe.runner") is not None
):  # a file of the PE authors' library: it replaced pe/histogram.py, too
    raise ImportError(MIXED)

if TYPE_CHECKING:
    from pe.data.images import Images
    from pe.data.markup import unwrap
    from pe.data.population import Population
    from pe.data.samples import Conditions
    from pe.data.texts import Texts
    from pe.engine.python import (
        api,
        embedding,
        evaluate,
        evolve,
        extend,
        plan,
        probe,
        resume,
        write_report,
    )
    from pe.errors import APIError, PEError
    from pe.plugins.protocols import (
        Answer,
        Capabilities,
        Embedding,
        Failed,
        GenerationAPI,
        Generator,
        PluginInfo,
        RandomRequest,
        Refused,
        Usage,
        VariationRequest,
    )
    from pe.plugins.specs import plugin
    from pe.private.folder import ImageFolder, TextFolder
    from pe.private.medical import Dicom
    from pe.private.npz import ImageNpz, MnistSample
    from pe.private.tables import ImageParquet, RowTable, TextTable
    from pe.private.webdataset import WebDataset
    from pe.progress import Progress
    from pe.report.loggers import Logged, Logger
    from pe.store.run import Run

_HOMES = {
    "pe.data.images": "Images",
    "pe.data.markup": "unwrap",
    "pe.data.population": "Population",
    "pe.data.samples": "Conditions",
    "pe.data.texts": "Texts",
    "pe.engine.python": "api embedding evaluate evolve extend plan probe resume write_report",
    "pe.errors": "APIError PEError",
    "pe.plugins.protocols": "Answer Capabilities Embedding Failed GenerationAPI Generator "
    "PluginInfo RandomRequest "
    "Refused Usage VariationRequest",
    "pe.plugins.specs": "plugin",
    "pe.private.folder": "ImageFolder TextFolder",
    "pe.private.medical": "Dicom",
    "pe.private.npz": "ImageNpz MnistSample",
    "pe.private.tables": "ImageParquet RowTable TextTable",
    "pe.private.webdataset": "WebDataset",
    "pe.progress": "Progress",
    "pe.report.loggers": "Logged Logger",
    "pe.store.run": "Run",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "APIError",
    "Answer",
    "Capabilities",
    "Conditions",
    "Dicom",
    "Embedding",
    "Failed",
    "GenerationAPI",
    "Generator",
    "ImageFolder",
    "ImageNpz",
    "ImageParquet",
    "Images",
    "Logged",
    "Logger",
    "MnistSample",
    "PEError",
    "PluginInfo",
    "Population",
    "Progress",
    "RandomRequest",
    "Refused",
    "RowTable",
    "Run",
    "TextFolder",
    "TextTable",
    "Texts",
    "Usage",
    "VariationRequest",
    "WebDataset",
    "__version__",
    "api",
    "embedding",
    "evaluate",
    "evolve",
    "extend",
    "plan",
    "plugin",
    "probe",
    "resume",
    "unwrap",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pe' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
