"""CSV and JSON lines against Python's csv and json and pandas, on generated files: equal, or a clear error."""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmc_fast import data
from xmc_fast.data import _tables

FIELD = st.text(
    alphabet=st.one_of(
        st.sampled_from(',;\t"\n\r |aä😀'),
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00"),
    ),
    max_size=8,
)


def read(path, content, **options):
    """Read with chunks of a few bytes, in threads, so that quotes and rows are cut everywhere."""
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    made = []
    for chunk in (1, 7, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_tables, "CHUNK", chunk)
            try:
                made.append(data.read(path, n_jobs=2, label=False, **options))
            except ValueError as error:
                made.append(str(error))
    assert len({str(m) if isinstance(m, str) else json.dumps(columns(m)) for m in made}) == 1
    return made[0]


def columns(dataset):
    texts = dataset.texts
    return {k: list(v) for k, v in texts.items()} if isinstance(texts, dict) else {"": list(texts)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "a"


@given(
    st.lists(st.tuples(FIELD, FIELD, FIELD), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n", "\r"])
)
@settings(max_examples=300, deadline=None)
def test_what_csv_writes_is_read(path, rows, end):
    out = io.StringIO()
    # csv quotes \r and \n only where the line end has them
    bare = any("\r" in field or "\n" in field for row in rows for field in row)
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL)
    writer.writerow(["first one", "second", "third"])
    writer.writerows(rows)
    got = read(path.with_suffix(".csv"), out.getvalue(), text=["first one", "second", "third"], format="csv")
    assert columns(got) == {
        name: [row[k] for row in rows] for k, name in enumerate(["first one", "second", "third"])
    }


@given(st.text(alphabet=st.sampled_from('aä, "\n\r'), max_size=40))
@settings(max_examples=1500, deadline=None)
def test_any_csv_is_read_as_by_python_or_refused(path, body):
    text = "x,y\n" + body
    got = read(path.with_suffix(".csv"), text, text=["x", "y"], format="csv")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=False) if row][1:]
    if isinstance(got, str):
        bad = any(len(row) != 2 for row in rows)
        unclosed = "never closed" in got
        assert bad or unclosed, (got, rows)
        if unclosed and not bad:
            with pytest.raises(csv.Error):
                list(csv.reader(io.StringIO(text, newline=""), strict=True))
    else:
        assert columns(got) == {"x": [row[0] for row in rows], "y": [row[1] for row in rows]}


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_csv_as_pandas_reads_it(path, rows):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, columns=["x", "y"])
    text = frame.to_csv(index=False, quoting=csv.QUOTE_ALL)
    got = read(path.with_suffix(".csv"), text, text=["x", "y"])
    want = pandas.read_csv(io.StringIO(text, newline=""), keep_default_na=False, dtype=str)
    assert columns(got) == {"x": want["x"].tolist(), "y": want["y"].tolist()}


PIECES = [
    b"a",
    b"\xc3\xa4",
    b"\xe2\x82\xac",
    b"\xf0\x9f\x98\x80",
    b"\xed\xa0\x80",
    b"\xe0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0",
]


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=2), st.sampled_from(PIECES)), max_size=12))
@settings(max_examples=1500, deadline=None)
def test_utf8_as_python_reads_it(path, pieces):
    raw = b"".join(pieces).replace(b"\n", b"").replace(b"\r", b"")
    path = path.with_suffix(".txt")
    path.write_bytes(b"x" * 40 + raw)
    try:
        want = raw.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(ValueError, match=rf":1:{41 + error.start}: UTF-8 text expected"):
            data.read_lines(path)
    else:
        assert data.read_lines(path) == ["x" * 40 + want]


TEXT = st.text(max_size=6)
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
RECORD = st.fixed_dictionaries(
    {},
    optional={
        "t": st.one_of(st.none(), TEXT),
        "a": st.one_of(VALUE, st.dictionaries(st.sampled_from(["b", "c"]), st.one_of(st.none(), TEXT))),
        "other": VALUE,
        'k"\u00e4': VALUE,
    },
)


def wanted(record, *keys):
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


@given(st.lists(RECORD, min_size=1, max_size=6), st.booleans(), st.sampled_from([None, 0]))
@settings(max_examples=300, deadline=None)
def test_what_json_writes_is_read(path, records, ascii_only, indent):
    lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    if indent is not None:  # more blanks
        lines = [line.replace(": ", " :\t ") if '"' not in line[1:-1] else f"  {line} \r" for line in lines]
    found = [[wanted(record, "t"), wanted(record, "a", "b")] for record in records]
    surrogates = not ascii_only and any("\ud800" <= c <= "\udfff" for line in lines for c in line)
    got = read(path.with_suffix(".jsonl"), "\n".join(lines), text=["t", "a.b"]) if _known(records) else None
    if got is None:
        return
    nan = [[None if isinstance(v, float) and v != v else v for v in row] for row in found]
    if isinstance(got, str):
        bad = any(v is not None and not isinstance(v, str) for v in itertools.chain(*nan))
        assert bad or surrogates, got
    else:
        assert columns(got) == {"t": [r[0] or "" for r in nan], "a.b": [r[1] or "" for r in nan]}


def _known(records):
    keys = {key for record in records for key in record}
    return {"t", "a"} <= keys


@given(st.text(alphabet=st.sampled_from('{}[]":,\\u0a1e-. tnrf\u00e4'), max_size=24))
@settings(max_examples=1500, deadline=None)
def test_any_json_is_read_as_by_python_or_refused(path, body):
    line = '{"t": "x", "z": ' + body + "}"
    got = read(path.with_suffix(".jsonl"), '{"t": ""}\n' + line, text="t")
    try:
        record = json.loads(line)
    except ValueError:
        assert isinstance(got, str), line
        return
    assert not isinstance(got, str), got
    assert list(got.texts) == ["", record["t"]]


LABEL = st.text(st.characters(exclude_characters="\x00"), max_size=6)


@given(st.lists(st.one_of(st.none(), LABEL, st.lists(st.one_of(st.none(), LABEL), max_size=4)), min_size=1))
@settings(max_examples=200, deadline=None)
def test_labels_of_json(path, cells):
    lines = [json.dumps({"t": "x", "tags": cell}) for cell in cells]
    path = path.with_suffix(".jsonl")
    path.write_text("\n".join(lines))
    got = data.read(path, text="t", label="tags", sep="\x00")
    rows = [[c for c in (cell if isinstance(cell, list) else [cell]) if c is not None] for cell in cells]
    rows = [[label.strip(" \t\r\n\v\f") for label in row] for row in rows]
    assert got.labels == [list(dict.fromkeys(label for label in row if label)) for row in rows]
