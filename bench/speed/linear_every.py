"""Every label of EURLex-4K against the optimum and LIBLINEAR: part `every` of bench_linear.py.

Checks per label, on the weights before pruning (prune=0), default bias, all in float64:

- An upper bound of f(w) / min f that needs no peer. From a fit at eps 1e-4 (auto solver), w': the l2 problems
  are 1-strongly convex, so min f >= f(w') - |g(w')|² / 2 and |w' - w*| <= |g(w')|; for l1 the dual point
  a_i = 2C max(0, 1 - s_i w'·x_i), scaled until |Σ a_i s_i x_ij| <= 1 for every j, bounds min f.
  LIBLINEAR's objective is at least min f: what holds against min f holds against any solver.
- LIBLINEAR itself with the same stopping rule, on labels from head to tail (`peer_labels`) and on every label
  whose bound alone proves neither f <= 1.001 min f nor (at eps 1e-4) a distance of at most 1e-3 |w|:
  our objective over its objective, and the distance of the weights over their length. LIBLINEAR's weights also
  stop short of the minimum: `peer_apart` is their distance bound, |g| / |w|, where they are the furthest from
  ours.
"""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import norm

from bench.common import CACHE, Table, prepared_rows
from xmc_fast import OneVsAll
from xmc_fast._files import atomic_path

CHUNK = 128
CLOSE = 1e-4
# name -> our options, LIBLINEAR's solver, eps, all labels or a sample
CASES = {
    "hinge": ({}, 2, 1e-2, True),
    "hinge_tight": ({}, 2, CLOSE, True),
    "newton": ({"solver": "newton"}, 2, 1e-2, True),
    "logistic": ({"loss": "logistic"}, 0, 1e-2, False),
    "logistic_dual": ({"loss": "logistic"}, 7, 1e-2, False),
    "l1": ({"penalty": "l1"}, 5, 1e-2, False),
}
SAMPLE = 512


def objective_and_bound(
    A: sp.csr_matrix, S: np.ndarray, W: np.ndarray, loss: str, penalty: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per label (columns of W, D x m): f(w), an upper bound of f(w) - min f, and |g(w)| (nan with l1)."""
    Z = S * (A @ W)
    if loss == "logistic":
        value, slope = np.logaddexp(0, -Z).sum(axis=0), -S / (1 + np.exp(Z))
    else:
        slack = np.maximum(0, 1 - Z)
        value, slope = (slack**2).sum(axis=0), -2 * S * slack
    g = A.T @ slope
    if penalty == "l1":
        value = value + np.abs(W).sum(axis=0)
        alpha = -S * slope / np.maximum(1, np.abs(g).max(axis=0))
        return value, value - (alpha - alpha**2 / 4).sum(axis=0), np.full(W.shape[1], np.nan)
    g += W
    norm2 = (g**2).sum(axis=0)
    return value + 0.5 * (W**2).sum(axis=0), norm2 / 2, np.sqrt(norm2)


def liblinear(A: sp.csr_matrix, Y: sp.csc_matrix, labels: np.ndarray, solver: int, eps: float) -> np.ndarray:
    """LIBLINEAR's weights of some labels, D x m, kept per label in XMC_CACHE: a stopped run goes on there."""
    from liblinear import liblinearutil as peer

    folder = CACHE / f"liblinear_s{solver}_e{eps:g}_{hashlib.blake2b(A.data, digest_size=4).hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    problem = peer.problem(np.ones(A.shape[0]), A)
    W = np.empty((A.shape[1], len(labels)))
    for k, label in enumerate(labels):
        s = np.ascontiguousarray(signs(Y, label, label + 1)[:, 0])
        path = folder / f"{hashlib.blake2b(np.packbits(s > 0), digest_size=8).hexdigest()}.npy"
        if path.exists():
            W[:, k] = np.load(path)
            continue
        ctypes.memmove(problem.y, s.ctypes.data, s.nbytes)
        model = peer.train(problem, f"-s {solver} -c 1 -e {eps} -q")
        W[:, k] = np.array(model.w[: A.shape[1]]) * (1 if model.label[0] == 1 else -1)
        with atomic_path(path) as new, open(new, "wb") as file:
            np.save(file, W[:, k])
    return W


def signs(Y: sp.csc_matrix, first: int, last: int) -> np.ndarray:
    return np.where(Y[:, first:last].toarray() > 0, 1.0, -1.0)


def from_head_to_tail(Y: sp.csc_matrix, count: int) -> np.ndarray:
    order = np.argsort(-np.diff(Y.indptr), kind="stable")
    return order[np.unique(np.linspace(0, len(order) - 1, count).astype(int))]


def fitted(A: sp.csr_matrix, X: sp.csr_matrix, Y: sp.csc_matrix, eps: float, options: dict) -> tuple:
    """The weights (D x L, sparse) at a tolerance, their objectives, lower bounds of min f, distance bounds."""
    W = OneVsAll(prune=0, tol=eps, **options).fit(X, Y).model_.to_csr().T.tocsc()
    value, low, slope = [], [], []
    for first in range(0, Y.shape[1], CHUNK):
        last = min(first + CHUNK, Y.shape[1])
        f, gap, g = objective_and_bound(
            A, signs(Y, first, last), W[:, first:last].toarray(), **terms(options)
        )
        value.append(f)
        low.append(f - gap)
        slope.append(g)
    return W, np.concatenate(value), np.concatenate(low), np.concatenate(slope)


def terms(options: dict) -> dict[str, str]:
    return {"loss": options.get("loss", "squared_hinge"), "penalty": options.get("penalty", "l2")}


def check(
    case: str,
    A: sp.csr_matrix,
    X: sp.csr_matrix,
    Y: sp.csc_matrix,
    peer_labels: int,
    sample: int,
    fits: dict[str, tuple],
) -> dict:
    """One row of the table. `fits` keeps the close fits of a problem for its other cases."""
    options, solver, eps, whole = CASES[case]
    if not whole:
        Y = Y[:, from_head_to_tail(Y, min(sample, Y.shape[1]))]
    problem = {k: v for k, v in options.items() if k != "solver"}
    key = f"{problem} {whole}"
    if key not in fits:
        fits[key] = fitted(A, X, Y, CLOSE, problem)
    close = fits[key]
    W, value = close[:2] if eps == CLOSE else fitted(A, X, Y, eps, options)[:2]
    over = value / close[2]
    size = norm(close[0], axis=0)
    distance = (norm(W - close[0], axis=0) + close[3]) / (size - close[3])
    unproven = over > 1.001 if eps > CLOSE else distance > 1e-3
    chosen = np.union1d(from_head_to_tail(Y, min(peer_labels, Y.shape[1])), np.flatnonzero(unproven)[:500])
    P = liblinear(A, Y, chosen, solver, eps)
    S = np.hstack([signs(Y, k, k + 1) for k in chosen])
    f, _, slope = objective_and_bound(A, S, P, **terms(options))
    apart = np.linalg.norm(W[:, chosen].toarray() - P, axis=0) / np.linalg.norm(P, axis=0)
    row = {
        "case": case,
        "liblinear": f"-s {solver}",
        "eps": eps,
        "labels": Y.shape[1],
        "worst_over_minimum": float(over.max()),
        "unproven": int(unproven.sum()),
        "peer_labels": len(chosen),
        "worst_over_peer": float((value[chosen] / f).max()),
        "summed_over_peer": float(value[chosen].sum() / f.sum()),
        "worst_apart": float(apart.max()),
    }
    if options.get("penalty") != "l1":
        row["worst_distance"] = float(distance.max())
        row["peer_apart"] = float((slope / np.linalg.norm(P, axis=0))[apart.argmax()])
    return row


def every(
    X: sp.csr_matrix, Y: sp.csr_matrix, cases: list[str] | None, peer_labels: int, sample: int = SAMPLE
) -> Table:
    columns = ["case", "liblinear", "eps", "labels", "worst_over_minimum", "worst_distance", "unproven"]
    columns += ["peer_labels", "worst_over_peer", "summed_over_peer", "worst_apart", "peer_apart"]
    table = Table("linear_every", columns)
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    Y = Y.tocsc()[:, present]
    A = prepared_rows(X)
    fits: dict[str, tuple] = {}
    for case in cases or CASES:
        table.add(**check(case, A, X, Y, peer_labels, sample, fits))
        print(table.rows[-1], flush=True)
    table.keep_others("case")
    table.rows.sort(key=lambda row: list(CASES).index(row["case"]))
    return table
