"""Data in, data out: readers and writers of the common XMC formats, demo and synthetic data, statistics.

Features are scipy CSR float32 matrices (points x features), labels scipy CSR float32 matrices of ones (points
x labels). All text files may be plain, ``.gz`` or ``.xz``.
"""

from xmc_fast.data._demo import Demo, load_demo
from xmc_fast.data._describe import PowerLaw, Statistics, describe, fit_power_law
from xmc_fast.data._filter import filter_labels, read_filter, reciprocal_pairs
from xmc_fast.data._io import read_lines
from xmc_fast.data._parse import Dataset
from xmc_fast.data._sparse import read_libsvm, read_pair, read_xmc, write_xmc
from xmc_fast.data._stream import iter_xmc
from xmc_fast.data._synthetic import make_synthetic
from xmc_fast.data._text import TextDataset, read_jsonl, read_npz, read_text

__all__ = [
    "Dataset",
    "Demo",
    "PowerLaw",
    "Statistics",
    "TextDataset",
    "describe",
    "filter_labels",
    "fit_power_law",
    "iter_xmc",
    "load_demo",
    "make_synthetic",
    "read_filter",
    "read_jsonl",
    "read_libsvm",
    "read_lines",
    "read_npz",
    "read_pair",
    "read_text",
    "read_xmc",
    "reciprocal_pairs",
    "write_xmc",
]
