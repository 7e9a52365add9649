"""DECLARE, written plainly with dense matrices."""

from __future__ import annotations

import numpy as np


def ridge(X, Z, alpha):
    """argmin ‖XW + 1bᵀ - Z‖² + alpha ‖W‖², as (D + 1, c) with b last."""
    A = np.hstack([X, np.ones((len(X), 1))])
    penalty = np.diag([alpha] * X.shape[1] + [0.0])
    return np.linalg.solve(A.T @ A + penalty, A.T @ Z)


def scaled(Y, label_scaling):
    """Rows of Y as they are, or divided by their length or their sum; rows of zeros stay."""
    size = {"none": np.ones(len(Y)), "length": np.linalg.norm(Y, axis=1), "sum": Y.sum(1)}[label_scaling]
    return Y / np.where(size > 0, size, 1)[:, None]


def near(Y, neighbours):
    """Ω as a boolean (n, n): the rows that share most labels (ties by lower row), symmetric, with the diagonal."""
    shared = Y @ Y.T
    omega = np.eye(len(Y), dtype=bool) & (shared > 0)
    for i in range(len(Y)):
        best = np.argsort(-shared[i], kind="stable")[:neighbours]
        omega[i, best[shared[i, best] > 0]] = True
    return omega | omega.T


def neighbour_loss(Y, Z, Z0, omega, penalty):
    """‖P_Ω(YYᵀ - ZZᵀ)‖² + penalty ‖P_Ω̄(Z₀Z₀ᵀ - ZZᵀ)‖²."""
    inside = (Y @ Y.T - Z @ Z.T)[omega]
    outside = (Z0 @ Z0.T - Z @ Z.T)[~omega]
    return (inside**2).sum() + penalty * (outside**2).sum()
