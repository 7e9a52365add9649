"""Labels whose names stand in the text."""

from xmc_fast.lexical._estimator import ENDINGS, SPELLINGS, Lexical

__all__ = ["ENDINGS", "SPELLINGS", "Lexical"]
