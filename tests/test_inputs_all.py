"""Every public function and method that takes a matrix or a vector: the same answer in whatever form it comes, and a
ValueError that names it when it is none. `test_nothing_public_is_left_out` fails for one that is not in the table
(reference/calls.py).
"""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference.calls import CALLS, Argument, L
from reference.matrices import BAD, DENSE, FORMS, plain, spoiled, stored, unaligned
from reference.public import public

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
few = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

# ---- what is public

MATRICES = {
    *(
        "X",
        "Y",
        "y",
        "x",
        "Y_true",
        "pred",
        "proba",
        "predictions",
        "Y_observed",
        "Y_controlled",
        "labels",
        "old_labels",
    ),
    *(
        "z",
        "Z",
        "M",
        "P",
        "p",
        "queries",
        "rows",
        "ids",
        "similarity",
        "scores",
        "weights",
        "pairs",
        "start",
        "gains",
    ),
    *("old_labels", "propensity", "counts", "label_counts", "truth", "targets", "table", "features"),
}
# Those that are tested elsewhere, or are none in spite of the name, and why.
TENSORS = "tensors: the layers are tested with their gradients in test_torch.py and beside it"
NAMES = "names or texts, not a matrix: test_texts.py, test_data_read.py"
NUMBER = "a number or an object"
INNER = "what a function of this package has made"
ELSEWHERE = {
    "data.as_labels": "labels as in TextClassifier.fit",
    "data.make_synthetic": NUMBER,
    "data.read_chunks": NUMBER,
    "data.reciprocal_pairs": NAMES,
    "Dataset.__init__": INNER,
    "TextColumn.take": INNER,
    "Statistics.__init__": INNER,
    "Report.__init__": INNER,
    "model.top_csr": INNER,
    "model.is_relevant": INNER,
    "model.write_block": "weights as in Block.from_csr",
    "TextClassifier.nearest_examples": NAMES,
    "TextClassifier.evaluate": "labels as in TextClassifier.fit",
    "TextClassifier.encode": "labels as in TextClassifier.fit",
    "TextClassifier.update": "labels as in TextClassifier.fit",
    "TextClassifier.__init__": NUMBER,
    "LightXML.fit": "labels as in SparseClassifier.fit: test_lightxml.py",
    "LightXMLEnsemble.fit": "labels as in LightXML.fit",
    "FaissIndex.__init__": "as InnerProductIndex, where faiss is: test_knn.py",
    "FaissIndex.search": "as InnerProductIndex, where faiss is: test_knn.py",
    "planner.plan": NUMBER,
    "ConnectedEngine.predict": "as engine.predict",
    "OneRow.predict_one": "as predict_one of the estimators that have it from there",
    "CsrBatches.__init__": "as nn.csr_batches",
    "CsrBatches.fetch": INNER,
    **dict.fromkeys(
        [
            "LabelLoss.forward",
            "ShardedFanInLinear.forward",
            "ShardedFanInLinear.loss",
            "nn.mined_squared_hinge",
            "nn.sparse_bce",
            "nn.sparse_squared_hinge",
        ],
        TENSORS,
    ),
    **dict.fromkeys(["LightXML.predict_one", "TfidfVectorizer.fit", "TfidfVectorizer.fit_transform"], NAMES),
}


NO_MATRIX = re.compile(r"bool|Tensor|LabelSet|^(int|str|float|tuple|Mapping|Sequence)")  # by its annotation


def test_nothing_public_is_left_out():
    """Also that the table names nothing that is not there."""
    tested = {(name.partition("(")[0], argument) for name, (_, given) in CALLS.items() for argument in given}
    missing = []
    everything = public()
    for name, function in everything.items():
        for parameter in inspect.signature(function).parameters.values():
            matrix = parameter.name in MATRICES and not NO_MATRIX.search(str(parameter.annotation))
            if matrix and name not in ELSEWHERE and (name, parameter.name) not in tested:
                missing.append(f"{name}({parameter.name}: {parameter.annotation})")
    assert missing == []
    assert {name for name, _ in tested} <= set(everything)


# ---- the forms and the sizes

DENSE_FORMS = ("fortran", "unaligned dense", "float64 dense", "readonly dense", "strided")
FORMS_OF = {
    "features": (*FORMS, "halves"),
    "labels": (*FORMS, "zeros", "twice", "int8", "bool"),
    "vector": ("list", "readonly dense", "unaligned dense", "strided", "float64 dense"),
    "dense": DENSE_FORMS,
    "tensor": ("unaligned dense", "float64 dense", "readonly dense"),
    "integers": ("fortran", "unaligned dense", "readonly dense", "list"),
    "csr": (
        "csr",
        "unsorted",
        "stale",
        "room",
        "int64",
        "uint32",
        "uint64",
        "int16",
        "readonly",
        "unaligned",
    ),
}
SPARSE = ("features", "labels", "scores", "csr")


def in_form(good: np.ndarray, how: str, rng: np.random.Generator) -> Any:
    """As `stored`, also for vectors and dense matrices."""
    if how == "list":
        return good.tolist()
    if how == "strided":
        return np.repeat(good, 2, axis=-1)[..., ::2]
    if how == "fortran" or (
        good.ndim == 2 and how not in ("unaligned dense", "float64 dense", "readonly dense")
    ):
        return stored(good, how, rng)
    made = good.astype(np.float64) if how == "float64 dense" else good.copy()
    made = unaligned(made) if how == "unaligned dense" else made
    made.flags.writeable = how != "readonly dense"
    return made


def clean(given: dict[str, Argument], dense: str = "") -> dict[str, Any]:
    """The good arguments; sparse where that is possible, but for one."""
    return {
        name: sp.csr_matrix(a.good) if a.kind in SPARSE and name != dense else a.good.copy()
        for name, a in given.items()
    }


def bad_ones(a: Argument) -> dict[str, Any]:
    """Values that are none of this kind."""
    good = a.good
    if a.kind in SPARSE:
        dense = (
            ("csc index", "bsr index", "coo index", "text", "complex", "three dimensions")
            if a.kind == "csr"
            else ()
        )
        found = {how: spoiled(good, how) for how in BAD if how not in dense}
        if a.kind in ("scores", "csr"):  # metrics rank what is not finite
            found = {how: matrix for how, matrix in found.items() if how not in ("nan", "inf")}
        for value in (2, -1, 0.5, 300, np.nan) if a.kind == "labels" else ():
            found[f"label {value}"] = np.where(np.arange(good.size).reshape(good.shape) == 0, value, good)
        return found
    if a.kind == "integers":
        values = {str(v): np.where(good == good.max(), v, good) for v in (2**32, 2**16, 99, -2)}
        return {**values, "floats": good + 0.5}
    values = {str(v): np.where(good == good.max(), v, good.astype(float)) for v in (np.nan, np.inf)}
    return {
        **values,
        "text": np.full(good.shape, "x"),
        "complex": good + 0j,
        "one dimension more": good[None],
    }


ARGUMENTS = [(name, argument) for name, (_, given) in CALLS.items() for argument in given]
every_argument = pytest.mark.parametrize(
    ("name", "argument"), ARGUMENTS, ids=[f"{n}({a})" for n, a in ARGUMENTS]
)
NAMED = {"mach.aggregate_topk": r"\bp\b|table|models' outputs"}  # in errors, beside the argument's name


@every_argument
@few
@given(data=st.data())
def test_the_form_does_not_matter(name, argument, data):
    call, given = CALLS[name]
    a = given[argument]
    how = data.draw(st.sampled_from(FORMS_OF.get(a.kind, FORMS)))
    plainly = call(**clean(given, argument if how in DENSE else ""))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    other = call(**clean(given) | {argument: in_form(a.good, how, rng)})
    assert repr(plain(other)) == repr(plain(plainly))


@every_argument
@few
@given(data=st.data())
def test_what_is_none_is_named(name, argument, data):
    call, given = CALLS[name]
    bad = bad_ones(given[argument])
    how = data.draw(st.sampled_from(sorted(bad)))
    with pytest.raises(ValueError, match=rf"\b{argument}\b|" + NAMED.get(name, rf"\b{argument}\b")):
        call(**clean(given) | {argument: bad[how]})


@pytest.mark.parametrize("name", CALLS)
def test_sizes(name):
    """Without rows, columns or labels: a result or a ValueError; with another size than the others: a ValueError."""
    call, given = CALLS[name]
    for axis in sorted({axis for a in given.values() for axis in a.axes}):
        sizes = {n: a.good.take(range(0), a.axes.index(axis)) for n, a in given.items() if axis in a.axes}
        with contextlib.suppress(ValueError):
            call(
                **clean(given)
                | {n: sp.csr_matrix(v) if given[n].kind in SPARSE else v for n, v in sizes.items()}
            )
        for n in sizes if len(sizes) > 1 else ():
            fewer = given[n].good.take(range(1), given[n].axes.index(axis))
            with pytest.raises(ValueError):  # noqa: PT011 - each function says it in its words
                call(**clean(given) | {n: sp.csr_matrix(fewer) if given[n].kind in SPARSE else fewer})


@pytest.mark.parametrize(
    "name", [n for n, (call, _) in CALLS.items() if "k" in inspect.signature(call).parameters]
)
@pytest.mark.parametrize("k", [0, -1, L + 1, 10**12])
def test_k(name, k):
    """As many as there are, or a ValueError that names it."""
    call, given = CALLS[name]
    try:
        top = call(**clean(given), k=k)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
    assert not message or re.search(r"\bk\b", message)
    if not message and sp.issparse(top):
        assert np.diff(top.indptr).max() <= min(max(k, 0), L)
