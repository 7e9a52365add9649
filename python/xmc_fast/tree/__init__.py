"""Label trees: one-vs-all in a shallow tree of label clusters, for hundreds of thousands of labels."""

from xmc_fast.tree._estimator import LabelTree
from xmc_fast.tree._explain import PathStep

__all__ = ["LabelTree", "PathStep"]
