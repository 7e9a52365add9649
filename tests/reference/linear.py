"""The one-vs-all problem in plain float64 numpy: value, gradient, stopping rule, and its optimum by Newton."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def objective(w, X, s, C=1.0, c=1.0):
    """1/2 |w|^2 + C sum_i c_i max(0, 1 - s_i w.x_i)^2"""
    slack = np.maximum(0, 1 - s * (X @ w))
    return 0.5 * w @ w + C * np.sum(c * slack**2)


def gradient(w, X, s, C=1.0, c=1.0):
    """w - 2 C sum over active rows of c_i s_i (1 - s_i w.x_i) x_i"""
    slack = np.maximum(0, 1 - s * (X @ w))
    return w - 2 * C * (X.T @ (c * s * slack))


def stop_limit(X, s, eps, C=1.0, c=1.0):
    """LIBLINEAR's rule: eps max(min(#pos, #neg), 1) / n |g(0)|"""
    n = len(s)
    positives = np.sum(s > 0)
    g0 = gradient(np.zeros(X.shape[1]), X, s, C, c)
    return eps * max(min(positives, n - positives), 1) / n * np.linalg.norm(g0)


def solve(X, s, C=1.0, c=1.0):
    """The optimum for small dense X: Newton steps on the active set, halved until the value falls."""
    c = np.broadcast_to(c, len(s))
    w = np.zeros(X.shape[1])
    for _ in range(200):
        g = gradient(w, X, s, C, c)
        if np.linalg.norm(g) < 1e-11 * len(s):
            break
        active = s * (X @ w) < 1
        A = X[active]
        H = np.eye(X.shape[1]) + 2 * C * (A.T * c[active]) @ A
        d = -np.linalg.solve(H, g)
        t = 1.0
        while objective(w + t * d, X, s, C, c) > objective(w, X, s, C, c) and t > 1e-10:
            t /= 2
        w = w + t * d
    return w


def prepared_rows(X, normalize=True, bias=1.0):
    """The rows a model is trained on: scaled to length 1, with the bias as last column (float64; sparse or dense)."""
    A = sp.csr_matrix(X, dtype=np.float64)
    if normalize:
        norms = np.sqrt(np.asarray(A.multiply(A).sum(1)).ravel())
        A = sp.diags(1 / np.where(norms > 0, norms, 1)) @ A
    if bias is not None:
        A = sp.hstack([A, np.full((A.shape[0], 1), bias)])
    return A.tocsr() if sp.issparse(X) else A.toarray()
