"""Updates of one-vs-all models: new and removed rows and labels, from the old solution (`OneVsAll.update`).

1. The new data: old rows without the removed ones, then the new rows; features and labels grow at their ends.
2. Which labels must be trained: new ones, those whose positives changed, those with a multiplier on a removed
   row. Of the others, for few changed rows, those that are not proven to be near the new minimum
   (`xmc_fast._screen`).
3. These are solved from their old multipliers; the others keep their weights.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._checkpoint import Checkpoint, LabelBlocks, blocks_of, joined_reports
from xmc_fast._problem import check_parameters, problem_of, seed_of, settings_of
from xmc_fast._screen import added_loss
from xmc_fast._state import FitState, state_of
from xmc_fast._validate import aligned, dense_features, features, fingerprint, matrix_of, to_scipy
from xmc_fast._validate import labels as labels_of
from xmc_fast.model import Block, SparseModel

if TYPE_CHECKING:
    from xmc_fast.linear import OneVsAll

# Up to so many changed rows expected inside the margin of a label, labels are screened first.
SCREEN_BELOW = 3.0
# Labels proven to be within 1 + this times tol of the new minimum are left alone: 1.001 at the usual tol.
CERTIFIED = 0.1
# From this share of changed rows on, a fit from nothing costs about as much.
MANY_ROWS = 0.3


@dataclass
class Change:
    """Old and new data of an update. Row i of the new data is old row ``rows[i]``, then come the new rows."""

    X: Any  # new, n' x D'
    Y: sp.csr_matrix  # new, n' x L'
    rows: npt.NDArray[np.int64]  # old rows that stay
    labels: npt.NDArray[np.int64]  # of each new label its old number, or -1
    changed: npt.NDArray[np.bool_]  # labels (new numbers) whose positives among the old rows are not the same
    gained: npt.NDArray[np.bool_]  # labels with positives among the new rows
    removed_rows: npt.NDArray[np.int32]
    removed_labels: int
    relabelled: bool  # whether labels of old rows were given anew

    @property
    def rows_added(self) -> int:
        return int(self.X.shape[0]) - len(self.rows)

    @property
    def only_new_labels(self) -> bool:
        """Whether old rows and old labels are as they were."""
        old = self.labels >= 0
        same_rows = not self.rows_added and not len(self.removed_rows) and not self.removed_labels
        return bool(same_rows and not self.changed[old].any())


def update_labels(
    estimator: OneVsAll,
    X: Any,
    Y: Any,
    old_labels: Any,
    remove_rows: Any,
    remove_labels: Any,
    checkpoint: str | os.PathLike[str] | None,
) -> OneVsAll:
    """See `OneVsAll.update`."""
    state = estimator.state_
    if state is None:
        raise ValueError("update needs the state of the fit: train with fit(..., keep_state=True)")
    change = find_change(state, X, Y, old_labels, remove_rows, remove_labels)
    return apply_change(estimator, state, change, checkpoint)


def apply_change(
    estimator: OneVsAll,
    state: FitState,
    change: Change,
    checkpoint: str | os.PathLike[str] | None,
    *,
    same_rows: bool = True,
) -> OneVsAll:
    """Train what a change requires. ``same_rows``: the old rows have the values they had (else all labels move)."""
    state = replace(state, objective=state.objective.copy(), gap=state.gap.copy())
    settings = settings_of(estimator, seed_of(estimator))
    same_problem = same_rows and {**state.settings} == settings
    old_model = estimator.model_
    if change.only_new_labels and same_problem and change.X.shape[1] == old_model.n_features:
        first = len(state.bias_weight) // int(estimator.block_labels) * int(estimator.block_labels)
        trained = np.arange(first, len(change.labels))
        start = None  # as a fit: the same bytes
    else:
        trained = np.flatnonzero(_touched(estimator, state, change, same_problem))
        start = _start(state, change, trained)
    solved, reports = _solve(estimator, change, trained, start, settings, checkpoint)
    n_columns = change.X.shape[1] + (estimator.bias is not None)
    blocks = _assemble(old_model, change, trained, solved, n_columns, int(estimator.block_labels))
    summary = _summary(old_model, change, trained)
    params = {**settings, "updates": [*old_model.params.get("updates", []), summary]}
    estimator.model_ = SparseModel(blocks, bias=old_model.bias, normalize=old_model.normalize, params=params)
    estimator.n_features_in_, estimator.n_labels_ = change.X.shape[1], len(change.labels)
    estimator.state_ = _new_state(state, change, trained, reports, settings)
    estimator.report_ = _report(getattr(estimator, "report_", None), change, trained, reports)
    estimator.update_ = summary
    return estimator


def find_change(
    state: FitState, X: Any, Y: Any, old_labels: Any, remove_rows: Any, remove_labels: Any
) -> Change:
    """Validate what `OneVsAll.update` is given."""
    if (X is None) != (Y is None):
        raise ValueError("X and Y must be given together")
    n, n_labels = state.Y.shape
    before = state.Y if old_labels is None else matrix_of(labels_of(old_labels, "old_labels", n_rows=n))
    added = sp.csr_matrix((0, state.X.shape[1]), dtype=np.float32) if X is None else X
    if sp.issparse(state.X):
        new_x: Any = matrix_of(features(added))
    else:
        given = matrix_of(features(added)).toarray() if sp.issparse(added) else added
        new_x = dense_features(given, n_features=state.X.shape[1])
    if new_x.shape[1] < state.X.shape[1]:
        raise ValueError(f"X has {new_x.shape[1]} columns, the model has {state.X.shape[1]}")
    new_y = sp.csr_matrix((0, before.shape[1]), dtype=np.float32)
    if Y is not None:
        new_y = matrix_of(labels_of(Y, n_rows=new_x.shape[0]))
    width = max(before.shape[1], new_y.shape[1])
    if width < n_labels or (Y is not None and new_y.shape[1] < n_labels):
        raise ValueError(f"Y has {new_y.shape[1]} labels, the model has {n_labels}")
    rows = _kept("remove_rows", remove_rows, n)
    labels = _kept("remove_labels", remove_labels, width)
    old_y = _wide(state.Y, width)
    before = _wide(before, width)
    changed = np.zeros(width, bool)
    if old_labels is not None:
        changed[(before != old_y).tocsr().indices] = True
    gained = np.zeros(width, bool)
    gained[new_y.indices] = True
    gone = np.setdiff1d(np.arange(n), rows, assume_unique=True)
    changed[old_y[gone].indices] = True
    every = sp.vstack([_taken(before, rows), _wide(new_y, width)], format="csr")
    if len(labels) < width:
        every = every[:, labels]
        every.sort_indices()
    if sp.issparse(state.X):
        X_all: Any = sp.vstack([_wide(_taken(state.X, rows), new_x.shape[1]), new_x], format="csr")
    else:
        X_all = np.vstack([state.X[rows], new_x.reshape(-1, state.X.shape[1])])
    X_all = X_all.astype(np.float32, copy=False)
    return Change(
        X_all,
        every,
        rows.astype(np.int64),
        np.where(labels < n_labels, labels, -1),
        changed[labels],
        gained[labels],
        gone.astype(np.int32),
        width - len(labels),
        old_labels is not None,
    )


def _touched(
    estimator: OneVsAll, state: FitState, change: Change, same_problem: bool
) -> npt.NDArray[np.bool_]:
    """Which labels must be trained."""
    must = change.changed | (change.labels < 0)
    known = np.where(change.labels < 0, 0, change.labels)
    must |= np.isnan(state.bias_weight[known])
    if not same_problem or (estimator.positive_weight is not None and change.X.shape[0] != state.X.shape[0]):
        must[:] = True
    if len(change.removed_rows):
        used = np.diff(state.alpha[:, change.removed_rows].indptr) > 0
        must |= used[known]
    if estimator.positive_weight is not None:  # the cost of a label's positives follows their number
        must |= change.gained
    n_changed = change.rows_added + len(change.removed_rows)
    if must.all() or not n_changed:
        return must
    inside = state.alpha.nnz / max(state.alpha.shape[0], 1) / max(state.X.shape[0], 1)
    if n_changed * inside > SCREEN_BELOW:
        return np.ones(len(must), bool)
    candidates = np.flatnonzero(~must)
    old = change.labels[candidates]
    new = slice(len(change.rows), None)
    added = added_loss(
        estimator, state, old, change.X[new], change.Y[new][:, candidates], change.removed_rows
    )
    fine = state.gap[old] + added <= CERTIFIED * estimator.tol * (state.objective[old] - state.gap[old])
    must[candidates[~fine]] = True
    for bound in (state.objective, state.gap):
        bound[old[fine]] += added[fine]
    return must


def _start(state: FitState, change: Change, trained: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """The multipliers of the labels to train, in the rows of the new data; 0 where a row's label changed."""
    old = change.labels[trained]
    A = _in_new_rows(_taken(state.alpha, old), change)
    if change.relabelled:
        n = np.int64(len(change.rows))
        before = sp.csr_matrix(state.Y[change.rows][:, np.maximum(old, 0)])
        moved = (before != change.Y[:n][:, trained]).tocsc()
        pairs = np.repeat(np.arange(len(trained)), np.diff(moved.indptr)) * n + moved.indices
        rows = np.repeat(np.arange(len(trained)), np.diff(A.indptr))
        A = _entries(A, ~np.isin(rows * n + A.indices, pairs))
    bias = np.where(old >= 0, state.bias_weight[np.maximum(old, 0)], np.nan).astype(np.float32)
    return {
        "alpha_indptr": A.indptr.astype(np.int64),
        "alpha_rows": aligned(A.indices, np.int32),
        "alpha": aligned(A.data, np.float32),
        "bias_weights": bias,
        "old_objective": state.objective[np.maximum(old, 0)],
    }


def _solve(
    estimator: OneVsAll,
    change: Change,
    trained: npt.NDArray[np.int64],
    start: dict[str, npt.NDArray[Any]] | None,
    settings: dict[str, Any],
    checkpoint: str | os.PathLike[str] | None,
) -> tuple[list[Block], list[dict[str, Any]]]:
    """Weights and reports of the labels to train, in blocks."""
    if not len(trained):
        return [], []
    x = features(change.X) if sp.issparse(change.X) else change.X
    if start is None:  # the blocks of a fit
        y, label_range = labels_of(change.Y), (int(trained[0]), int(trained[-1]) + 1)
    else:
        some = change.Y if len(trained) == change.Y.shape[1] else change.Y[:, trained]
        y, label_range = labels_of(some), (0, len(trained))
    check_parameters(estimator)
    seed = seed_of(estimator)
    arrays, options = problem_of(estimator, x, y, label_range, seed)
    options["keep_multipliers"] = estimator._solver() == "dual"
    if start is not None and options["keep_multipliers"]:
        arrays |= start
        options["old_rows"] = len(change.rows)
    store = Checkpoint(
        checkpoint, lambda: {**settings, "update": list(label_range), "data": fingerprint(arrays)}
    )
    work = LabelBlocks(label_range, int(estimator.block_labels), options, store.folder)
    work.key = store.data
    estimator._solve(work, arrays, store, None)
    count = len(blocks_of(*label_range, work.block_size))
    return store.all_blocks(count), store.with_multipliers(count)


def _assemble(
    old: SparseModel,
    change: Change,
    trained: npt.NDArray[np.int64],
    solved: list[Block],
    n_columns: int,
    size: int,
) -> list[Block]:
    """The blocks of the new model. Blocks of which no label was trained or renumbered stay as they are."""
    n_labels = len(change.labels)
    first = int(trained[0]) if len(trained) else n_labels
    same = np.array_equal(change.labels[:first], np.arange(first)) and n_columns == old.n_columns
    kept = [b for b in old.blocks if same and b.first_label + b.n_labels <= first]
    start = sum(b.n_labels for b in kept)
    if start == first and len(trained) == n_labels - first and not start % size:
        place = [start, *(start + np.cumsum([b.n_labels for b in solved])).tolist()]
        return kept + [Block(place[i], n_columns, b.indptr, b.indices, b.data) for i, b in enumerate(solved)]
    new = sp.vstack([b.to_csr() for b in solved], format="csr") if solved else None
    if same and np.array_equal(change.labels, np.arange(old.n_labels)):
        return [_with_rows(b, trained, new) for b in old.blocks]
    W = old.to_csr()
    if n_columns != old.n_columns:  # the bias's weight stays the last
        columns = W.indices.copy()
        if old.bias is not None:
            columns[columns == old.n_columns - 1] = n_columns - 1
        W = to_scipy(W.indptr, columns, W.data, (W.shape[0], n_columns))
    every = _replaced(_taken(W, change.labels), trained, new)[start:]
    cuts = [start + cut for cut in range(0, n_labels - start, size)] + [n_labels]
    return kept + [Block.from_csr(every[a - start : b - start], a) for a, b in itertools.pairwise(cuts)]


def _with_rows(block: Block, trained: npt.NDArray[np.int64], new: Any) -> Block:
    """A block with the labels that were trained."""
    first, last = np.searchsorted(trained, [block.first_label, block.first_label + block.n_labels])
    if first == last:
        return block
    rows = _replaced(block.to_csr(), trained[first:last] - block.first_label, new[first:last])
    return Block(block.first_label, block.n_columns, rows.indptr.astype(np.int64), rows.indices, rows.data)


def _new_state(
    state: FitState,
    change: Change,
    trained: npt.NDArray[np.int64],
    reports: list[dict[str, Any]],
    settings: dict[str, Any],
) -> FitState:
    """The state of the new model; labels that were left alone keep their multipliers."""
    old = np.maximum(change.labels, 0)
    bias, objective, gap = state.bias_weight[old], state.objective[old], state.gap[old]
    if not len(trained):
        alpha = _in_new_rows(_taken(state.alpha, change.labels), change)
        return FitState(change.X, change.Y, alpha, bias, objective, gap, settings)
    new = state_of(change.X, change.Y, reports, settings)
    if len(trained) == len(old):
        return new
    alpha = _replaced(_in_new_rows(_taken(state.alpha, change.labels), change), trained, new.alpha)
    bias[trained], objective[trained], gap[trained] = new.bias_weight, new.objective, new.gap
    return FitState(change.X, change.Y, alpha, bias, objective, gap, settings)


def _summary(old: SparseModel, change: Change, trained: npt.NDArray[np.int64]) -> dict[str, Any]:
    """What an update did, for the history."""
    moved = (change.rows_added + len(change.removed_rows)) / max(len(change.rows), 1)
    out: dict[str, Any] = {
        "rows_added": change.rows_added,
        "rows_removed": len(change.removed_rows),
        "rows": int(change.X.shape[0]),
        "labels_added": int((change.labels < 0).sum()),
        "labels_removed": change.removed_labels,
        "labels": len(change.labels),
        "labels_trained": len(trained),
        "features_added": int(change.X.shape[1]) - old.n_features,
    }
    if moved > MANY_ROWS:
        out["advice"] = f"{moved:.0%} of the rows changed: a fit of all rows costs about as much"
    return out


def _report(
    old: dict[str, Any] | None,
    change: Change,
    trained: npt.NDArray[np.int64],
    reports: list[dict[str, Any]],
) -> dict[str, Any]:
    """The report per label: of this update, else the earlier one's (0 and NaN where that is not known)."""
    n_labels = len(change.labels)
    new = joined_reports(reports) if len(trained) else {}
    names = new or {name: value for name, value in (old or {}).items() if isinstance(value, np.ndarray)}
    out: dict[str, Any] = {}
    for name, values in names.items():
        out[name] = np.full(n_labels, np.nan if values.dtype.kind == "f" else 0, values.dtype)
        if old is not None and name in old:
            known = change.labels >= 0
            out[name][known] = old[name][change.labels[known]]
        if name in new:
            out[name][trained] = new[name]
    return out


def _kept(name: str, removed: Any, count: int) -> npt.NDArray[np.int64]:
    """The numbers below ``count`` that are not removed."""
    given = np.unique(np.asarray([] if removed is None else removed, np.int64).ravel())
    if len(given) and not 0 <= given[0] <= given[-1] < count:
        raise ValueError(f"{name} must be numbers from 0 to {count - 1}, got {given[0]} to {given[-1]}")
    return np.setdiff1d(np.arange(count), given)


def _wide(matrix: Any, columns: int) -> sp.csr_matrix:
    """The same entries in a matrix of more columns."""
    return to_scipy(matrix.indptr, matrix.indices, matrix.data, (matrix.shape[0], columns))


def _taken(matrix: Any, rows: npt.NDArray[np.int64]) -> sp.csr_matrix:
    """Rows of a matrix, an empty one for -1; the matrix itself if these are its rows."""
    count = matrix.shape[0]
    if np.array_equal(rows, np.arange(count)):
        return matrix
    indptr = np.append(matrix.indptr, matrix.indptr[-1])
    more = to_scipy(indptr, matrix.indices, matrix.data, (count + 1, matrix.shape[1]))
    return more[np.where(rows < 0, count, rows)]


def _in_new_rows(alpha: sp.csr_matrix, change: Change) -> sp.csr_matrix:
    """Multipliers (labels x old rows) in the rows of the new data."""
    shape = (alpha.shape[0], change.X.shape[0])
    if not len(change.removed_rows):
        return to_scipy(alpha.indptr, alpha.indices, alpha.data, shape)
    place = np.full(alpha.shape[1], -1, np.int32)
    place[change.rows] = np.arange(len(change.rows))
    moved = to_scipy(alpha.indptr, place[alpha.indices], alpha.data, shape)
    return _entries(moved, moved.indices >= 0)


def _entries(matrix: sp.csr_matrix, keep: npt.NDArray[np.bool_]) -> sp.csr_matrix:
    """Those of its entries that are marked."""
    kept = np.concatenate([[0], np.cumsum(keep)])
    return to_scipy(kept[matrix.indptr], matrix.indices[keep], matrix.data[keep], matrix.shape)


def _replaced(matrix: sp.csr_matrix, places: npt.NDArray[np.int64], rows: Any) -> sp.csr_matrix:
    """The matrix with some rows (ascending) replaced, in one copy."""
    if not len(places):
        return matrix
    size = np.diff(matrix.indptr)
    size[places] = np.diff(rows.indptr)
    cuts = [0, *np.ravel([matrix.indptr[places], matrix.indptr[places + 1]], "F").tolist(), matrix.indptr[-1]]
    ends = rows.indptr.tolist()

    def joined(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
        parts = [old[cuts[0] : cuts[1]]]
        for k in range(len(places)):
            parts += [new[ends[k] : ends[k + 1]], old[cuts[2 * k + 2] : cuts[2 * k + 3]]]
        return np.concatenate(parts)

    indptr = np.concatenate([[0], np.cumsum(size, dtype=np.int64)])
    shape = (matrix.shape[0], matrix.shape[1])
    return to_scipy(indptr, joined(matrix.indices, rows.indices), joined(matrix.data, rows.data), shape)
