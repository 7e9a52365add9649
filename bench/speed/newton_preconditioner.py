"""Does a diagonal preconditioner pay in the Newton solver's conjugate gradients?

``python -m bench.speed.newton_preconditioner [--labels 12] [--set eurlex-4k]``

Truncated Newton in plain numpy (LIBLINEAR's stopping rules, exact line search) on labels from head to tail,
with M = I, with LIBLINEAR's M = 0.99 I + 0.01 diag(H) and with M = diag(H): the CG steps of all labels. The
compiled solver keeps its CG vectors per row, which only M = I allows (csrc/linear/newton.h); a preconditioner
would have to save more than half of the steps to pay for four arrays per feature.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, prepared_rows
from bench.sets import load
from bench.speed.bench_linear import signs

MIXES = {"none": 0.0, "liblinear": 0.01, "diagonal": 1.0}


def steepest(f1, f2, z: np.ndarray, q: np.ndarray, s: np.ndarray) -> float:
    """The minimum over t of w.d t + t² d.d / 2 + Σ max(0, 1 - s (z + t q))² by Newton's method."""
    t = 1.0
    for _ in range(20):
        slack = np.maximum(0, 1 - s * (z + t * q))
        inside = slack > 0
        first = f1 + t * f2 - 2 * np.sum(s * q * slack)
        step = first / (f2 + 2 * np.sum(q[inside] ** 2))
        t -= step
        if abs(step) < 1e-3:
            break
    return t


def cg_steps(A: sp.csr_matrix, s: np.ndarray, mix: float, eps: float = 0.01) -> tuple[int, int, float]:
    """Newton steps, CG steps and the objective reached."""
    squares = A.multiply(A).tocsr()
    w, z = np.zeros(A.shape[1]), np.zeros(A.shape[0])
    stop = outer = inner = 0
    for outer in range(100):
        inside = 1 - s * z > 0
        B = A[inside]
        g = w + 2 * (B.T @ (z[inside] - s[inside]))
        if outer == 0:
            stop = eps * max(min(np.sum(s > 0), np.sum(s < 0)), 1) / len(s) * np.linalg.norm(g)
        if np.linalg.norm(g) <= stop:
            break
        M = (1 - mix) + mix * (1 + 2 * np.asarray(squares[inside].sum(axis=0)).ravel())
        d, r = np.zeros_like(g), -g
        y = r / M
        p, rho = y.copy(), r @ y
        tolerance = 0.1 * np.sqrt(g @ (g / M))
        while np.sqrt(rho) > tolerance:
            Hp = p + 2 * (B.T @ (B @ p))
            alpha = rho / (p @ Hp)
            d += alpha * p
            r -= alpha * Hp
            y = r / M
            rho, old = r @ y, rho
            p = y + rho / old * p
            inner += 1
        q = A @ d
        t = steepest(w @ d, d @ d, z, q, s)
        w += t * d
        z += t * q
    return outer, inner, 0.5 * w @ w + np.sum(np.maximum(0, 1 - s * z) ** 2)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--labels", type=int, default=12)
    parser.add_argument("--set", default="eurlex-4k")
    args = parser.parse_args()
    X, Y = load(args.set)
    table = Table(
        "newton_preconditioner", ["set", "bias", "labels", "M", "newton_steps", "cg_steps", "objective"]
    )
    order = np.argsort(-np.asarray(Y.sum(axis=0)).ravel(), kind="stable")
    present = int(np.sum(np.asarray(Y.sum(axis=0)).ravel() > 0))
    sample = order[np.linspace(0, present - 1, args.labels).astype(int)]
    for bias in (None, 1.0):
        A = prepared_rows(X, bias=bias)
        for name, mix in MIXES.items():
            total = np.sum([cg_steps(A, signs(Y, k), mix) for k in sample], axis=0)
            row = {"set": args.set, "bias": str(bias), "labels": len(sample), "M": name}
            table.add(**row, newton_steps=int(total[0]), cg_steps=int(total[1]), objective=float(total[2]))
            print(table.rows[-1], flush=True)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
