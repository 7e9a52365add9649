"""Every reader of files against a few lines of Python, on generated files: the same, or both refuse them.

The parsers of sparse text, CSV, JSON and UTF-8 have more in test_data.py and test_data_tables.py.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.data import Bad, parse_lines
from xmc_fast import data, model

NUMBERS = st.one_of(
    st.integers(0, 5).map(str),
    st.sampled_from(["", "-1", "7", "x", "1.5", "99999999999999999999", "\r", "+2"]),
)
COUNTS = st.one_of(st.integers(0, 4).map(str), st.sampled_from(["-1", "x", "9", ""]))
VALUES = st.sampled_from(["1", "0", "0.5", "1e-3", "-2", "nan", "1e99", "", "2", "1:1"])
PAIRS = st.builds("{}:{}".format, NUMBERS, VALUES)
LABELS = st.lists(NUMBERS, max_size=3).map(",".join)


def lines_of(token, *, sep=" ", **size):
    return st.lists(st.lists(token, max_size=4).map(sep.join), **{"max_size": 5, **size})


def refused(call):
    """What a reader gives, or None with a ValueError."""
    try:
        return call()
    except ValueError:
        return None


def header(text, fields):
    """The counts of the first line and what follows it."""
    line, _, rest = text.partition("\n")
    if not re.fullmatch(rf"[ \t]*[0-9]{{1,18}}([ \t]+[0-9]{{1,18}}){{{fields - 1}}}[ \t]*\r?", line):
        raise Bad(1, 1)
    counts = [int(word) for word in line.split()]
    if max(counts[1:]) > 2**31 - 1:
        raise Bad(1, 1)
    return counts, rest.encode()


def rows_of(parsed, n_features, n_labels):
    """Dense X and Y of the reference's rows."""
    X, Y = np.zeros((len(parsed), n_features), np.float32), np.zeros((len(parsed), n_labels), np.float32)
    for i, (labels, row) in enumerate(parsed):
        Y[i, labels] = 1
        X[i, list(row)] = list(row.values())
    return X.tolist(), Y.tolist()


def xmc(text):
    (points, n_features, n_labels), rest = header(text, 3)
    return rows_of(parse_lines(rest, n_features, n_labels, points=points, first_line=2), n_features, n_labels)


def dense(found):
    return None if found is None else tuple(part.toarray().tolist() for part in found)


def check_xmc(path, text, _):
    want = refused(lambda: xmc(text))
    assert dense(refused(lambda: data.read_xmc(path, n_jobs=2))) == want


def check_iter_xmc(path, text, _):
    want = refused(lambda: xmc(text))
    parts = refused(lambda: list(data.iter_xmc(path, chunk_bytes=7, n_jobs=1)))
    if want is None or not parts:
        assert parts in (None, [])
        assert not (want and want[0])
    else:
        assert dense([sp.vstack(matrices) for matrices in zip(*parts, strict=True)]) == want


def check_libsvm(path, text, _):
    def read():
        lines = text.rstrip(" \t\r\n").split("\n")
        if lines == [""] or any(not line.partition("#")[0].strip(" \t\r") for line in lines):
            raise Bad(1, 1)
        rest = "\n".join(line.partition("#")[0].removesuffix("\r") for line in lines)
        return rows_of(parse_lines(rest.encode(), 6, 6), 6, 6)

    assert dense(refused(lambda: data.read_libsvm(path, n_features=6, n_labels=6, n_jobs=2))) == refused(read)


def check_pair(path, text, other):
    def read(text):
        (points, n_features), rest = header(text, 2)
        return rows_of(parse_lines(rest, n_features, 0, points=points, label_field=False), n_features, 0)[0]

    def both():
        X, Y = read(text), read(other)
        if len(X) != len(Y) or any(value not in (0, 1) for row in Y for value in row):
            raise Bad(1, 1)
        return X, Y

    second = path.with_suffix(".y")
    second.write_text(other, newline="")
    assert dense(refused(lambda: data.read_pair(path, second, n_jobs=2))) == refused(both)


def check_lines(path, text, _):
    lines = text.split("\n")
    want = [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    assert data.read_lines(path) == want


def check_text(path, text, other):
    def ids(line):
        words = line.replace(",", " ").split()
        if not all(re.fullmatch("[0-9]+", word) and int(word) < 6 for word in words):
            raise Bad(1, 1)
        if len(set(map(int, words))) < len(words):
            raise Bad(1, 1)
        return [float(j in map(int, words)) for j in range(6)]

    def read():
        lines = other.split("\n")
        rows = [ids(line) for line in (lines if lines[-1].strip(" \t\r") else lines[:-1])]
        if len(rows) != len(texts) or not texts or not other:
            raise Bad(1, 1)
        return rows

    texts = data.read_lines(path)
    second = path.with_suffix(".y")
    second.write_text(other, newline="")
    found = refused(lambda: data.read_text(path, second, n_labels=6))
    assert (found and found.Y.toarray().tolist()) == refused(read)


def check_filter(path, text, _):
    def read():
        lines = text.split("\n")
        pairs = [
            line.replace(",", " ").split() for line in (lines if lines[-1].strip(" \t\r") else lines[:-1])
        ]
        M = np.zeros((4, 3))
        for pair in pairs:
            if len(pair) != 2 or not all(re.fullmatch("[0-9]+", word) for word in pair):
                raise Bad(1, 1)
            if int(pair[0]) >= 4 or int(pair[1]) >= 3:
                raise Bad(1, 1)
            M[int(pair[0]), int(pair[1])] = 1
        return M.tolist()

    found = refused(lambda: data.read_filter(path, n_points=4, n_labels=3))
    assert (None if found is None else found.toarray().tolist()) == refused(read)


def check_names(path, text, _):
    def read():
        found = {}
        for line in text.removeprefix("\ufeff").split("\n"):
            if line.strip():
                label, *names = line.rstrip("\r").split("\t")
                if not names:
                    raise Bad(1, 1)
                found.setdefault(label, []).extend(name.strip() for name in names)
        return {label: list(dict.fromkeys(filter(None, names))) for label, names in found.items()}

    assert refused(lambda: data.read_names(path)) == refused(read)


def check_predictions(path, text, _):
    def read():
        rows = []
        for line in text.split("\n")[: None if text and not text.endswith("\n") else -1]:
            row = [0.0] * 6
            for token in line.split():
                label, score = token.split(":")
                if not 0 <= int(label) < 6:
                    raise Bad(1, 1)
                with np.errstate(over="ignore"):
                    row[int(label)] += np.float32(float(score))
            rows.append(row)
        return rows

    found = refused(lambda: model.read_predictions(path, 6))
    np.testing.assert_equal(None if found is None else found.toarray().tolist(), refused(read))


SPARSE = lines_of(st.one_of(PAIRS, LABELS))
IDS = lines_of(NUMBERS, sep=" ")
TABLE = lines_of(st.text("ab \r,", max_size=3), sep="\t")
# Reader -> (the lines of a file, those of another one, the check)
READERS = {
    "read_xmc": (st.builds("{} {} {}\n{}".format, COUNTS, COUNTS, COUNTS, SPARSE.map("\n".join)), None, check_xmc),
    "iter_xmc": (st.builds("{} {} {}\n{}".format, COUNTS, COUNTS, COUNTS, SPARSE.map("\n".join)), None, check_iter_xmc),
    "read_libsvm": (SPARSE.map("\n".join), None, check_libsvm),
    "read_pair": (*[st.builds("{} {}\n{}".format, COUNTS, COUNTS, lines_of(PAIRS).map("\n".join))] * 2, check_pair),
    "read_lines": (TABLE.map("\n".join), None, check_lines),
    "read_text": (TABLE.map("\n".join), IDS.map("\n".join), check_text),
    "read_filter": (IDS.map("\n".join), None, check_filter),
    "read_names": (TABLE.map("\n".join), None, check_names),
    "read_predictions": (lines_of(PAIRS).map("\n".join), None, check_predictions),
}  # fmt: skip
# Those with tests of their own: CSV and JSON against Python's csv and json, and numpy's files below.
ELSEWHERE = {"read": "test_data_tables.py", "read_chunks": "below", "read_npz": "below"}


def test_no_reader_is_left_out():
    names = {name for name in data.__all__ if name.startswith(("read", "iter_"))}
    assert names | {"read_predictions"} == set(READERS) | set(ELSEWHERE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "a.txt"


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_as_a_few_lines_of_python(path, name, draw):
    strategy, other, check = READERS[name]
    text = draw.draw(strategy)
    path.write_text(text, newline="")
    check(path, text, None if other is None else draw.draw(other))


@given(lines_of(st.text('ab ",|', max_size=3), sep=",", min_size=1), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_chunks_are_the_whole(path, lines, rows):
    path.write_text("text,label\n" + "\n".join(lines))
    options = {"format": "csv", "text": "text", "label": "label", "sep": "|"}
    whole = refused(lambda: data.read(path, **options))
    parts = refused(lambda: list(data.read_chunks(path, rows, **options)))
    assert (whole is None) == (parts is None)
    if whole is not None:
        assert list(whole.texts) == [text for part in parts for text in part.texts]
        assert whole.labels == [row for part in parts for row in part.labels]
        assert all(part.n_rows <= rows for part in parts)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_changed_file_of_numpy(path, draw):
    """The matrix that scipy and then the rules of a matrix take, or a ValueError."""
    X, Y = sp.csr_matrix([[0.5, 0, 1], [0, 2, 0]]), sp.csr_matrix([[1, 0], [1, 1]])
    places = [path.with_suffix(".x.npz"), path.with_suffix(".y.npz")]
    for place, matrix in zip(places, (X, Y), strict=True):
        out = io.BytesIO()
        sp.save_npz(out, matrix, compressed=False)
        raw = bytearray(out.getvalue())
        for at in draw.draw(st.lists(st.integers(0, len(raw) - 1), max_size=2)):
            raw[at] ^= draw.draw(st.integers(1, 255))
        place.write_bytes(raw)
    found = refused(lambda: data.read_npz(*places))
    if found is not None:
        assert [part.has_canonical_format for part in found] == [True, True]
        assert found.X.shape[0] == found.Y.shape[0]


# ---- a thesaurus in its three forms

KINDS = ("prefLabel", "altLabel", "hiddenLabel")
SKOS = "http://www.w3.org/2004/02/skos/core#"
LITERAL = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn"], include_characters="\n\t'\"\\"), max_size=6
)
NAMES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(KINDS), LITERAL, st.sampled_from(["", "de", "en-GB"])),
    min_size=1, max_size=8,
)  # fmt: skip


def quoted(text, how):
    text = text.replace("\\", "\\\\").replace(how[0], "\\" + how[0])
    return how + (text if len(how) == 3 else text.replace("\n", "\\n")) + how


def turtle(names, draw):
    space = st.sampled_from([" ", "\n", '\t# a "comment" .\n', "  "])
    out = ["@prefix e: <http://e/> .", f"PREFIX s: <{SKOS}>"]
    for concept, kind, text, language in names:
        subject, predicate = draw(
            st.sampled_from([(f"e:{concept}", f"s:{kind}"), (f"<http://e/{concept}>", f"<{SKOS}{kind}>")])
        )
        how = draw(st.sampled_from(['"', "'", '"""', "'''"]))
        literal = quoted(text, how) + (language and "@" + language)
        other = draw(st.sampled_from(["", "s:broader [ s:prefLabel 'no' ] , e:x ;", "a s:Concept ;"]))
        out.append(draw(space).join(filter(None, [subject, other, predicate, literal, "."])))
    return draw(space).join(out)


def triples(names, _):
    return "".join(
        f"<http://e/{c}> <{SKOS}{kind}> {quoted(text, chr(34))}{language and '@' + language} .\n"
        for c, kind, text, language in names
    )


def rdf(names, _):
    root = ElementTree.Element("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF")
    for concept, kind, text, language in names:
        about = {"{http://www.w3.org/1999/02/22-rdf-syntax-ns#}about": f"http://e/{concept}"}
        child = ElementTree.SubElement(
            ElementTree.SubElement(root, f"{{{SKOS}}}Concept", about), f"{{{SKOS}}}{kind}"
        )
        child.text = text
        if language:
            child.set("{http://www.w3.org/XML/1998/namespace}lang", language)
    return ElementTree.tostring(root, encoding="unicode")


@pytest.mark.parametrize(("suffix", "write"), [(".ttl", turtle), (".nt", triples), (".rdf", rdf)])
@settings(max_examples=100, deadline=None)
@given(names=NAMES, languages=st.sampled_from([None, {"de"}, {"en"}]), draw=st.data())
def test_a_thesaurus_is_read_as_it_was_written(path, suffix, write, names, languages, draw):
    place = path.with_suffix(suffix)
    text = write(names, draw.draw)
    place.write_text(text, newline="", encoding="utf-8")
    want = {}
    for kind in KINDS:
        for concept, of, name, language in names:
            if of == kind and name.strip() and (not languages or not language or language[:2] in languages):
                want.setdefault(f"http://e/{concept}", {})[name.strip()] = None
    assert data.read_names(place, languages=languages) == {c: list(found) for c, found in want.items()}
    cut = draw.draw(st.integers(0, len(text)))  # names that were whole, or an error
    place.write_text(text[:cut], newline="", encoding="utf-8")
    found = refused(lambda: data.read_names(place, languages=languages)) or {}
    assert all(set(of) <= set(want.get(concept, ())) for concept, of in found.items())
