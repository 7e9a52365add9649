"""Weights of other packages: scipy .npz files and LIBLINEAR's text models."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast.model._sparse import SparseModel


def from_npz(path: str | os.PathLike[str], **options: Any) -> SparseModel:
    """A model from a matrix saved by ``scipy.sparse.save_npz``, n_labels x n_columns.

    ``options`` are those of `SparseModel` (bias, normalize, names). To write one:
    ``scipy.sparse.save_npz(path, model.to_csr())``.

    Examples
    --------
    >>> sp.save_npz("weights.npz", sp.csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0]])))
    >>> from_npz("weights.npz").n_labels
    2
    """
    return SparseModel(sp.load_npz(path).tocsr(), **options)


def from_liblinear(path: str | os.PathLike[str]) -> SparseModel:
    """A model from LIBLINEAR's text file of a linear classifier.

    Label l of the result is the class ``label_names[l]``, in the file's order. A two-class file, which holds
    one vector, gives two labels with opposite weights.

    Parameters
    ----------
    path : path
        As written by LIBLINEAR's ``save_model`` or its ``train`` tool.

    Examples
    --------
    >>> head = ["solver_type L2R_L2LOSS_SVC", "nr_class 2", "label 7 9", "nr_feature 2", "bias -1", "w"]
    >>> with open("model.txt", "w") as file:
    ...     print(*head, "0.5 ", "-1 ", sep="\\n", file=file)
    >>> model = from_liblinear("model.txt")
    >>> model.label_names, model.to_csr().toarray()
    (['7', '9'], array([[ 0.5, -1. ], [-0.5,  1. ]], dtype=float32))
    """
    with open(path, encoding="ascii") as file:
        head: dict[str, str] = {}
        for line in file:
            key, _, value = line.strip().partition(" ")
            if key == "w":
                break
            head[key] = value
        else:
            raise ValueError(f"{path}: not a LIBLINEAR model, it has no line 'w'")
        try:
            classes = int(head["nr_class"])
            columns = int(head["nr_feature"])
            bias = float(head["bias"])
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: not a LIBLINEAR classifier, bad or missing {error}") from None
        names = head.get("label", "").split() or [str(i) for i in range(classes)]
        vectors = 1 if classes == 2 and head.get("solver_type") != "MCSVM_CS" else classes
        values = np.array(file.read().split(), np.float32)
    has_bias = bias >= 0
    expected = (columns + has_bias) * vectors
    if len(values) != expected:
        raise ValueError(f"{path}: truncated or damaged, expected {expected} weights, got {len(values)}")
    weights = values.reshape(columns + has_bias, vectors).T
    if vectors == 1:
        weights = np.concatenate([weights, -weights])
    return SparseModel(
        sp.csr_matrix(weights),
        bias=bias if has_bias else None,
        params={"liblinear_solver": head.get("solver_type", "")},
        label_names=names,
    )
