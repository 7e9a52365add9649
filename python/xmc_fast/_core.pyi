from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# core
def simd_level() -> str: ...
def simd_supported() -> str: ...
def force_simd_level(name: str) -> None: ...
def available_cpus() -> int: ...
def default_threads() -> int: ...
def set_default_threads(threads: int) -> None: ...
def measure_roofline(threads: int, seconds: float) -> tuple[float, float, float]: ...
def parallel_for_test(blocks: int, threads: int, fn: Callable[[int], object]) -> None: ...

# cluster
def label_centroids(
    cols: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    positives_indptr: npt.NDArray[np.int64],
    positives_indices: npt.NDArray[np.int32],
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
def label_tree(
    cols: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    positives_indptr: npt.NDArray[np.int64],
    positives_indices: npt.NDArray[np.int32],
    max_leaf: int,
    max_iterations: int,
    tolerance: float,
    seed: int,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]: ...
