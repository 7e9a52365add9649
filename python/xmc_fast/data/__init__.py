"""Data in, data out: readers and writers of the common XMC formats, demo and synthetic data, statistics.

Features are scipy CSR float32 matrices (points x features), labels scipy CSR float32 matrices of ones (points
x labels). All files may be plain, ``.gz`` or ``.xz``.
"""

from xmc_fast.data._demo import Demo, load_demo
from xmc_fast.data._io import read_lines
from xmc_fast.data._parse import Dataset
from xmc_fast.data._sparse import read_libsvm, read_pair, read_xmc, write_xmc

__all__ = [
    "Dataset",
    "Demo",
    "load_demo",
    "read_libsvm",
    "read_lines",
    "read_pair",
    "read_xmc",
    "write_xmc",
]
