"""Sources of private records, the private data set, and its embeddings.

Private records are read to embed them, to count votes, to fit a generator and to evaluate
a run; see `PrivateDataset` for what is public and what is confidential.
"""

from pe.private.dataset import BadRecord, PrivateDataset
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.private.folder import ImageFolder, TextFolder, find_labels
from pe.private.medical import Dicom
from pe.private.npz import ImageNpz, MnistSample
from pe.private.source import PrivateSource
from pe.private.tables import ImageParquet, TextTable
from pe.private.webdataset import WebDataset

__all__ = [
    "BadRecord",
    "Dicom",
    "ImageFolder",
    "ImageNpz",
    "ImageParquet",
    "MnistSample",
    "PrivateDataset",
    "PrivateEmbeddings",
    "PrivateSource",
    "TextFolder",
    "TextTable",
    "WebDataset",
    "embed_private",
    "find_labels",
]
