"""Every public function and method with numbers and words out of range: a result, or an error that names the argument.

Good calls are those of the examples in the docstrings, recorded as they run. `test_nothing_public_is_left_out` fails
for a public function that no example calls and that ELSEWHERE does not name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import functools
import inspect
import io
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xmc_fast
from reference.calls import ROWS, TEXTS, TRUTH
from reference.public import methods, things

pytestmark = pytest.mark.filterwarnings("ignore")
SECONDS = 20  # a call that takes more CPU time hangs
INFINITE = float("inf")
VALUES = {
    "int": st.one_of(st.sampled_from([-1, 0]), st.integers(-(2**70), -1)),
    "float": st.one_of(
        st.sampled_from([float("nan"), INFINITE, -INFINITE, -1.0, 0.0]), st.floats(max_value=0.0)
    ),
    "str": st.sampled_from(["no such", ""]),
}
Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]  # method ("" of a function), arguments


class Recorder:
    """The calls of a function, or of the first object of a class, that come from outside of it."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self._of: list[Any] = []
        self._depth = 0

    def wrap(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and (not name or not self._of or self._of[0] is args[0]):
                self._of = self._of or list(args[:1])
                self.calls.append((name, args[bool(name) :], kwargs))
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1

        return call


def recorded(thing: Any) -> list[Calls]:
    """What each example in the docstrings of a function or class does with it."""
    module, found = sys.modules[thing.__module__], []
    for test in doctest.DocTestFinder().find(thing, thing.__name__, module):
        recorder = Recorder()
        with pytest.MonkeyPatch.context() as patch:
            if inspect.isfunction(thing):
                wrapped = recorder.wrap("", thing)
                for place in [m for n, m in sys.modules.items() if n.startswith("xmc_fast") and m]:
                    if vars(place).get(thing.__name__) is thing:
                        patch.setattr(place, thing.__name__, wrapped)
                test.globs[thing.__name__] = wrapped
            else:
                for name, function in methods(thing):
                    if inspect.isfunction(function):
                        patch.setattr(thing, name, recorder.wrap(name, function), raising=False)
            doctest.DocTestRunner(verbose=False).run(test, out=io.StringIO().write)
        if recorder.calls:
            found.append(recorder.calls)
    return found


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """What is within takes at most so many seconds of CPU time."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def parameters(function: Any) -> dict[str, list[str]]:
    """The arguments that are numbers or words, and which: ``{"k": ["int"]}``."""
    kinds = {}
    for p in inspect.signature(function).parameters.values():
        annotation = str(p.annotation)
        if not re.search(r"Path|Sequence|list|tuple|dict|Mapping|Callable|Array|Iterable", annotation):
            kinds[p.name] = re.findall(r"\b(int|float|str)\b", annotation)
    return {name: found for name, found in kinds.items() if found}


def function_of(thing: Any, method: str) -> Any:
    return getattr(thing, method) if method else thing


def again(thing: Any, calls: Calls, at: int, name: str, value: Any) -> None:
    """The same calls, with another value of an argument of one of them."""
    made = []
    for number, (method, args, kwargs) in enumerate(calls):
        function = function_of(thing, method)
        first = [None] if method else []
        bound = inspect.signature(function).bind(*first, *args, **kwargs)
        if number == at:
            bound.arguments[name] = value
        if method == "__init__":
            made = [thing(*bound.args[1:], **bound.kwargs)]
        else:
            function(*made, *bound.args[len(first) :], **bound.kwargs)


# Tensors, layers and networks are tested in test_torch.py, test_train.py and beside; records are what calls return.
THINGS = {
    name: thing
    for name, thing in things().items()
    if not thing.__module__.startswith("xmc_fast.nn")
    and not (
        inspect.isclass(thing) and (dataclasses.is_dataclass(thing) or issubclass(thing, tuple | Exception))
    )
}
# What an error says instead of the argument's name.
INSTEAD = {
    ("SparseModel", "bias"): "columns",  # with one the weights have a column more
    ("data.from_frame", "label"): "column",
    ("data.read", "label"): "column",
    ("data.read_chunks", "label"): "column",
    ("data.read_filter", "n_points"): "point id",
    ("data.read_filter", "n_labels"): "label id",
    ("data.read_libsvm", "n_features"): "feature id",
    ("data.read_libsvm", "n_labels"): "label id",
    ("data.read_text", "n_labels"): "label id",
    ("decide.mix", "other"): "metric",
    ("model.read_predictions", "n_labels"): "label",
    ("metrics.report", "beta"): "macro_fbeta",  # what macro_f1 is called then
}
# More calls than the examples have.
X, Y, ONE = ROWS.copy(), TRUTH.copy(), ("predict_one", (ROWS[0], 2), {})
NAMES = [[f"l{j}" for j in np.flatnonzero(row)] for row in Y]
PREDICTIONS = "0:1 3:0.5\n2:1\n"
MORE: dict[str, Calls] = {
    "SparseModel": [
        ("__init__", (sp.csr_matrix(ROWS[:5]),), {}), ("prune", (0.1,), {}), ("keep_top", (2,), {}), ONE,
        ("prepare", (), {}), ("calibrate", (X, Y), {}), ("build_near_index", (X,), {}),
    ],
    "LabelTree": [("__init__", (), {"max_leaf": 2}), ("fit", (X, Y), {}), ONE, ("calibrate", (X, Y), {})],
    "Mach": [("__init__", (3, 2), {}), ("fit", (X, Y), {}), ONE, ("compress", (), {})],
    "TextClassifier": [
        ("__init__", (), {"min_df": 1}), ("fit", (TEXTS, NAMES), {}), ("evaluate", (TEXTS, NAMES), {}),
        ("encode", (NAMES,), {}), ("explain", (TEXTS[0], "l0"), {}), ("describe_label", ("l0",), {}),
    ],
    "Lexical": [
        ("__init__", (["w1", "w2", "w3", "w4", "w5"],), {}), ("fit", (TEXTS, Y), {}), ("predict_one", (TEXTS[0], 2), {})
    ],
    "model.read_predictions": [("", ("predictions.txt", 5), {})],
    **{
        name: [("__init__", first, {}), ("fit", (X, Y), {}), ONE]
        for name, first in (
            ("OneVsAll", ()), ("Neighbours", (3,)), ("LinearDeclare", (3,)),
            ("Ensemble", ([xmc_fast.Neighbours(3, n_jobs=1)],)),
        )
    },
}  # fmt: skip
# What is tested elsewhere.
PARTS = "parts of a model's folder, which the package writes: test_model.py, test_faults_open.py"
ELSEWHERE = {
    **dict.fromkeys(
        ["model.block_path", "model.read_block", "model.write_block", "model.write_manifest"], PARTS
    ),
    **dict.fromkeys(
        ["SparseModel.write", "SparseModel.set_names_file", "model.top_csr", "OneRow.predict_one"], PARTS
    ),
    "model.predict_file": "k of predict and chunk_bytes of iter_xmc",
    "Mach.fit_stream": "test_mach.py",
    **dict.fromkeys(["FaissIndex.__init__", "FaissIndex.search"], "where faiss is: test_knn.py"),
    **dict.fromkeys(
        [
            "ConnectedEngine.run",
            "ConnectedEngine.predict",
            "Work.name",
            "Work.solve",
            "Work.has",
            "Work.store",
        ],
        "engines: test_engine.py",
    ),
}


@functools.cache
def places(name: str) -> list[tuple[Calls, int, str, str]]:
    """Where a number or a word can be put into the calls of the examples."""
    thing, found = THINGS[name], {}
    for calls in [*recorded(thing), *([MORE[name]] if name in MORE else [])]:
        for at, (method, _, _) in enumerate(calls):
            for argument, kinds in parameters(function_of(thing, method)).items():
                for kind in kinds:
                    found.setdefault((method, argument, kind), (calls, at, argument, kind))
    return list(found.values())


@pytest.fixture(scope="module", autouse=True)
def in_a_folder(tmp_path_factory):
    """Where the examples write."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "predictions.txt").write_text(PREDICTIONS)
    with contextlib.chdir(folder) if sys.version_info >= (3, 11) else contextlib.nullcontext():
        yield


def test_nothing_public_is_left_out():
    missing = []
    for name, thing in THINGS.items():
        called = {(calls[at][0], argument) for calls, at, argument, _ in places(name)}
        functions = [("", thing)] if inspect.isfunction(thing) else methods(thing)
        for method, function in functions:
            full = f"{name}.{method}" if method else name
            if inspect.isfunction(function) and full not in ELSEWHERE:
                missing += [f"{full}({a})" for a in parameters(function) if (method, a) not in called]
    assert missing == []


@pytest.mark.parametrize("name", THINGS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_out_of_range_is_named(name, data):
    if not places(name):
        return
    calls, at, argument, kind = data.draw(st.sampled_from(places(name)))
    value = data.draw(VALUES[kind])
    try:
        with limited(), contextlib.redirect_stdout(io.StringIO()):
            again(THINGS[name], calls, at, argument, value)
    except (ValueError, TypeError) as error:
        said = str(error)
    else:
        said = argument
    named = "|".join(filter(None, [argument, INSTEAD.get((name, argument))]))
    assert re.search(rf"\b({named})\b", said), f"{calls[at][0]}({argument}={value!r}): {said}"
