"""Readers and writer of sparse text against the plain reference; errors by line and column."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.data import Bad, Missing, exact_float, parse_lines
from xmc_fast import _core


def same(A, B):
    """Equal shape, structure, dtype and bits (so -0.0 differs from 0.0)."""
    assert A.shape == B.shape
    assert A.dtype == B.dtype
    for name in ("indptr", "indices", "data"):
        a, b = getattr(A, name), getattr(B, name)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes(), name


def parse(text, *, n_features=10, n_labels=5, threads=1, **options):
    """The compiled parser on bytes, in the reference's shape: a list of (labels, {feature: value})."""
    args = {
        "name": "f",
        "first_line": 1,
        "first_row": 0,
        "max_rows": -1,
        "base": 0,
        "label_field": True,
        "comments": False,
        "sum_duplicates": False,
        "blank": "point",
        **options,
    }
    sizes, indices, values, label_sizes, labels, _, max_feature, max_label = _core.parse_text(
        text, 0, len(text), n_features=n_features, n_labels=n_labels, threads=threads, **args
    )
    assert max_feature == max(indices, default=-1)
    assert max_label == max(labels, default=-1)
    rows = zip(np.split(indices, np.cumsum(sizes)), np.split(values, np.cumsum(sizes)), strict=True)
    return [
        (a.tolist(), dict(zip(i.tolist(), v, strict=True)))
        for (i, v), a in list(zip(rows, np.split(labels, np.cumsum(label_sizes)), strict=True))[:-1]
    ]


def check_against_reference(text, *, threads=1, points=None, **options):
    run = partial(parse, text, threads=threads, max_rows=-1 if points is None else points, **options)
    try:
        expected = parse_lines(text, 10, 5, points=points, **options)
    except Missing:  # the file reader's error, not the parser's
        expected = parse_lines(text, 10, 5, **options)
    except Bad as bad:
        with pytest.raises(ValueError, match=rf"^f:{bad.line}:{bad.column}: ") as caught:
            run()
        assert "unreadable" not in str(caught.value)
        return
    got = run()
    assert [g[0] for g in got] == [e[0] for e in expected]
    for (_, g), (_, e) in zip(got, expected, strict=True):
        assert list(g) == list(e)
        assert [v.tobytes() for v in g.values()] == [v.tobytes() for v in e.values()]


NUMBERS = [
    "0",
    "-0",
    "1",
    "+1",
    "007",
    "1.",
    ".5",
    "-.5",
    "0.084556",
    "16.332441",
    "123456789.123456789",
    "1e5",
    "1E-5",
    "1.e+2",
    "16777217",
    "16777219",
    "1.00000005960464477539062500001",
    "1.000000059604644775390625",
    "3.4028234663852886e38",
    "3.4028235677973365e38",
    "3.402823567797336e38",
    "1e-45",
    "7e-46",
    "7.1e-46",
    "1.1754943508222875e-38",
    "1.1754942807573643e-38",
    "5e-324",
    "1e-400",
    "0e999",
    "0.000000000000000000000001",
    "12345678901234567890123456789",
    "0.1234567890123456789012345",
    "99999999",
    "999999999.99999999",
    "8388608.5",
    "8388609.5",
    "9007199254740993",
    "1e22",
    "1e23",
    "00000000000000000000000001",
    "1e-0000000007",
]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_correctly_rounded(number):
    ((_, row),) = parse(f" 3:{number}\n".encode())
    assert row[3].tobytes() == exact_float(number.encode()).tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(6, 25))
@settings(max_examples=300, deadline=None)
def test_any_float_and_its_neighbourhood(bits, digits):
    value = np.uint32(bits).view(np.float32)
    if np.isfinite(value):
        number = f"{float(value):.{digits}e}"
        expected = exact_float(number.encode())
        if np.isfinite(expected):
            assert parse(f" 3:{number}".encode())[0][1][3].tobytes() == expected.tobytes()


BAD = [
    (b"3 1:1\n5 2:1\n", "2:1: label id out of range, expected 0..4, got '5'"),
    (b"1,2,99 2:1", "1:5: label id out of range"),
    (b"-1 2:1", "1:1: label id out of range"),
    (b"1,,2 2:1", "1:3: label id expected"),
    (b"1, 2:1", "1:3: label id expected"),
    (b"1,2:1 3:1", "1:3: label id expected"),
    (b"1.5 3:1", "1:1: label id expected"),
    (b"1,4,1 3:1", "1:5: repeated label, got '1'"),
    (b"0 10:1", "1:3: feature id out of range, expected 0..9, got '10:1'"),
    (b"0 -1:1", "1:3: feature id out of range"),
    (b"0 99999999999999999999999:1", "1:3: feature id out of range"),
    (b"0 1:nan", "1:3: value is not finite, got '1:nan'"),
    (b"0 1:-Inf 2:3", "1:3: value is not finite"),
    (b"0 1:infinity", "1:3: value is not finite"),
    (b"0 1:1e39", "1:3: value is too large for a 32-bit float"),
    (b"0 1:-3.5e38", "1:3: value is too large"),
    (b"0 1:1e99999999999999999999", "1:3: value is too large"),
    (b"0 1:2 5:1 1:3", "1:11: repeated feature, got '1:3'"),
    (b"0 1:2 1:3 x", "1:7: repeated feature"),
    (b"0 1:2 x 1:3", "1:7: feature:value expected, got 'x'"),
    (b"0 1", "1:3: feature:value expected, got '1'"),
    (b"0 1:", "1:3: value expected"),
    (b"0 1:1e", "1:3: value expected"),
    (b"0 1:0x10", "1:3: value expected"),
    (b"0 1:1,5", "1:3: value expected"),
    (b"0 1:1:2", "1:3: value expected"),
    (b"0 :1", "1:3: feature id expected"),
    (b"0 a:1", "1:3: feature id expected"),
    (b"0 1 :1", "1:3: feature:value expected"),
    (b"0 1:1\r 2:1", "1:3: value expected"),
    (b"0 1:1\x00", r"1:3: value expected (a decimal number), got '1:1\x00'"),
    (b"0 1:\xff" + b"y" * 99, r"1:3: value expected (a decimal number), got '1:\xff" + "y" * 37 + "...'"),
    (b"\xef\xbb\xbf0 1:1", r"1:1: label id expected (a whole number), got '\xef\xbb\xbf0'"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_errors_name_line_column_and_token(text, message):
    with pytest.raises(ValueError, match="^f:" + re.escape(message)):
        parse(text)
    check_against_reference(text)
    check_against_reference(text + b" \n0 1:1\n" * 3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_error_is_reported_whatever_the_threads(threads):
    good = b"0,1 1:0.5 2:0.25 3:1 9:17\n" * 130_000  # more than three chunks
    lines = good.count(b"\n")
    text = good + b"0 1:oops\n" + good + b"9 1:1\n" + good
    for _ in range(3):
        with pytest.raises(ValueError, match=rf"^f:{lines + 1}:3: value expected"):
            parse(text, threads=threads)


def test_bit_equal_for_any_threads():
    rng = np.random.default_rng(0)
    rows = [
        f"{','.join(map(str, sorted(rng.choice(5, rng.integers(5), replace=False))))} "
        + " ".join(
            f"{f}:{v:.6g}"
            for f, v in zip(rng.permutation(10)[: rng.integers(10)], rng.normal(size=10), strict=False)
        )
        for _ in range(3000)
    ]
    text = ("\n".join(rows * 30)).encode()
    first = _core.parse_text(text, 0, len(text), "f", 1, 0, -1, 10, 5, 0, True, False, False, "point", 1)
    for threads in (2, 3, 8):
        again = _core.parse_text(
            text, 0, len(text), "f", 1, 0, -1, 10, 5, 0, True, False, False, "point", threads
        )
        for a, b in zip(first, again, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    check_against_reference(text[:30_000], threads=2)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255 * 64, 255 * 64 + 1])
@pytest.mark.parametrize("line", [b"", b" 1:2", b"3", b"1,2 7:1 9:0.25", b"3\r", b"\t "])
def test_lengths_around_the_padding_and_the_counters(size, line):
    text = (line + b"\n") * (size // (len(line) + 1)) + b"4 5:1"
    check_against_reference(text)
    check_against_reference(text + b"\n")


TOKENS = st.one_of(
    st.sampled_from(
        [
            "0",
            "4",
            "5",
            "1,2",
            "1,1",
            "3,",
            "1:1",
            "2:0.5",
            "9:1e-3",
            "10:1",
            "x",
            "1:",
            ":",
            "2:nan",
            "\r",
            "#",
            "",
            "2:3e38",
            "-",
        ]
    ),
    st.builds("{}:{}".format, st.integers(0, 10), st.floats(width=32)),
    st.text(alphabet="0123456789.,:+-eE \t\r\nx", max_size=12),
)


@given(
    st.lists(st.lists(TOKENS, max_size=6).map(" ".join), max_size=6).map("\n".join),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1]),
    st.sampled_from([None, 0, 2, 4]),
    st.sampled_from([1, 3]),
)
@settings(max_examples=600, deadline=None)
def test_fuzz_against_the_reference(text, label_field, merge, base, points, threads):
    check_against_reference(
        text.encode(),
        threads=threads,
        label_field=label_field,
        sum_duplicates=merge,
        base=base,
        points=points,
    )


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_fuzz_bytes(text):
    check_against_reference(text)
