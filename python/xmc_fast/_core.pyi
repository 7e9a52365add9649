from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# core
def simd_level() -> str: ...
def simd_supported() -> str: ...
def force_simd_level(name: str) -> None: ...
def available_cpus() -> int: ...
def default_threads() -> int: ...
def set_default_threads(threads: int) -> None: ...
def new_result(bytes: int) -> npt.NDArray[np.uint8]: ...
def recycled_bytes(release: bool) -> int: ...
def measure_roofline(threads: int, seconds: float) -> tuple[float, float, float]: ...
def measure_random_lines(table_lines: int, seconds: float) -> float: ...
def parse_cpulist(text: str) -> list[int]: ...
def numa_topology(root: str, allowed: list[int]) -> list[tuple[int, list[int]]]: ...
def numa_machine() -> list[tuple[int, list[int]]]: ...
def numa_pinned_test(nodes: list[tuple[int, list[int]]], thread: int, fn: Callable[[], object]) -> object: ...
def numa_replicas_test(
    nodes: list[tuple[int, list[int]]], threads: int, values: npt.NDArray[np.float32]
) -> tuple[list[dict[str, object]], list[tuple[int, float]]]: ...
def parallel_for_test(blocks: int, threads: int, fn: Callable[[int], object]) -> None: ...

# cluster
def label_centroids(
    cols: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    positives_indptr: npt.NDArray[np.int64],
    positives_indices: npt.NDArray[np.int32],
    max_features: int,
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
    max_features: int,
    max_iterations: int,
    tolerance: float,
    seed: int,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]: ...

# metrics
def rank_sparse_f32(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    cols: int,
    filter_indptr: npt.NDArray[np.int64],
    filter_indices: npt.NDArray[np.int32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def rank_sparse_f64(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float64],
    cols: int,
    filter_indptr: npt.NDArray[np.int64],
    filter_indices: npt.NDArray[np.int32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def rank_dense_f32(
    scores: npt.NDArray[np.float32],
    filter_indptr: npt.NDArray[np.int64],
    filter_indices: npt.NDArray[np.int32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def rank_dense_f64(
    scores: npt.NDArray[np.float64],
    filter_indptr: npt.NDArray[np.int64],
    filter_indices: npt.NDArray[np.int32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def rank_ids(
    ids: npt.NDArray[np.int64],
    labels: int,
    filter_indptr: npt.NDArray[np.int64],
    filter_indices: npt.NDArray[np.int32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def match_hits(
    truth_indptr: npt.NDArray[np.int64],
    truth_indices: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
    threads: int,
) -> npt.NDArray[np.uint8]: ...
def instance_sums(
    cols: int,
    truth_indptr: npt.NDArray[np.int64],
    truth_indices: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
    hits: npt.NDArray[np.uint8],
    weights: npt.NDArray[np.int32],
    ks: Sequence[int],
    inverse_propensity: npt.NDArray[np.float64],
    threads: int,
) -> npt.NDArray[np.float64]: ...
def label_counts(
    cols: int,
    truth_indptr: npt.NDArray[np.int64],
    truth_indices: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
    hits: npt.NDArray[np.uint8],
    weights: npt.NDArray[np.int32],
    ks: Sequence[int],
    threads: int,
) -> npt.NDArray[np.int32]: ...
def macro_sums(
    counts: npt.NDArray[np.int32],
    labels: int,
    ks: int,
    rows: float,
    beta: float,
    group: npt.NDArray[np.int32],
    groups: int,
    positives_only: bool,
    threads: int,
) -> npt.NDArray[np.float64]: ...

# data
def parse_text(
    text: Any,
    begin: int,
    end: int,
    name: str,
    first_line: int,
    first_row: int,
    max_rows: int,
    n_features: int,
    n_labels: int,
    base: int,
    label_field: bool,
    comments: bool,
    sum_duplicates: bool,
    blank: str,
    threads: int,
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.float32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    int,
    int,
    int,
]: ...
def make_synthetic(
    rows: int,
    feature_ids: npt.NDArray[np.int32],
    label_ids: npt.NDArray[np.int32],
    features_per_point: float,
    labels_per_point: float,
    beta: float,
    signal: float,
    prototype: int,
    seed: int,
    threads: int,
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.float32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
]: ...

class Terms:
    def __init__(self, text: bytes, offsets: npt.NDArray[np.int64]) -> None: ...
    def transform(
        self,
        texts: list[Any],
        lowercase: bool,
        word_bits: npt.NDArray[np.uint8],
        low: int,
        high: int,
        idf: npt.NDArray[np.float32],
        sublinear: bool,
        norm: str,
        threads: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...

class TermCounts:
    def __init__(
        self,
        texts: list[Any],
        lowercase: bool,
        word_bits: npt.NDArray[np.uint8],
        low: int,
        high: int,
        keep_rows: bool,
        threads: int,
    ) -> None: ...
    def n_terms(self) -> int: ...
    def select(
        self, low: int, high: int
    ) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def rows(
        self,
        columns: npt.NDArray[np.int32],
        idf: npt.NDArray[np.float32],
        sublinear: bool,
        norm: str,
        threads: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...

def format_rows(
    x_indptr: npt.NDArray[np.int64],
    x_indices: npt.NDArray[np.int32],
    x_data: npt.NDArray[np.float32],
    y_indptr: npt.NDArray[np.int64],
    y_indices: npt.NDArray[np.int32],
    labels: bool,
    first: int,
    last: int,
    threads: int,
) -> bytes: ...

# decide
def decide_scan(
    indptr: Any, indices: Any, data: Any, labels: int, k: int, threads: int
) -> tuple[int, bool, bool]: ...
def decide_candidates(
    indptr: Any, indices: Any, data: Any, labels: int, k: int, threads: int
) -> tuple[Any, Any, Any]: ...
def decide_column_sums(indptr: Any, indices: Any, data: Any, labels: int) -> Any: ...
def decide_truth(
    indptr: Any, indices: Any, data: Any, y_indptr: Any, y_indices: Any, trust: Any, threads: int
) -> Any: ...
def decide_utility(
    terms: Any, label_weights: Any, positives: Any, n: int, k: int, t: Any, q: Any
) -> float: ...
def decide_gradient(
    terms: Any, label_weights: Any, positives: Any, n: int, k: int, t: Any, q: Any
) -> tuple[Any, Any]: ...
def decide_weighted_topk(
    indptr: Any, indices: Any, data: Any, a: Any, b: Any, k: int, threads: int
) -> tuple[Any, Any]: ...
def decide_bca(
    indptr: Any,
    indices: Any,
    data: Any,
    terms: Any,
    label_weights: Any,
    positives: Any,
    custom: Any,
    custom_weight: float,
    k: int,
    start: str,
    start_labels: Any,
    relaxed_rounds: int,
    tolerance: float,
    max_passes: int,
    seed: int,
    threads: int,
) -> tuple[Any, Any, float, list[float], list[int], bool]: ...
def decide_linear(
    indptr: Any,
    indices: Any,
    data: Any,
    terms: Any,
    label_weights: Any,
    positives: Any,
    k: int,
    threads: int,
) -> tuple[Any, Any, float, float]: ...
def decide_frank_wolfe(
    indptr: Any,
    indices: Any,
    data: Any,
    y_indptr: Any,
    y_indices: Any,
    trust: Any,
    terms: Any,
    label_weights: Any,
    positives: Any,
    k: int,
    max_iterations: int,
    tolerance: float,
    smoothing: float,
    threads: int,
) -> tuple[Any, Any, Any, list[float], list[float], bool]: ...
def decide_predict_mixture(
    indptr: Any,
    indices: Any,
    data: Any,
    a: Any,
    b: Any,
    cumulative: list[float],
    labels: int,
    k: int,
    seed: int,
    threads: int,
) -> tuple[Any, Any]: ...
def decide_thresholds(
    indptr: Any,
    indices: Any,
    data: Any,
    truth: Any,
    terms: Any,
    label_weights: Any,
    positives: Any,
    threads: int,
) -> tuple[Any, Any, Any, float]: ...
def decide_dense_weighted_topk(
    eta: int,
    rows: int,
    labels: int,
    stride: int,
    a: int,
    b: int,
    k: int,
    threads: int,
    out_labels: int,
    out_gains: int,
) -> None: ...

# knn
class KnnIndex:
    def __init__(self, rows: npt.NDArray[np.float32]) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def search(
        self, queries: npt.NDArray[np.float32], q: int, threads: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...

def recover_labels(
    ids: npt.NDArray[np.int32],
    similarity: npt.NDArray[np.float32],
    n_labels: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int64]]: ...

# spmm
def spmm(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    dense: npt.NDArray[np.float32],
    threads: int,
) -> npt.NDArray[np.float32]: ...
def row_adam(
    weight: npt.NDArray[np.float32],
    mean: npt.NDArray[np.float32],
    square: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    gradient: npt.NDArray[np.float32],
    step: tuple[float, float, float, float, float],
    threads: int,
) -> None: ...

# predict
def build_layout(
    labels: int,
    columns: int,
    blocks: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.generic], npt.NDArray[np.float32]]],
    min_density: float,
    budget_ratio: float,
    threads: int,
) -> tuple[
    int,
    npt.NDArray[np.int32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.int64],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
    npt.NDArray[np.int8],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
    npt.NDArray[np.uint16],
    npt.NDArray[np.int32],
    npt.NDArray[np.uint16],
]: ...
def merge_topk(
    lists: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]],
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int32]]: ...

class PredictLayout:
    def __init__(
        self,
        labels: int,
        columns: int,
        block: int,
        label: npt.NDArray[np.int32],
        parts: npt.NDArray[np.int64],
        entry: npt.NDArray[np.int32],
        cell: npt.NDArray[np.int64],
        weight: npt.NDArray[np.float32],
        heavy: npt.NDArray[np.float32],
        byte: npt.NDArray[np.int8],
        step: npt.NDArray[np.float32],
        error: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
        norm: npt.NDArray[np.float32],
        posting: npt.NDArray[np.uint16],
        out_ptr: npt.NDArray[np.int32],
        outlier: npt.NDArray[np.uint16],
    ) -> None: ...
    def topk(
        self,
        indptr: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int32],
        data: npt.NDArray[np.float32],
        normalize: bool,
        bias: float | None,
        scale: npt.NDArray[np.float32],
        shift: npt.NDArray[np.float32],
        k: int,
        threads: int,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...

# linear
def linear_train(
    x_indptr: npt.NDArray[np.int64],
    x_indices: npt.NDArray[np.int32],
    x_data: npt.NDArray[np.float32],
    n_features: int,
    x_dense: npt.NDArray[np.float32],
    y_indptr: npt.NDArray[np.int64],
    y_indices: npt.NDArray[np.int32],
    cost_positive: npt.NDArray[np.float32],
    cost_negative: npt.NDArray[np.float32],
    warm_indptr: npt.NDArray[np.int64],
    warm_indices: npt.NDArray[np.int32],
    warm_data: npt.NDArray[np.float32],
    batches: npt.NDArray[np.int64],
    solver: int,
    loss: int,
    init: int,
    C: float,
    eps: float,
    max_iterations: int,
    seed: int,
    threshold: float,
    keep_top: int,
    threads: int,
    on_batch: Callable[..., None],
) -> list[dict[str, object]]: ...

# fanin: tensors are addresses, types 0 float32, 1 bfloat16, 2 float16
class FaninLayer:
    def __init__(
        self,
        labels: int,
        features: int,
        fan_in: int,
        group_size: int,
        indices: int,
        index_bits: int,
        weights: int,
        weight_type: int,
        bias: int,
        bias_type: int,
    ) -> None: ...

def fanin_forward(
    layer: FaninLayer,
    x: int,
    x_type: int,
    x_order: int,
    batch: int,
    to: int,
    to_type: int,
    to_order: int,
    threads: int,
) -> None: ...
def fanin_grad_features(
    layer: FaninLayer, g: int, g_type: int, g_order: int, batch: int, gx: int, gx_type: int, threads: int
) -> None: ...
def fanin_grad_weights(
    layer: FaninLayer,
    x: int,
    x_type: int,
    x_order: int,
    g: int,
    g_type: int,
    g_order: int,
    batch: int,
    gw: int,
    gw_type: int,
    gbias: int,
    gbias_type: int,
    threads: int,
) -> None: ...
def fanin_grad_features_sparse(
    layer: FaninLayer,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    gx: int,
    gx_type: int,
    threads: int,
) -> None: ...
def fanin_grad_weights_sparse(
    layer: FaninLayer,
    x: int,
    x_type: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
def fanin_loss(
    layer: FaninLayer,
    x: int,
    x_type: int,
    batch: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    loss: int,
    scale: float,
    gx: int,
    gx_type: int,
    gw: int,
    gw_type: int,
    gbias: int,
    gbias_type: int,
    threads: int,
) -> float: ...
def fanin_topk(
    layer: FaninLayer, x: int, x_type: int, batch: int, k: int, threads: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]: ...
def fanin_rewire(
    layer: FaninLayer,
    strength: npt.NDArray[np.float32],
    threshold: float,
    count: int,
    candidates: npt.NDArray[np.int32],
    seed: int,
    threads: int,
) -> npt.NDArray[np.uint8]: ...
def fanin_random_indices(
    groups: int, features: int, fan_in: int, index_bits: int, seed: int, to: int, threads: int
) -> None: ...

# mach
def mach_table(
    seed: int, repeats: int, n_labels: int, n_buckets: int, threads: int
) -> npt.NDArray[np.uint16]: ...
def bucket_matrix(
    cols: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    seed: int,
    repeat: int,
    n_buckets: int,
    threads: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]: ...
def invert_table(
    table: npt.NDArray[np.uint16], n_buckets: int, threads: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...
def mach_topk(
    p: npt.NDArray[np.float32], table: npt.NDArray[np.uint16], aggregate: int, k: int, threads: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
def mach_topk_candidates(
    p: npt.NDArray[np.float32],
    table: npt.NDArray[np.uint16],
    offsets: npt.NDArray[np.int64],
    by_bucket: npt.NDArray[np.int32],
    aggregate: int,
    m_best: int,
    k: int,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...

# gather
def gather_dot(
    batch: int,
    width: int,
    dims: int,
    labels: int,
    candidates: int,
    h: int,
    table: int,
    scores: int,
    threads: int,
) -> None: ...
def gather_dot_grad_h(
    batch: int,
    width: int,
    dims: int,
    labels: int,
    candidates: int,
    g: int,
    table: int,
    gh: int,
    threads: int,
) -> None: ...
def gather_dot_grad_rows(
    batch: int, width: int, dims: int, labels: int, candidates: int, g: int, h: int, threads: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]: ...
