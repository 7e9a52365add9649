"""The one reader: every format, every way to give labels, every mistake with its line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import data

CSV = 'title,abstract,tags\r\nTee,"Grüner ""Tee"", heiß\nund süß",tea|green\r\n😀,,tea | tea\r\n\r\n,"",\r\n'
TITLES = ["Tee", "😀", ""]
ABSTRACTS = ['Grüner "Tee", heiß\nund süß', "", ""]
LABELS = [["tea", "green"], ["tea"], []]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def zstd():
    """The standard library's module, or its backport."""
    if sys.version_info >= (3, 14):
        return pytest.importorskip("compression.zstd")
    return pytest.importorskip("backports.zstd")


def both(path, **options):
    """Read as a whole, after checking that chunks of any size give the same."""
    whole = data.read(path, **options)
    for rows in (1, 2, 1000):
        chunks = [*data.read_chunks(path, rows, **options)]
        assert all(len(chunk) == rows for chunk in chunks[:-1])
        assert [text for chunk in chunks for text in texts_of(chunk)] == texts_of(whole)
        if whole.labels is not None:
            assert [row for chunk in chunks for row in chunk.labels] == whole.labels
        counts = {}
        for chunk in chunks:
            for reason, n in chunk.skipped.items():
                counts[reason] = counts.get(reason, 0) + n
        assert counts == whole.skipped
    return whole


def texts_of(dataset):
    if isinstance(dataset.texts, dict):
        return list(zip(*dataset.texts.values(), strict=True))
    return list(dataset.texts) if dataset.texts is not None else dataset.X.toarray().tolist()


def test_white_space_is_no_text(tmp_path):
    got = both(write(tmp_path / "a.csv", "title,tags\n \t,a\n\u3000\u00a0,a\nÄ,a\n b ,a\n"))
    assert got.texts.filled.tolist() == [False, False, True, True]
    assert got.skipped == {"rows without text": 2}
    every = data.TextColumn.from_texts([chr(c) for c in range(0x110000)])
    assert every.filled.tolist() == [not chr(c).isspace() for c in range(0x110000)]


def test_csv(tmp_path):
    got = both(write(tmp_path / "a.csv", CSV), text=["title", "abstract"])
    assert {name: list(column) for name, column in got.texts.items()} == {
        "title": TITLES,
        "abstract": ABSTRACTS,
    }
    assert got.labels == LABELS
    assert got.skipped == {
        "rows without text": 1,
        "rows without labels": 1,
        "repeated labels": 1,
        "empty lines": 1,
    }
    assert got.describe() == (
        f"read 3 rows of CSV (columns title, abstract; labels tags split at '|') from {tmp_path / 'a.csv'},"
        " 1 row without text, 1 row without labels, 1 repeated label, 1 empty line"
    )


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_compression_and_encoding(tmp_path, suffix, encoding):
    path = tmp_path / f"a.csv{suffix}"
    content = CSV.encode(encoding)
    if suffix == ".gz":
        content = gzip.compress(content)
    elif suffix == ".xz":
        content = lzma.compress(content)
    elif suffix == ".zst":
        content = zstd().compress(content)
    write(path, content)
    got = both(path, text="title", encoding=encoding)
    assert list(got.texts) == TITLES
    assert got.labels == LABELS


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_truncated_compressed_table_is_an_error(tmp_path, suffix):
    content = CSV.encode() + b"".join(b"%d,%d,a\n" % (i, i * i) for i in range(3000))
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(suffix) or zstd().compress
    content = compress(content)
    for size in (len(content) - 1, len(content) // 2):
        path = write(tmp_path / f"a.csv{suffix}", content[:size])
        with pytest.raises(ValueError, match=rf"a.csv{suffix}: damaged or truncated"):
            data.read(path, text="title")
    joined = content + compress(b"x,y,z\n")  # several frames are one file
    path = write(tmp_path / f"twice.csv{suffix}", joined)
    assert data.read(path, text="title").texts[-1] == "x"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_other_encodings(tmp_path, encoding):
    path = write(tmp_path / "a.csv", "text;label\nÄpfel, Öl;grün\n".encode(encoding))
    assert list(both(path, encoding=encoding).texts) == ["Äpfel, Öl"]
    with pytest.raises(ValueError, match=r"a.csv:2: UTF-8 text expected, got '\\xc4pfel"):
        data.read(path)


JSON = [
    {
        "a": {"title": "Tea \u00e9 \ud83d\ude00"},
        "tags": ["x", "y", "x"],
        "n": [1, {"z": [None, True, -1.5e3]}],
    },
    {"a": {"title": None}, "tags": None},
    {"a": 3, "tags": []},
    {"tags": ["y", None]},
]


def test_jsonl(tmp_path):
    lines = "\n".join(json.dumps(record, ensure_ascii=i % 2 == 0) for i, record in enumerate(JSON))
    got = both(write(tmp_path / "a.jsonl", lines + "\n\n"), text="a.title")
    assert list(got.texts) == ["Tea \u00e9 \U0001f600", "", "", ""]
    assert got.labels == [["x", "y"], [], [], ["y"]]
    assert got.skipped == {
        "rows without text": 3,
        "rows without labels": 2,
        "repeated labels": 1,
        "empty lines": 1,
    }


def test_jsonl_ids_and_strings(tmp_path):
    path = write(tmp_path / "a.json", '{"title": "a", "target_ind": [2, 0]}\n{"title": "b", "target_ind": 1}')
    got = data.read(path)
    assert got.Y.toarray().tolist() == [[1, 0, 1], [0, 1, 0]]
    assert got.labels is None
    path = write(tmp_path / "b.jsonl", '{"text": "a", "tags": "x; y"}\n{"text": "b", "tags": "y"}\n')
    assert both(path).labels == [["x", "y"], ["y"]]
    assert both(path, sep="&").labels == [["x; y"], ["y"]]
    assert both(path, label=False).labels is None


def test_written_lists(tmp_path):
    path = write(tmp_path / "a.csv", 'text,tags\na,"[\'x, y\', \'z\']"\nb,[]\nc,\nd,"[""q""]"\n')
    assert both(path).labels == [["x, y", "z"], [], [], ["q"]]


def test_texts_and_labels(tmp_path):
    texts = write(tmp_path / "t.txt", "green tea\n\nÖl\r\n")
    plain = both(texts)
    assert list(plain.texts) == ["green tea", "", "Öl"]
    assert (plain.labels, plain.Y, plain.format) == (None, None, "text")
    ids = write(tmp_path / "ids.txt", "0 2 2\n\n1,0\n")
    got = both([texts, ids])
    assert got.Y.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert got.skipped == {"rows without text": 1, "rows without labels": 1, "repeated labels": 1}
    assert both([texts, write(tmp_path / "names.txt", "tea\tgreen tea\n\noil\n")]).labels == [
        ["tea", "green tea"],
        [],
        ["oil"],
    ]
    names = write(tmp_path / "label_names.txt", "tea\noil\ngreen\n")
    assert both([texts, ids, names]).labels == [["tea", "green"], [], ["tea", "oil"]]
    with pytest.raises(ValueError, match=r"has 3 lines, .* has 1: expected the same"):
        data.read([texts, write(tmp_path / "short.txt", "1\n")])


def test_matrices(tmp_path):
    xmc = write(tmp_path / "train.txt", "2 4 3\n0,2 0:0.5 3:1\n 1:2.25\n")
    got = both(xmc)
    assert got.format == "xmc"
    assert got.Y.toarray().tolist() == [[1, 0, 1], [0, 0, 0]]
    svm = both(write(tmp_path / "a.svm", "0,2 0:0.5 3:1\n1 1:2.25\n"))
    assert (svm.X != got.X).nnz == 0
    pair = data.read(
        [write(tmp_path / "X.txt", "2 4\n0:0.5 3:1\n1:2.25\n"), write(tmp_path / "Y.txt", "2 3\n0:1 2:1\n\n")]
    )
    assert pair.format == "pair"
    assert (pair.Y != got.Y).nnz == 0
    sp.save_npz(tmp_path / "X.npz", got.X)
    sp.save_npz(tmp_path / "Y.npz", got.Y)
    npz = both([tmp_path / "X.npz", tmp_path / "Y.npz"])
    assert (npz.X != got.X).nnz == 0
    with pytest.raises(ValueError, match="format npz takes two files"):
        data.read(tmp_path / "X.npz")


def test_several_files(tmp_path):
    for i in range(3):
        write(tmp_path / f"part-{i}.csv", f"text,tags\nword{i},t{i}\n")
    want = ["word0", "word1", "word2"]
    for source in (tmp_path, str(tmp_path / "part-*.csv"), sorted(tmp_path.iterdir())):
        got = both(source)
        assert list(got.texts) == want
        assert got.labels == [["t0"], ["t1"], ["t2"]]
        assert len(got.files) == 3
    write(tmp_path / "more.txt", "x")
    with pytest.raises(ValueError, match=r"files of one kind expected, got \.csv, \.txt"):
        data.read(tmp_path)
    with pytest.raises(ValueError, match="no files at"):
        data.read(str(tmp_path / "*.json"))
    with pytest.raises(FileNotFoundError):
        data.read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "content", [CSV.encode(), gzip.compress(CSV.encode()), b"2 4 3\n0,2 0:0.5 3:1\n 1:2.25\n", b"a\nb\nc"]
)
@pytest.mark.parametrize("chunks", [False, True])
def test_standard_input(monkeypatch, content, chunks):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    options = {"text": "title"} if len(content) > 50 else {}
    got = next(data.read_chunks("-", 100, **options)) if chunks else data.read("-", **options)
    assert len(got) == (2 if b":2.25" in content else 3)
    assert "standard input" in got.describe()


def test_parquet_and_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = {
        "title": ["Tee", None, "Öl"],
        "n": [1, 2, 3],
        "title2": ["x", "y", "z"],
        "tags": [["a", "b", "a"], [], None],
    }
    makers = [pandas.DataFrame, pyarrow.table]
    with contextlib.suppress(ImportError):
        import polars

        makers.append(polars.DataFrame)
    frames = [make(values) for make in makers]
    parquet.write_table(frames[1], tmp_path / "a.parquet", row_group_size=2)
    for got in [*map(data.from_frame, frames), both(tmp_path / "a.parquet")]:
        assert list(got.texts) == ["Tee", "", "Öl"]
        assert got.labels == [["a", "b"], [], []]
        assert got.skipped == {"rows without text": 1, "rows without labels": 2, "repeated labels": 1}
        assert data.as_texts({"a": values["title"]}) == ({"a": ["Tee", "", "Öl"]}, 1)
    for make, frame in zip(makers, frames, strict=True):
        assert data.as_texts(frame["title"]) == (["Tee", "", "Öl"], 1)
        assert data.as_labels(frame["tags"]).names == [["a", "b"], [], []]
        two = frame.select(["title", "title2"]) if hasattr(frame, "select") else frame[["title", "title2"]]
        assert data.as_texts(two) == ({"title": ["Tee", "", "Öl"], "title2": ["x", "y", "z"]}, 1)
        with pytest.raises(ValueError, match=r"which column is the text. .* the columns are a, b"):
            data.from_frame(make({"a": ["x"], "b": ["y"]}))
    assert data.as_texts(np.array(["a", None], object)) == (["a", ""], 1)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "text,tags\na,b\nc\n", {}, "a.csv:3: 2 fields expected as in the header, got 1"),
        ("a.csv", 'text,tags\n"a\n",b\nc,d,e\n', {}, "a.csv:4: 2 fields expected as in the header, got 3"),
        ("a.csv", 'text,tags\na,b\n"c,d\n', {}, "a.csv:3: the quoted field that starts here is never closed"),
        ("a.csv", b"text,tags\na\n,\xff\n", {"label": "tags"}, "a.csv:2: 2 fields expected"),
        ("a.csv", b"text,tags\n\n,\xff\n", {}, "a.csv:3: UTF-8 text expected, got '\\xff'"),
        ("a.csv", "text,text\n", {}, "a.csv:1: the header names the column 'text' twice"),
        (
            "a.csv",
            "title,abstract\n",
            {},
            "which column is the text? Name it with text=; it could be title, abstract",
        ),
        ("a.csv", "x,y\na,b\n", {}, "which column is the text? Name it with text=; the columns are x, y"),
        (
            "a.csv",
            "text,tags,labels\n",
            {},
            "which column is the label? Name it with label=; it could be tags, labels",
        ),
        ("a.csv", "text,tags\n", {"text": "title"}, "has no column 'title', it has text, tags"),
        ("a.csv", "text,tags\n", {"text": ["text", "tags"], "label": "tags"}, "cannot be text and label"),
        ("a.csv", "", {}, "a.csv:1: the file is empty"),
        ("a.csv", "text,tags\n".encode("utf-16"), {}, "looks like UTF-16, give encoding='utf-16'"),
        ("a.csv", b"text\nab\n\x81\n", {"encoding": "cp1252"}, "a.csv:3: charmap text expected, got b'\\x81"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": 3}\n',
            {},
            "a.jsonl:2: text or null expected in the field 'text', got '3}'",
        ),
        ("a.jsonl", '{"text": "a"}\n{"text" "b"}\n', {}, "a.jsonl:2: ':' expected, got '\"b\"}'"),
        ("a.jsonl", '{"text": "a", "x": [1, 2}\n', {}, "a.jsonl:1: ',' or ']' expected, got '}'"),
        ("a.jsonl", '{"text": "a", "x": "\\q"}\n', {"text": "text"}, "a.jsonl:1: an escape of JSON expected"),
        ("a.jsonl", '{"text": "a"} x\n', {}, "end of the line expected after the JSON object, got 'x'"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', {}, "a.jsonl:2: a JSON object expected, got '[1]'"),
        ("a.jsonl", '[{"text": "a"}]', {}, "a JSON array: one object per line is expected"),
        ("a.json", '[{"text": "a"}]', {}, "a JSON array: one object per line is expected"),
        ("a", '[\n {"text": "a"}\n]', {}, "a JSON array: one object per line is expected"),
        (
            "a.csv",
            b"text\nab\nc\xff\n",
            {},
            "a.csv:3: UTF-8 text expected, got '\\xff'; name another encoding",
        ),
        ("a.jsonl", '{"text": "a", "tags": [1, "b"]}\n', {}, "the field 'tags' holds integers and strings"),
        (
            "a.jsonl",
            '{"text": "a", "tags": [1.5]}\n',
            {},
            "a label or null expected in the field 'tags', got '1.5]}'",
        ),
        ("a.jsonl", '{"text": "a", "tags": [-1]}\n', {}, "label id in 0..2147483646 expected, got -1"),
        ("a.txt", b"ab\nc\xff\n", {}, "a.txt:2:2: UTF-8 text expected, got '\\xff'"),
        ("a.txt.gz", b"no gzip", {}, "a.txt.gz: damaged or truncated gz file"),
        ("a.txt", "x", {"format": "xlsx"}, "format must be one of auto, csv"),
    ],
)
def test_errors(tmp_path, name, content, options, message):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        data.read(path, **options)
    assert message in str(caught.value)


def test_text_column():
    column = data.TextColumn.from_texts(["a", "", "ö\ud800", "z"])
    assert list(column) == ["a", "", "ö\ud800", "z"] == column.tolist()
    assert column == ["a", "", "ö\ud800", "z"]
    assert column[-1] == "z"
    assert list(column[1:3]) == ["", "ö\ud800"]
    assert list(column[::-2]) == ["z", ""]
    assert list(column.take(np.array([True, False, False, True]))) == ["a", "z"]
    import pickle

    again = pickle.loads(pickle.dumps(column[2:]))
    assert again == ["ö\ud800", "z"]
    assert again.data.size == 6
    with pytest.raises(IndexError):
        column[4]
