"""What estimators share: one row or text at a time, and what they tell scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from xmc_fast._validate import to_scipy
from xmc_fast.model._predict import one_row


class OneRow:
    """Gives an estimator with ``predict`` and ``n_features_in_`` its ``predict_one``."""

    def predict_one(
        self: Any, x: Any, k: int = 5, **options: Any
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one row and their scores.

        ``x`` is a pair (columns ascending, values), a 1 x n_features matrix or an array of n_features;
        ``options`` are those of `predict`.
        """
        check_is_fitted(self, "n_features_in_")
        top = self.predict(to_scipy(*one_row(x, self.n_features_in_)), k, **options)
        return top.indices, top.data


class OneText:
    """Gives a model of texts with ``predict`` its ``predict_one``."""

    def predict_one(
        self: Any, text: str, k: int = 5, **options: Any
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one text and their scores; ``options`` are those of `predict`."""
        top = self.predict([text], k, **options)
        return top.indices, top.data


class SparseMultilabel:
    """Tells scikit-learn that X may be sparse, and that Y is needed and has a column for each label."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.two_d_labels = True
        return tags
