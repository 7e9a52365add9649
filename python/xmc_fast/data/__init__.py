"""Data in, data out: one reader for all formats, readers and writers of the XMC formats, demo and synthetic
data, statistics.

Features are scipy CSR float32 matrices (rows x features), labels scipy CSR float32 matrices of ones (rows x
labels) or lists of names. Files may be plain, ``.gz``, ``.xz`` or ``.zst``.
"""

from xmc_fast.data._column import TextColumn
from xmc_fast.data._dataset import Dataset, Matrices
from xmc_fast.data._demo import Demo, load_demo
from xmc_fast.data._describe import PowerLaw, Statistics, describe, fit_power_law
from xmc_fast.data._filter import filter_labels, read_filter, reciprocal_pairs
from xmc_fast.data._frame import as_texts, from_frame
from xmc_fast.data._io import read_lines
from xmc_fast.data._labels import Labels, as_labels
from xmc_fast.data._names import read_names
from xmc_fast.data._read import read, read_chunks
from xmc_fast.data._sparse import read_libsvm, read_pair, read_xmc, write_xmc
from xmc_fast.data._stream import iter_xmc
from xmc_fast.data._synthetic import make_synthetic
from xmc_fast.data._text import TextDataset, read_npz, read_text

__all__ = [
    "Dataset",
    "Demo",
    "Labels",
    "Matrices",
    "PowerLaw",
    "Statistics",
    "TextColumn",
    "TextDataset",
    "as_labels",
    "as_texts",
    "describe",
    "filter_labels",
    "fit_power_law",
    "from_frame",
    "iter_xmc",
    "load_demo",
    "make_synthetic",
    "read",
    "read_chunks",
    "read_filter",
    "read_libsvm",
    "read_lines",
    "read_names",
    "read_npz",
    "read_pair",
    "read_text",
    "read_xmc",
    "reciprocal_pairs",
    "write_xmc",
]
