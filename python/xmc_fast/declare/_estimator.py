"""What every DECLARE estimator shares: how labels are compressed and recovered, and its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xmc_fast._folder import (
    MOST_LABELS,
    ModelFormatError,
    count,
    file_in,
    opening,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast._refit import of_one_model
from xmc_fast._validate import to_scipy
from xmc_fast.declare._recovery import LabelRecovery, compress
from xmc_fast.model._tensors import Tensors, read_tensors, write_tensors

_TENSORS = "declare.safetensors"

Self = TypeVar("Self", bound="CompressedLabels")


@dataclass(eq=False, repr=False, kw_only=True)
class CompressedLabels(BaseEstimator):  # type: ignore[misc]
    """Base of the DECLARE estimators; a subclass learns the compressed rows and names its weights."""

    n_components: int = field(default=100, kw_only=False)
    neighbours: int = 25
    similarity: str = "cosine"
    search: str = "exact"
    compression: str = "svd"
    label_scaling: str = "none"
    n_jobs: int | None = None
    random_state: int = 0

    _kind = ""  # of the folder

    def _compress(self, Y: Any) -> npt.NDArray[np.float32]:
        """The compressed rows of Y, from which labels are recovered later."""
        names = ("compression", "label_scaling", "neighbours", "n_jobs", "random_state")
        Z = compress(Y, self.n_components, **{name: getattr(self, name) for name in names})
        self._recover(Z, Y)
        return Z

    def _recover(self, Z: Any, Y: Any) -> None:
        names = ("neighbours", "similarity", "search")
        self.recovery_ = LabelRecovery(Z, Y, **{name: getattr(self, name) for name in names})

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder: settings as JSON, arrays as safetensors."""
        check_is_fitted(self)
        Y = self.recovery_.Y
        stored: Tensors = {"Z": self.recovery_.Z, "Y.indptr": Y.indptr, "Y.indices": Y.indices}
        sizes = {"n_labels": self.n_labels_, "n_features": self.n_features_in_}
        with replace_folder(directory) as folder:
            write_tensors(folder / _TENSORS, self._weights() | stored, {"format": self._kind})
            write_manifest(folder, self._kind, {"params": self._saved_params(), **sizes})

    @classmethod
    @opening
    def load(cls: type[Self], directory: str | os.PathLike[str]) -> Self:
        """Open what `save` wrote (on the CPU)."""
        settings = read_manifest(directory, cls._kind, required=("params", "n_labels"))
        tensors, _ = read_tensors(file_in(Path(directory), _TENSORS), map_file=False, verify=True)
        bad = [name for name, a in tensors.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
        if bad:
            raise ModelFormatError(f"damaged, {bad[0]} must be finite")
        model = cls(**settings["params"])
        model.n_labels_ = count(settings["n_labels"], "n_labels", 0, MOST_LABELS)
        model._restore(tensors)
        if settings.get("n_features", model.n_features_in_) != model.n_features_in_:
            raise ModelFormatError(
                f"damaged, n_features is {settings['n_features']}, the weights have {model.n_features_in_}"
            )
        model._recover(tensors["Z"], _stored_labels(tensors, model.n_labels_))
        return model

    def _saved_params(self) -> dict[str, Any]:
        """The parameters that the folder keeps."""
        return self.get_params()  # type: ignore[no-any-return]

    def _weights(self) -> Tensors:
        """The arrays of the model by name."""
        raise NotImplementedError

    def _restore(self, tensors: Tensors) -> None:
        """Take the weights from the arrays of a folder; sets ``n_features_in_``."""
        raise NotImplementedError


def _stored_labels(tensors: Tensors, n_labels: int) -> sp.csr_matrix:
    """The training labels of a stored model."""
    indptr, indices = tensors["Y.indptr"], tensors["Y.indices"]
    for name, array in (("Y.indptr", indptr), ("Y.indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu" or (name == "Y.indptr" and not len(array)):
            raise ModelFormatError(f"damaged, {name} is {array.dtype} of shape {array.shape}")
    return to_scipy(indptr, indices, np.ones(len(indices), np.bool_), (len(indptr) - 1, n_labels))
