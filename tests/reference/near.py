"""The rough scores of nearly exact prediction (csrc/predict/near.h) in plain numpy, number by number."""

from __future__ import annotations

import numpy as np

f4 = np.float32


class Rough:
    """Of the weights W (dense, float32) with places in the opposite order of the layout's ``label``."""

    def __init__(self, W, label, *, bias, density, most_dense):
        self.labels = np.asarray(label)[::-1]
        W = np.asarray(W, f4)[self.labels]
        self.constant = np.zeros(len(W)) if bias is None else np.float64(f4(bias)) * W[:, -1]
        W = W if bias is None else W[:, :-1]
        count = (W > 0).sum(0)
        fullest = np.argsort(-count, kind="stable")[:most_dense]
        self.dense = np.sort(fullest[count[fullest] >= max(1.0, density * len(W))])
        self.is_dense = np.isin(np.arange(W.shape[1]), self.dense)
        largest = np.abs(W).max(0, initial=0)
        self.levels = np.where(self.is_dense, 127, 255)
        self.step = np.maximum(largest / self.levels.astype(f4), f4(1e-30))
        most = max(np.abs(self.constant).max(initial=0), largest.max(initial=0))
        self.unit = np.maximum(f4(most) / f4(8191), f4(1e-30))
        self.bias = np.rint(self.constant / np.float64(self.unit)).astype(np.int64)
        self.q = np.rint(W / self.step).astype(np.int64)
        self.q[:, ~self.is_dense] *= W[:, ~self.is_dense] > 0

    def sums(self, x, normalize):
        """The sums of all places for one row (dense), and what one is worth."""
        squares = sum(float(v) * float(v) for v in x)
        scale = f4(1 / np.sqrt(squares)) if normalize and squares > 0 else f4(1)
        columns = np.flatnonzero(x)
        value = (x[columns].astype(f4) * scale).astype(np.float64)
        one = np.abs(value) * self.step[columns].astype(np.float64)
        dense = self.is_dense[columns]
        unit, shift, finer = np.float64(self.unit), 0, 0
        total = 8192 * unit + (one * self.levels[columns]).sum()
        largest = one[dense].max(initial=0)
        while shift < 15 and (total / unit + 64 * len(columns) > 32767 or largest / unit > 127):
            unit, shift = 2 * unit, shift + 1
        while finer < 7 and largest / unit * 2 ** (finer + 1) <= 127:
            finer += 1
        m = value * self.step[columns].astype(np.float64) / unit
        sums = self.bias >> shift
        for c, v in zip(columns[~dense], m[~dense], strict=True):
            sums = sums + ((self.q[:, c] * int(np.rint(256 * v)) + 128) >> 8)
        for sign in (1, -1):
            m_int = np.rint(sign * m * 2**finer).astype(int)
            own = [(c, v) for c, v, d in zip(columns, m_int, dense, strict=True) if d and v > 0]
            for i in range(0, len(own), 2):
                pair = sum(self.q[:, c] * v for c, v in own[i : i + 2])
                sums = sums + sign * (pair >> finer)
        return sums, unit

    def top(self, x, scores, k, candidates, margin, *, normalize):
        """The k best labels by the exact ``scores`` (one of each label) of the best candidates."""
        sums, unit = self.sums(x, normalize)
        kept = np.lexsort((np.arange(len(sums)), -sums))[: max(candidates, k)]
        best = []
        for place in kept:
            if len(best) == k and f4(unit) * f4(sums[place]) + f4(margin) < best[-1][0]:
                break
            label = self.labels[place]
            best = sorted([*best, (scores[label], label)], key=lambda pair: (-pair[0], pair[1]))[:k]
        return [label for _, label in best]
