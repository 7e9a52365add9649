"""What estimators without torch share: one row at a time."""

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
