"""One-vs-all objectives in plain float64 numpy, one label at a time, dense."""

from __future__ import annotations

import numpy as np


def losses(kind, s, z):
    """Value, first and second derivative (in z) of the loss of each row."""
    if kind == "squared_hinge":
        slack = np.maximum(0, 1 - s * z)
        return slack**2, -2 * s * slack, 2.0 * (slack > 0)
    p = 1 / (1 + np.exp(s * z))
    return np.logaddexp(0, -s * z), -s * p, p * (1 - p)


def costs(s, C, positive=1.0, negative=1.0):
    return C * np.where(s > 0, positive, negative)


def objective(kind, w, X, s, c):
    return 0.5 * w @ w + c @ losses(kind, s, X @ w)[0]


def gradient(kind, w, X, s, c):
    return w + X.T @ (c * losses(kind, s, X @ w)[1])


def stopping_norm(kind, X, s, c, eps):
    """LIBLINEAR's rule: stop at |g(w)| <= eps max(min(#pos, #neg), 1) / n |g(0)|."""
    pos = (s > 0).sum()
    g0 = gradient(kind, np.zeros(X.shape[1]), X, s, c)
    return eps * max(min(pos, len(s) - pos), 1) / len(s) * np.linalg.norm(g0)


def solve(kind, X, s, c, iterations=100):
    """The optimum: Newton with exact Hessians and step halving."""
    w = np.zeros(X.shape[1])
    for _ in range(iterations):
        g = gradient(kind, w, X, s, c)
        if np.linalg.norm(g) <= 1e-10 * (1 + np.linalg.norm(w)):
            break
        H = np.eye(len(w)) + X.T @ (X * (c * losses(kind, s, X @ w)[2])[:, None])
        d = -np.linalg.solve(H, g)
        t, f = 1.0, objective(kind, w, X, s, c)
        while t > 1e-10 and objective(kind, w + t * d, X, s, c) > f + 1e-4 * t * (g @ d):
            t /= 2
        w = w + t * d
    return w


def mean_start(X, s):
    """w = u p + v m with w.p = 1, w.q = -2; p, q, m the means of the positives, the negatives, all rows."""
    p, q, m = X[s > 0].mean(0), X[s < 0].mean(0), X.mean(0)
    u, v = np.linalg.solve([[p @ p, m @ p], [p @ q, m @ q]], [1, -2])
    return u * p + v * m


def multi_positive_start(X, s, ridge=1e-3):
    """Every positive at +1, the mean negative at -2, by the regularised Gram system."""
    B = np.vstack([X[s > 0], X[s < 0].mean(0)])
    K = B @ B.T
    K += ridge * np.trace(K) / len(K) * np.eye(len(K))
    return np.linalg.solve(K, np.r_[np.ones(len(K) - 1), -2]) @ B
