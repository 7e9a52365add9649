"""Which format a file has, and which columns of a table are the texts and the labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from xmc_fast.data._io import plain_suffix

FORMATS = ("auto", "csv", "tsv", "jsonl", "text", "xmc", "libsvm", "libsvm1", "pair", "npz", "parquet")
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
}
TEXT_NAMES = (
    "text",
    "texts",
    "abstract",
    "title",
    "body",
    "content",
    "description",
    "document",
    "question",
    "sentence",
)
LABEL_NAMES = (
    *("label", "labels", "tag", "tags", "subject", "subjects", "category", "categories", "topic", "topics"),
    *("keyword", "keywords", "class", "classes", "target", "target_ind"),
)


def guess_format(path: str, head: bytes) -> str:
    """The format by the ending of the name, else by how the file starts."""
    by_name = _ENDINGS.get(plain_suffix(path))
    if by_name:
        return by_name
    if head[:4] == b"PK\x03\x04":
        return "npz"
    if head[:4] == b"PAR1":
        return "parquet"
    first = next((line for line in head[: 1 << 16].split(b"\n") if line.strip()), b"").rstrip(b"\r")
    if re.match(rb"\s*(\{|\[\s*\{)", head):  # an array is refused by the reader of JSON lines
        return "jsonl"
    if re.fullmatch(rb"[ \t]*\d+[ \t]+\d+[ \t]+\d+[ \t]*", first):
        return "xmc"
    if re.fullmatch(rb"[ \t]*\d+[ \t]+\d+[ \t]*", first) and re.match(rb"[^\n]*\n[ \t]*\d+:[0-9.]", head):
        return "pair"
    if re.fullmatch(rb"(\d+(,\d+)*)?([ \t]+\d+:[0-9.eE+-]+)+[ \t]*(#.*)?", first):
        return "libsvm"
    names = {name.strip(' "').lower() for name in re.split(r"[,;\t|]", first.decode("utf-8", "replace"))}
    if len(names) > 1 and names & {*TEXT_NAMES, *LABEL_NAMES}:
        return "csv"
    return "text"


def guess_separator(header: str) -> str:
    """What separates the fields of a table: the most frequent of ``, ; tab`` outside quotes in its first line."""
    outside = re.sub(r'"[^"]*"', "", header)
    return max((",", ";", "\t"), key=outside.count)


def choose_columns(
    columns: Sequence[str],
    text: str | Sequence[str] | None,
    label: str | bool | None,
    is_text: Callable[[str], bool],
    where: str,
) -> tuple[list[str], str | None]:
    """The columns of texts and of labels: those named, else those with a usual name.

    ``is_text(column)`` says whether a column holds words rather than numbers.
    """
    texts = [text] if isinstance(text, str) else None if text is None else list(text)
    if texts is not None and (not texts or len(set(texts)) < len(texts)):
        raise ValueError(f"text must name distinct columns, got {text!r}")
    for name in [*(texts or ()), *([label] if isinstance(label, str) else ())]:
        if name not in columns and not ("." in name and name.split(".")[0] in columns):
            raise ValueError(f"{where} has no column {name!r}, it has {', '.join(columns)}")
    chosen = label if isinstance(label, str) else None
    if label is None:
        chosen = _only(columns, LABEL_NAMES, set(texts or ()), "label", where)
    if chosen is not None and texts is not None and chosen in texts:
        raise ValueError(f"the column {chosen!r} cannot be text and label")
    if texts is None:
        known = _only(columns, TEXT_NAMES, {chosen}, "text", where)
        if known is None:
            others = [name for name in columns if name != chosen]
            others = [name for name in others if is_text(name)] if len(others) > 1 else others
            if len(others) != 1:
                raise ValueError(
                    f"{where}: which column is the text? Name it with text=; the columns are {', '.join(columns)}"
                )
            known = others[0]
        texts = [known]
    return texts, chosen


def _only(
    columns: Sequence[str], names: tuple[str, ...], used: set[str | None], role: str, where: str
) -> str | None:
    found = [name for name in columns if name.strip().lower() in names and name not in used]
    if len(found) > 1:
        raise ValueError(
            f"{where}: which column is the {role}? Name it with {role}=; it could be {', '.join(found)}"
        )
    return found[0] if found else None
