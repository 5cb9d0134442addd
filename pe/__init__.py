"""Private Evolution: differentially private synthetic data from any generator you can call.

    data = pe.ImageFolder("scans", size=128, classes=["benign", "malignant"])
    run = pe.evolve(data, pe.api("public_images", path="public"), epsilon=4, delta=1e-6)

Importing this package loads nothing; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pe.version import MIXED
from pe.version import __version__ as __version__

# A file of the PE authors' library: it has replaced pe/histogram.py, too.
if find_spec("pe.runner") is not None:
    raise ImportError(MIXED)

if TYPE_CHECKING:
    from pe.data.images import Images as Images
    from pe.data.markup import unwrap as unwrap
    from pe.data.population import Population as Population
    from pe.data.samples import Conditions as Conditions
    from pe.data.texts import Texts as Texts
    from pe.engine.python import api as api
    from pe.engine.python import embedding as embedding
    from pe.engine.python import evaluate as evaluate
    from pe.engine.python import evolve as evolve
    from pe.engine.python import extend as extend
    from pe.engine.python import plan as plan
    from pe.engine.python import probe as probe
    from pe.engine.python import resume as resume
    from pe.engine.python import write_report as write_report
    from pe.errors import APIError as APIError
    from pe.errors import PEError as PEError
    from pe.plugins.protocols import Answer as Answer
    from pe.plugins.protocols import Capabilities as Capabilities
    from pe.plugins.protocols import Embedding as Embedding
    from pe.plugins.protocols import Failed as Failed
    from pe.plugins.protocols import GenerationAPI as GenerationAPI
    from pe.plugins.protocols import Generator as Generator
    from pe.plugins.protocols import PluginInfo as PluginInfo
    from pe.plugins.protocols import RandomRequest as RandomRequest
    from pe.plugins.protocols import Refused as Refused
    from pe.plugins.protocols import Usage as Usage
    from pe.plugins.protocols import VariationRequest as VariationRequest
    from pe.plugins.specs import plugin as plugin
    from pe.private.folder import ImageFolder as ImageFolder
    from pe.private.folder import TextFolder as TextFolder
    from pe.private.medical import Dicom as Dicom
    from pe.private.npz import ImageNpz as ImageNpz
    from pe.private.npz import MnistSample as MnistSample
    from pe.private.tables import ImageParquet as ImageParquet
    from pe.private.tables import RowTable as RowTable
    from pe.private.tables import TextTable as TextTable
    from pe.private.webdataset import WebDataset as WebDataset
    from pe.progress import Progress as Progress
    from pe.report.loggers import Logged as Logged
    from pe.report.loggers import Logger as Logger
    from pe.store.run import Run as Run

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

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pe' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
