"""Label trees: linear classifiers in a shallow tree over the labels, for label sets too large for one-vs-all."""

from xmc_fast.tree._estimator import LabelTree

__all__ = ["LabelTree"]
