"""Data files, read and written: formats, compression, what is refused, real ones."""

from __future__ import annotations

import gzip
import lzma
import re

import numpy as np
import pytest
import scipy.sparse as sp

from test_data import same
from xmc_fast import data
from xmc_fast.data import _io


def write(path, text):
    """Write bytes compressed as the name says."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(text)
    return path


ENDINGS = pytest.mark.parametrize("ending", ["", ".gz", ".xz"])


@ENDINGS
def test_read_xmc(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(_io, "BLOCK", 7)  # many pieces
    path = write(tmp_path / f"a.txt{ending}", b"4 4 3\r\n2,0 3:1 0:0.5\r\n 1:2.25\n\n1\n \n\n")
    X, Y = data.read_xmc(path)
    assert X.dtype == Y.dtype == np.float32
    assert X.toarray().tolist() == [[0.5, 0, 0, 1], [0, 2.25, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert Y.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert X.has_canonical_format


@ENDINGS
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", ":1:1: the file is empty"),
        (b"\n0 1:1\n", ":1:1: header of 3 counts (points features labels) expected, got 0: ''"),
        (b"1 2\n0 1:1\n", ":1:1: header of 3 counts (points features labels) expected, got 2: '1 2'"),
        (b"1 2 3 4\n0 1:1\n", ":1:7: header of 3 counts (points features labels) expected, got '4' after"),
        (b"1 -2 3\n0 1:1\n", ":1:3: header of 3 counts (points features labels) expected, got '-2'"),
        (b"0,1 1:1\n0 1:1\n", ":1:1: header of 3 counts (points features labels) expected, got '0,1'"),
        (b"1 3000000000 3\n0 1:1\n", ":1:3: at most 2147483647 features are supported, got '3000000000'"),
        (b"2 2 2\n0 1:1\n", ":3:1: truncated: the header says 2 points, the file has 1"),
        (b"2 2 2\n", ":2:1: truncated: the header says 2 points, the file has 0"),
        (b"2 2 2", ":2:1: truncated: the header says 2 points, the file has 0"),
        (b"9999999999999 2 2\n0 1:1\n", ":3:1: truncated"),
        (b"2 2 2\n0 1:1\n0 1:1\n\n1 1:1\n", ":5:1: more points than the 2 of the header, got '1 1:1'"),
        (b"2 2 2\n0 1:1\n0 2:1\n\n1 1:1\n", ":3:3: feature id out of range, expected 0..1, got '2:1'"),
        (b"3 2 2\n0 1:1\n\n0 1:1 x\n", ":4:7: feature:value expected, got 'x'"),
        (b"1 0 0\n0 0:1\n", ":2:1: label id out of range, expected none, got '0'"),
    ],
)
def test_read_xmc_errors(tmp_path, ending, text, message, monkeypatch):
    monkeypatch.setattr(_io, "BLOCK", 7)
    path = write(tmp_path / f"a.txt{ending}", text)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}{message}")):
        data.read_xmc(path)


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_compressed_files(tmp_path, ending):
    path = write(tmp_path / f"a.txt{ending}", b"1000 2 2\n" + b"0 1:1\n" * 1000)
    raw = path.read_bytes()
    for bad in (raw[:-9], raw[: len(raw) // 2], b"not compressed", raw[:20] + b"\xff\xff\xff" + raw[23:]):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            data.read_xmc(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        data.read_xmc(tmp_path / "no.txt")


def test_duplicates_sum(tmp_path):
    path = write(tmp_path / "a", b"1 4 3\n2,0,2 3:1 0:0.5 3:0.25\n")
    X, Y = data.read_xmc(path, duplicates="sum")
    assert X.toarray().tolist() == [[0.5, 0, 0, 1.25]]
    assert Y.toarray().tolist() == [[1, 0, 1]]
    with pytest.raises(ValueError, match="duplicates must be 'error' or 'sum', got 'last'"):
        data.read_xmc(path, duplicates="last")


@ENDINGS
def test_read_libsvm(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(_io, "BLOCK", 7)
    text = b"# made by hand\n1,3 1:0.5 4:1 # first\n2 2:2.25\n\n3:1\n \n\n"
    path = write(tmp_path / f"a.svm{ending}", text)
    with pytest.raises(ValueError, match=re.escape(f"{path}:4:1: blank line, got ''")):
        data.read_libsvm(path)
    X, Y = data.read_libsvm(path, blank="skip", one_based=True)
    assert X.toarray().tolist() == [[0.5, 0, 0, 1], [0, 2.25, 0, 0], [0, 0, 1, 0]]
    assert Y.toarray().tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    X, Y = data.read_libsvm(path, blank="point", n_features=9, n_labels=4)
    assert X.shape == (6, 9)
    assert Y.shape == (6, 4)
    assert np.diff(X.indptr).tolist() == [2, 1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r":2:3: label id out of range, expected 0\.\.2, got '3'"):
        data.read_libsvm(path, n_labels=3)
    with pytest.raises(
        ValueError, match=r":1:1: feature id out of range, expected 1\.\.2147483647, got '0:1'"
    ):
        data.read_libsvm(write(tmp_path / "b", b"0:1\n"), one_based=True)
    with pytest.raises(ValueError, match="the file is empty"):
        data.read_libsvm(write(tmp_path / "b", b" \n\n"))


def test_read_libsvm_with_header(tmp_path):
    text = b"2 4 3\n1,3 1:0.5 4:1\n\n"
    X, Y = data.read_libsvm(write(tmp_path / "a", text), header=True, one_based=True)
    assert X.toarray().tolist() == [[0.5, 0, 0, 1], [0, 0, 0, 0]]
    assert Y.shape == (2, 3)
    with pytest.raises(ValueError, match="come from the header"):
        data.read_libsvm(tmp_path / "a", header=True, n_labels=3)


def test_read_pair(tmp_path):
    x = write(tmp_path / "trn_X_Xf.txt", b"3 4\n0:0.5 3:1\n\n1:2.25\n")
    y = write(tmp_path / "trn_X_Y.txt.gz", b"3 2\n1:1.000\n0:1 1:1\n0:0\n")
    X, Y = data.read_pair(x, y)
    assert X.toarray().tolist() == [[0.5, 0, 0, 1], [0, 0, 0, 0], [0, 2.25, 0, 0]]
    assert Y.toarray().tolist() == [[0, 1], [1, 1], [0, 0]]
    assert Y.nnz == 3
    scores = write(tmp_path / "y", b"3 2\n1:0.5\n0:-1 1:1\n0:2\n")
    with pytest.raises(ValueError, match=r"y:2: label value 0 or 1 expected, got 0\.5 for label 1"):
        data.read_pair(x, scores)
    assert data.read_pair(x, scores, binarize=True).Y.toarray().tolist() == [[0, 1], [0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"has 3 rows, .* has 1: expected the same"):
        data.read_pair(x, write(tmp_path / "y", b"1 2\n1:1\n"))
    with pytest.raises(ValueError, match=":2:1: feature:value expected"):
        data.read_pair(write(tmp_path / "x", b"1 2\n1 1:1\n"), y)


@ENDINGS
@pytest.mark.parametrize(
    ("rows", "columns", "labels"), [(0, 3, 2), (1, 1, 1), (0, 0, 0), (5, 0, 0), (600, 7, 3)]
)
def test_write_then_read_is_exact(tmp_path, ending, rows, columns, labels):
    rng = np.random.default_rng(rows)
    X = sp.random(rows, columns, 0.4, format="csr", dtype=np.float32, random_state=1)
    bits = rng.integers(0, 2**32, X.nnz, dtype=np.uint32).view(np.float32)
    X.data = np.where(np.isfinite(bits), bits, np.float32(-0.0))
    Y = sp.random(rows, labels, 0.3, format="csr", dtype=np.float32, random_state=2)
    Y.data[:] = 1
    path = tmp_path / f"a.txt{ending}"
    data.write_xmc(path, X, Y)
    again = data.read_xmc(path, n_jobs=2)
    same(again.X, X)
    same(again.Y, Y)


def test_write_refuses(tmp_path):
    with pytest.raises(ValueError, match="Y has 1 rows, expected 2"):
        data.write_xmc(tmp_path / "a", np.ones((2, 2)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="X must be finite"):
        data.write_xmc(tmp_path / "a", np.full((2, 2), np.nan), np.ones((2, 2)))
    assert list(tmp_path.iterdir()) == []


def test_demo():
    demo = data.load_demo()
    assert demo.X_train.shape == (8393, len(demo.feature_names)) == (8393, 577)
    assert demo.Y_test.shape == (2098, len(demo.label_names)) == (2098, 400)
    assert round(demo.Y_train.nnz / 8393, 2) == 2.22
    assert demo.feature_names[:2] == ["achiev", "acid"]


@pytest.mark.parametrize("name", ["stackex-cs", "bibtex", "debdeps"])
def test_real_files_agree_with_scikit_learn(data_dir, name):
    from sklearn.datasets import load_svmlight_file
    from sklearn.preprocessing import MultiLabelBinarizer

    path = data_dir(name) / "test.txt.xz"
    X, Y = data.read_xmc(path)
    with lzma.open(path) as file:
        file.readline()
        A, lists = load_svmlight_file(file, n_features=X.shape[1], multilabel=True, zero_based=True)
    same(X, A.astype(np.float32))
    B = MultiLabelBinarizer(classes=range(Y.shape[1]), sparse_output=True).fit_transform(
        [[int(label) for label in row] for row in lists]
    )
    assert abs(Y - B).nnz == 0


def test_read_lines(tmp_path):
    assert data.read_lines(write(tmp_path / "a.gz", "ä\r\n\nb\x0bc\u2028".encode())) == [
        "ä",
        "",
        "b\x0bc\u2028",
    ]
    with pytest.raises(ValueError, match=r"a:2:3: UTF-8 text expected, got '\\xff'"):
        data.read_lines(write(tmp_path / "a", b"x\nyz\xff"))
