"""Names found in texts against a reference that goes word by word, and what `Lexical` makes of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from reference import names as reference
from xmc_fast import Lexical, metrics
from xmc_fast.data import read_names
from xmc_fast.lexical import ENDINGS, SPELLINGS
from xmc_fast.lexical._learned import learned_names

ALPHABET = ["tea", "teas", "green", "grüne", "grünen", "iron", "ores", "ore", "der", "Tee", "x", "Ofen"]


def found(model, texts):
    return model._find(model._given(texts))


def random_text(rng, longest):
    words = rng.choice(ALPHABET, rng.integers(0, longest + 1))
    return "".join(f"{word}{rng.choice([' ', ', ', '-'])}" for word in words)


@pytest.mark.parametrize("endings", [(), ENDINGS])
@pytest.mark.parametrize("spellings", [(), SPELLINGS, (("e", "ee"), ("r", ""))])
@pytest.mark.parametrize("fields", [1, 2])
@pytest.mark.parametrize("jobs", [1, 3])
def test_found_names_equal_the_reference(endings, spellings, fields, jobs):
    rng = np.random.default_rng(fields)
    n = 150
    names = [[random_text(rng, 3) for _ in range(rng.integers(0, 4))] for _ in range(40)]
    texts = [[random_text(rng, 12) for _ in range(n)] for _ in range(fields)]
    given = texts[0] if fields == 1 else {"title": texts[0], "body": texts[1]}
    model = Lexical(names, endings=endings, spellings=spellings, learn_names=False, head=4, n_jobs=jobs).fit(
        given, np.ones((n, 40))
    )
    got = found(model, given)
    pairs = [(name, label) for label, some in enumerate(names) for name in some]
    seen = 0
    for row in range(n):
        part = slice(got.indptr[row], got.indptr[row + 1])
        expected = reference.find(pairs, [column[row] for column in texts], endings, 4, spellings)
        assert got.labels[part].tolist() == sorted(expected)
        assert np.stack(got[2:8], axis=1)[part].tolist() == [
            list(expected[label]) for label in sorted(expected)
        ]
        assert got.row_words[row] == sum(len(reference.words(column[row])) for column in texts)
        seen += len(expected)
    assert seen > n


def test_the_longest_name_wins_and_hides_those_inside():
    model = Lexical(["tea", "green tea", "tea house"]).fit(["tea", "x"], np.eye(3)[[0, 1]])
    assert found(model, ["green tea"]).labels.tolist() == [1]
    assert found(model, ["green tea house"]).labels.tolist() == [1, 2]  # they overlap, neither lies inside
    assert found(model, ["green, tea"]).labels.tolist() == [1]
    assert found(model, ["greentea teas"]).labels.tolist() == []  # a root keeps four bytes


def test_german_and_english_words_of_one_origin():
    names = ["Universität", "Physikalische Chemie", "Kommunikation"]
    model = Lexical(names).fit(["tea", "x"], np.zeros((2, 3)))
    assert found(model, ["communication between universities"]).labels.tolist() == [0, 2]
    exact = Lexical(names, spellings=(), endings=()).fit(["tea"], np.zeros((1, 3)))
    assert found(exact, ["universities"]).labels.size == 0


def synthetic(n=600, labels=60, seed=0):
    """Each text names its labels and as many others; a label named in the title is right; the last ten labels have no
    training row."""
    rng = np.random.default_rng(seed)
    names = [f"name{i:03d} word{i % 7}" for i in range(labels)]
    texts, Y = [], np.zeros((n, labels))
    for row in range(n):
        usable = labels if row >= n // 2 else labels - 10
        right, wrong = rng.choice(usable, 2, replace=False)
        filler = " ".join(rng.choice(["and", "other", "things", "happen"], 15))
        texts.append(f"On {names[right]} {filler} {names[wrong]}")
        Y[row, right] = 1
    return names, texts, Y


def test_labels_without_rows_are_suggested_and_the_title_counts():
    names, texts, Y = synthetic()
    model = Lexical(names).fit(texts[:300], Y[:300])
    top = model.predict(texts[300:], 2, proba=True)
    assert metrics.precision_at_k(Y[300:], top, 1) > 0.95
    rows = np.flatnonzero(Y[300:, -10:].any(1))
    assert len(rows) > 30
    assert metrics.precision_at_k(Y[300:][rows], top[rows], 1) > 0.9
    first = top.data[top.indptr[:-1]]
    assert 0.8 < first.mean() <= 1


def test_bits_do_not_depend_on_threads():
    names, texts, Y = synthetic()
    models = [Lexical(names, n_jobs=jobs).fit(texts, Y) for jobs in (1, 2)]
    assert models[0].weights_.tobytes() == models[1].weights_.tobytes()
    tops = [model.predict(texts) for model in models]
    assert tops[0].data.tobytes() == tops[1].data.tobytes()


def test_other_texts_than_in_fit_are_refused():
    model = Lexical(["tea", "iron"]).fit({"title": ["tea", "iron"], "body": ["", ""]}, np.eye(2))
    with pytest.raises(ValueError, match="fields"):
        model.predict(["tea"])
    with pytest.raises(ValueError, match="single string"):
        model.predict("tea")
    with pytest.raises(ValueError, match=r"Y has 2 columns \(labels\), names has 3"):
        Lexical(["a", "b", "c"]).fit(["tea", "iron"], np.eye(2))
    with pytest.raises(ValueError, match="names must hold"):
        Lexical(["a", 3]).fit(["tea", "iron"], np.eye(2))


def test_nothing_to_learn_from():
    model = Lexical(["tea", ""]).fit(["coffee", "milk"], np.eye(2))
    assert model.predict(["coffee"]).nnz == 0
    assert model.predict(["tea"]).indices.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"n_labels": 4}, "other labels"), ({"rows": -1}, "rows"), ({"params": {}}, "damaged")],
)
def test_a_damaged_folder_is_refused(change, message, tmp_path):
    Lexical(["tea", "iron"]).fit(["tea", "iron"], np.eye(2)).save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    (tmp_path / "m/manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(xmc_fast.model.ModelFormatError, match=message):
        xmc_fast.load(tmp_path / "m")


TURTLE = '''@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix ex: <http://ex.org/> .
PREFIX b: <http://b.org/>
# a comment "x"
ex:tea a skos:Concept ; skos:prefLabel "green tea"@en, "Grüner \\"Tee\\""@de ; skos:altLabel """matcha"""@en ;
  skos:broader [ a skos:Concept ; skos:prefLabel "no" ], ex:x.y .
<http://ex.org/steel> skos:altLabel 'Stahl'@de-AT ; skos:prefLabel "steel" ; skos:notation "7"^^<http://t> .
b:z skos:prefLabel "zed\\u0041"@fr ; skos:exactMatch b:q .
[] skos:prefLabel "blank" .
'''
XML = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
  xmlns:skos="http://www.w3.org/2004/02/skos/core#">
<skos:Concept rdf:about="http://ex.org/tea"><skos:altLabel xml:lang="en">matcha</skos:altLabel>
<skos:prefLabel xml:lang="de">Tee</skos:prefLabel><skos:broader rdf:resource="x"/></skos:Concept></rdf:RDF>"""


@pytest.mark.parametrize(
    ("file", "text", "languages", "expected"),
    [
        ("a.tsv", "1\ttea\tmatcha\n\n2\tsteel\r\n1\tTee\ttea\n", None, {"1": ["tea", "matcha", "Tee"], "2": ["steel"]}),
        (
            "a.ttl",
            TURTLE,
            None,
            {
                "http://ex.org/tea": ["green tea", 'Grüner "Tee"', "matcha"],
                "http://ex.org/steel": ["steel", "Stahl"],
                "http://b.org/z": ["zedA"],
            },
        ),
        (
            "a.ttl",
            TURTLE,
            {"de"},
            {"http://ex.org/tea": ['Grüner "Tee"'], "http://ex.org/steel": ["steel", "Stahl"]},
        ),
        ("a.nt", '<e:1> <http://www.w3.org/2004/02/skos/core#prefLabel> "one"@en .\n', None, {"e:1": ["one"]}),
        ("a.rdf", XML, None, {"http://ex.org/tea": ["Tee", "matcha"]}),
    ],
)  # fmt: skip
def test_names_of_a_file(file, text, languages, expected, tmp_path):
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert read_names(tmp_path / file, languages=languages) == expected


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [("a.tsv", "1\ttea\nsteel\n", "a.tsv:2"), ("a.ttl", "a b\n \"open", "a.ttl:2"), ("a.rdf", "<a>", "not XML")],
)  # fmt: skip
def test_files_that_are_none(file, text, message, tmp_path):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_names(tmp_path / file)


def test_sparse_labels_and_columns_of_texts():
    names, texts, Y = synthetic(100)
    column = xmc_fast.data.TextColumn.from_texts(texts)
    a = Lexical(names).fit(column, sp.csr_matrix(Y)).predict(column)
    b = Lexical(names).fit(texts, Y).predict(texts)
    assert (a != b).nnz == 0


def bilingual(n=1200, seed=1):
    """Labels are two German words each, texts name them in German or in English (half of them); the last label has no
    row in the first half."""
    rng = np.random.default_rng(seed)
    pairs = [(i, (i + step) % 30) for i in range(30) for step in (1, 2)]
    texts, Y = [], np.zeros((n, len(pairs)))
    for row in range(n):
        label = rng.integers(0, len(pairs) - (row < n // 2))
        words = [f"{'en' if row % 2 else 'de'}{word}" for word in pairs[label]]
        filler = rng.integers(0, 10**6, 4)
        texts.append(f"{filler[0]} {filler[1]} {words[0]} {words[1]} {filler[2]} {filler[3]}")
        Y[row, label] = 1
    return [f"de{a} de{b}" for a, b in pairs], texts, Y


def test_names_in_another_language_are_learned_also_for_labels_without_rows():
    names, texts, Y = bilingual()
    train = slice(0, 600)
    model = Lexical(names, endings=()).fit(texts[train], Y[train])
    english = np.arange(601, 1200, 2)
    top = model.predict([texts[i] for i in english], 1)
    assert metrics.precision_at_k(Y[english], top, 1) > 0.95
    new = english[Y[english, -1] == 1]
    assert len(new) > 1
    assert metrics.precision_at_k(Y[new], model.predict([texts[i] for i in new], 1), 1) > 0.9
    plain = Lexical(names, endings=(), learn_names=False).fit(texts[train], Y[train])
    assert plain.predict([texts[i] for i in english], 1).nnz == 0


def test_learned_names_are_the_terms_of_the_largest_dice_coefficient():
    texts = ["x tea"] * 4 + ["x ore"] * 4 + ["green tea"] * 2 + [f"z{i} y{i}" for i in range(300)]
    unnamed = np.zeros((310, 2))
    unnamed[:4, 0] = unnamed[8:10, 0] = (
        1  # 6 rows with the label; "tea" in 6, "x tea" in 4, "x" alone is too short
    )
    more, labels = learned_names(texts, sp.csr_matrix(unnamed), ["Tee", "Erz"], np.array([0, 1], np.int32))
    assert labels == [0] * len(labels)
    assert more == ["tea"]  # of the word of its name, which is the label here, too


def test_the_regression_does_not_see_rows_that_names_are_learned_from():
    names, texts, Y = bilingual(200)
    given = []
    model = Lexical(names, learn_names=True)
    model._add_names = lambda columns, unnamed, rows: given.extend(rows) or 0
    model.fit(texts, Y)
    assert len(given) == 160  # four of five folds
