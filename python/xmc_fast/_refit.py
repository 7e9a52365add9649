"""Fitting again while other threads predict: they see the old model or the new one, never half of each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


def at_once(fit: _Method) -> _Method:
    """For a method that trains ``self`` and returns it: it works on a copy, whose attributes are taken over at the end.

    After an error the estimator is what it was before.
    """

    @functools.wraps(fit)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        made = _copy(self)
        fit(made, *args, **options)
        old = self.__dict__.copy()  # nothing is freed, which could run other threads, before all is replaced
        self.__dict__.update(made.__dict__)
        del old
        return self

    return cast(_Method, wrapped)


def of_one_model(predict: _Method) -> _Method:
    """For a method that reads several attributes of ``self``: those of one moment."""

    @functools.wraps(predict)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        return predict(_copy(self), *args, **options)

    return cast(_Method, wrapped)


def _copy(model: Any) -> Any:
    made = object.__new__(type(model))
    made.__dict__.update(model.__dict__)
    return made
