"""Metrics at k, one row and one label at a time, as the definitions read."""

from __future__ import annotations

import numpy as np


def ratio(a, b):
    return a / b if b > 0 else 0.0


def top_k(scores, stored=None):
    """Ids by score descending, then id ascending, NaN last; of the stored entries if given."""
    ids = np.arange(len(scores)) if stored is None else np.asarray(stored)
    return sorted(ids.tolist(), key=lambda j: (np.isnan(scores[j]), -np.nan_to_num(scores[j], nan=0.0), j))


def instance(y_sets, lists, k, q=None, n_labels=None, rows=None):
    """Means over rows of all instance-wise metrics. y_sets: set of true ids per row; lists: ranked ids."""
    n = len(y_sets) if rows is None else rows
    out = dict.fromkeys(["precision", "recall", "ndcg", "hamming_loss", "subset_zero_one_loss"], 0.0)
    out["abandonment"] = psp = psp_best = psndcg = psndcg_best = 0.0
    gain = [1 / np.log2(j + 2) for j in range(k)]
    for y, ranked in zip(y_sets, lists, strict=True):
        head = list(ranked[:k])
        hit = [j in y for j in head]
        ideal = sum(gain[: min(k, len(y))])
        out["precision"] += sum(hit) / k
        out["recall"] += ratio(sum(hit), len(y))
        out["ndcg"] += ratio(sum(g for g, h in zip(gain, hit, strict=False) if h), ideal)
        out["subset_zero_one_loss"] += set(head) != set(y)
        out["abandonment"] += not any(hit)
        if n_labels:
            out["hamming_loss"] += len(set(head) ^ set(y)) / n_labels
        if q is not None:
            best = sorted((q[j] for j in y), reverse=True)[:k]
            psp += sum(q[j] for j, h in zip(head, hit, strict=True) if h) / k
            psp_best += sum(best) / k
            psndcg += ratio(sum(q[j] * g for j, g, h in zip(head, gain, hit, strict=False) if h), ideal)
            psndcg_best += ratio(sum(b * g for b, g in zip(best, gain, strict=False)), ideal)
    out = {name: ratio(float(value), n) for name, value in out.items()}
    hits = [len(set(ranked[:k]) & set(y)) for y, ranked in zip(y_sets, lists, strict=True)]
    sizes = [(len(ranked[:k]), len(y)) for y, ranked in zip(y_sets, lists, strict=True)]
    predicted, positives = (sum(size[i] for size in sizes) for i in (0, 1))
    out["micro_precision"], out["micro_recall"] = ratio(sum(hits), predicted), ratio(sum(hits), positives)
    out["micro_f1"] = ratio(2 * sum(hits), predicted + positives)
    out["sample_precision"] = ratio(sum(ratio(h, m) for h, (m, _) in zip(hits, sizes, strict=True)), n)
    out["sample_f1"] = ratio(sum(ratio(2 * h, m + y) for h, (m, y) in zip(hits, sizes, strict=True)), n)
    if q is not None:
        out |= {"psp": ratio(psp, psp_best), "psp_unnormalized": ratio(psp, n)}
        out |= {"psndcg": ratio(psndcg, psndcg_best), "psndcg_unnormalized": ratio(psndcg, n)}
    return out


def counts(y_sets, lists, k, n_labels):
    tp, predicted, positives = np.zeros((3, n_labels))
    for y, ranked in zip(y_sets, lists, strict=True):
        for j in ranked[:k]:
            predicted[j] += 1
            tp[j] += j in y
        for j in y:
            positives[j] += 1
    return tp, predicted, positives


def macro(y_sets, lists, k, n_labels, beta=1.0, labels=None):
    """Means over labels (all, or the given ones) of the metrics of their confusion matrices."""
    n = len(y_sets)
    rows = []
    tps, predicted, positives = counts(y_sets, lists, k, n_labels)
    chosen = range(n_labels) if labels is None else labels
    for j in chosen:
        tp, q, p = tps[j], predicted[j], positives[j]
        tn, fp = n - q - p + tp, q - tp
        tpr, tnr = ratio(tp, p), ratio(tn, tn + fp)
        rows.append(
            {
                "macro_precision": ratio(tp, q),
                "macro_recall": tpr,
                "macro_fbeta": ratio((1 + beta**2) * tp, beta**2 * p + q),
                "coverage": float(tp > 0),
                "macro_balanced_accuracy": (tpr + tnr) / 2,
                "macro_gmean": np.sqrt(tpr * tnr),
                "macro_jaccard": ratio(tp, p + q - tp),
            }
        )
    names = ["macro_precision", "macro_recall", "macro_fbeta", "coverage"]
    names += ["macro_balanced_accuracy", "macro_gmean", "macro_jaccard"]
    return {name: float(np.mean([r[name] for r in rows])) if rows else 0.0 for name in names}


def precision_recall_f1(Y, P, average):
    """Of binary matrices: from counts summed over all entries ("micro"), per label ("macro") or per row."""
    axis = {"micro": None, "macro": 0, "sample": 1}[average]
    tp, predicted, positives = ((M.astype(float)).sum(axis=axis) for M in (Y & P, P, Y))
    tp, predicted, positives = np.atleast_1d(tp), np.atleast_1d(predicted), np.atleast_1d(positives)
    precision = [ratio(a, b) for a, b in zip(tp, predicted, strict=True)]
    recall = [ratio(a, b) for a, b in zip(tp, positives, strict=True)]
    f1 = [ratio(2 * a, b + c) for a, b, c in zip(tp, predicted, positives, strict=True)]
    return float(np.mean(precision)), float(np.mean(recall)), float(np.mean(f1))


def ranking(Y, scores):
    """Coverage error and ranking loss, all pairs compared; labels without a score (NaN) share the last place."""
    coverage, loss = [], []
    for y, s in zip(np.asarray(Y, bool), np.where(np.isnan(scores), -np.inf, scores), strict=True):
        coverage.append(max((int((s >= s[j]).sum()) for j in np.flatnonzero(y)), default=0))
        wrong = sum(s[f] >= s[t] for t in np.flatnonzero(y) for f in np.flatnonzero(~y))
        loss.append(ratio(wrong, y.sum() * (~y).sum()))
    return float(np.mean(coverage)), float(np.mean(loss))
