"""Names and synonyms of labels: a table, or a thesaurus in SKOS."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from xmc_fast.data._io import Path, file_name, open_binary, plain_suffix

_SKOS = "http://www.w3.org/2004/02/skos/core#"
_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_ORDER = ("prefLabel", "altLabel", "hiddenLabel")
# A literal with its language or type, an IRI, a prefixed name, a mark; comments and white space are passed over.
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>\"{3}(?:[^"\\]|\\.|"(?!""))*\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
     (?:@(?P<language>[A-Za-z][A-Za-z0-9-]*)|\^\^(?:<[^>]*>|[\w.:-]+))?
    |<(?P<iri>[^>]*)>|(?P<mark>[;,.\[\]()])(?!\w)|(?P<word>@?[\w%-]*(?::[\w%.-]*[\w%-]|:)?)""",
    re.X | re.S,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.S)


class _Name(NamedTuple):
    concept: str
    kind: str  # of _ORDER
    text: str
    language: str


def read_names(path: Path, *, languages: Collection[str] | None = None) -> dict[str, list[str]]:
    """Names of labels, the preferred one first, from a table or a thesaurus.

    Parameters
    ----------
    path : str or path
        ``.ttl`` and ``.nt``: SKOS in Turtle or N-Triples; ``.rdf`` and ``.xml``: SKOS in RDF/XML; anything else: a
        table of lines ``id TAB name TAB name ...``, where an id may have several lines. Plain, ``.gz``, ``.xz`` or
        ``.zst``. Of SKOS prefLabel, altLabel and hiddenLabel are read, whose subjects are written as in the file
        (prefixes are put in).
    languages : collection of str, optional
        Of SKOS keep names of these languages (``de``, ``en``) and those without one.

    Returns
    -------
    dict
        id -> names, each name once, in the order of the file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "names.tsv"
    >>> _ = path.write_text("t1\\tgreen tea\\tmatcha\\nt2\\tsteel\\n")
    >>> read_names(path)
    {'t1': ['green tea', 'matcha'], 't2': ['steel']}
    """
    with open_binary(path) as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file_name(path)}: not UTF-8: {error}") from None
    suffix = plain_suffix(path)
    if suffix in (".ttl", ".nt"):
        found = _turtle(text, file_name(path))
    elif suffix in (".rdf", ".xml"):
        found = _rdf_xml(raw, file_name(path))
    else:
        return _table(text, file_name(path))
    kept: dict[str, dict[str, dict[str, None]]] = {}
    for name in found:
        wanted = languages is None or not name.language or name.language.split("-")[0] in languages
        if name.text and wanted:
            kept.setdefault(name.concept, {kind: {} for kind in _ORDER})[name.kind][name.text] = None
    return {
        concept: list(dict.fromkeys(text for kind in _ORDER for text in kinds[kind]))
        for concept, kinds in kept.items()
    }


def _table(text: str, name: str) -> dict[str, list[str]]:
    out: dict[str, dict[str, None]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        label, tab, names = line.rstrip("\r").partition("\t")
        if not line.strip():
            continue
        if not tab:
            raise ValueError(f"{name}:{number}: a line must be an id, a tab and a name, got {line[:60]!r}")
        out.setdefault(label, {}).update(dict.fromkeys(n.strip() for n in names.split("\t") if n.strip()))
    return {label: list(names) for label, names in out.items()}


def _rdf_xml(raw: bytes, name: str) -> Iterator[_Name]:
    try:
        root = ElementTree.fromstring(raw)
    except ElementTree.ParseError as error:
        raise ValueError(f"{name}: not XML: {error}") from None
    for concept in root.iter():
        about = concept.get(f"{_RDF}about")
        for child in concept if about else ():
            namespace, _, kind = child.tag[1:].partition("}")
            if namespace == _SKOS and kind in _ORDER and child.text:
                language = child.get("{http://www.w3.org/XML/1998/namespace}lang", "")
                yield _Name(about or "", kind, child.text.strip(), language)


def _turtle(text: str, name: str) -> Iterator[_Name]:
    """Triples whose object is a name; blank nodes and lists are passed over."""
    prefixes: dict[str, str] = {}
    at, depth = 0, 0
    terms: list[str] = []  # subject and predicate so far

    def wrong() -> ValueError:
        line = text.count("\n", 0, at) + 1
        return ValueError(f"{name}:{line}: not Turtle at {text[at : at + 40]!r}")

    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at or (not depth and match["mark"] in ("]", ")")):
            raise wrong()
        before, at = at, match.end()
        mark, literal, iri, word = match["mark"], match["text"], match["iri"], match["word"]
        if mark in ("[", "("):
            depth += 1
        elif mark in ("]", ")"):
            depth -= 1
            if not depth and not terms:
                terms = [""]  # a blank node as subject
        elif depth:
            continue
        elif mark == ".":
            terms = []
        elif mark == ";":
            del terms[1:]
        elif literal is not None:
            kind = terms[1].removeprefix(_SKOS) if len(terms) > 1 else ""
            if kind in _ORDER and terms[0]:  # a blank node is no label
                found = _unquoted(literal)
                if found is None:
                    at = before
                    raise wrong()
                yield _Name(terms[0], kind, found, match["language"] or "")
        elif iri is not None or word:
            if terms and terms[0].lower() in ("@prefix", "prefix"):
                if iri is None:
                    terms.append(word[:-1])
                else:
                    prefixes[terms[-1]] = iri
                    terms = terms if terms[0].startswith("@") else []  # "PREFIX a: <b>" has no full stop
                continue
            prefix, colon, rest = (word or "").partition(":")
            term = prefixes.get(prefix, prefix + ":") + rest if colon else word
            if len(terms) < 2:
                terms.append(iri if iri is not None else term)
    if depth or terms:
        raise ValueError(f"{name}: cut short, its last statement does not end")


def _unquoted(literal: str) -> str | None:
    """The text of a literal, None if it has a code that no character has."""
    quotes = 3 if literal[:3] in ('"""', "'''") else 1
    short = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f"}

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] not in "uU" or len(code) == 1:
            return short.get(code, code)
        number = int(code[1:], 16)
        if number > sys.maxunicode or 0xD800 <= number < 0xE000:
            raise ValueError
        return chr(number)

    try:
        return _ESCAPE.sub(character, literal[quotes:-quotes]).strip()
    except ValueError:
        return None
