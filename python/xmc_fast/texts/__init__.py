"""Texts and tag names in, suggestions out: vectorizer, model, probabilities and names in one estimator."""

from xmc_fast.texts._classifier import TextClassifier
from xmc_fast.texts._evaluation import Evaluation
from xmc_fast.texts._explain import Contribution, Explanation, LabelDescription, PathExplanation
from xmc_fast.texts._labels import Encoded
from xmc_fast.texts._suggestions import Suggestion

__all__ = [
    "Contribution",
    "Encoded",
    "Evaluation",
    "Explanation",
    "LabelDescription",
    "PathExplanation",
    "Suggestion",
    "TextClassifier",
]
