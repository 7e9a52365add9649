"""scikit-learn's own estimator checks on OneVsAll."""

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks

from xmc_fast import OneVsAll


def label_matrix(y):
    """The checks' targets (classes, numbers) as the 0/1 label matrix that multi-label data has."""
    y = np.asarray(y)
    if y.dtype.kind not in "biuf" or not np.all(np.isfinite(y.astype(float))):
        return y
    return (y[:, None] == np.unique(y)).astype(np.int8) if y.ndim == 1 else (y > np.median(y)).astype(np.int8)


class Binarised(OneVsAll):
    def fit(self, X, y=None):
        return super().fit(X, y if y is None else label_matrix(y))

    def score(self, X, y):
        return super().score(X, label_matrix(y))


LISTS = "predict gives the k best labels as scores, CSR (n, L), not one target per row"
WORDS = "the error is raised, in our words (name, expected, got)"
EXPECTED = {
    "check_estimator_sparse_array": LISTS,
    "check_estimator_sparse_matrix": LISTS,
    "check_n_features_in_after_fitting": WORDS,
    "check_fit2d_predict1d": WORDS,
    "check_estimators_nan_inf": WORDS,
    "check_complex_data": WORDS,
    "check_dtype_object": "arrays of Python objects are refused, even when they hold numbers",
    "check_estimators_empty_data_messages": "no rows and no features are allowed: the model is then constant",
}


@parametrize_with_checks([Binarised(n_jobs=1)], expected_failed_checks=lambda estimator: EXPECTED)
def test_estimator_checks(estimator, check):
    check(estimator)
