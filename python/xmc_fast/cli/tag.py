"""``xmc-fast tag``: suggestions for a text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from xmc_fast._files import write_text
from xmc_fast.cli._common import Output, UsageError, add_model, add_threads, positive
from xmc_fast.cli._models import open_model

HELP = "suggest labels for texts: given on the command line, in files, or one per line on standard input"
EXAMPLES = (
    'xmc-fast tag model/ "how long do eggs keep?"',
    "xmc-fast tag model/ --file letter.txt --threshold 0.3       # a file is one text",
    "head -3 texts.txt | xmc-fast tag model/ --json",
    'xmc-fast tag model/ "how long do eggs keep?" --explain --html why.html',
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts (default: lines of standard input)")
    parser.add_argument("--file", nargs="+", default=[], metavar="FILE", help="files, each of them one text")
    parser.add_argument("-k", type=positive, help="most labels per text (default: the model's rule, else 5)")
    parser.add_argument("--threshold", type=float, metavar="P", help="leave out labels of lower probability")
    parser.add_argument("--explain", action="store_true", help="show which words each label comes from")
    parser.add_argument("--html", metavar="FILE", help="write the explanations there, with the words marked")
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.texts import TextClassifier

    model = open_model(args.model, args.threads)
    if not isinstance(model, TextClassifier):
        raise UsageError(f"{args.model} is not a text model: use xmc-fast predict MODEL DATA OUT")
    texts = [*args.texts, *(Path(path).read_text(encoding="utf-8") for path in args.file)]
    if not texts:
        texts = [line.rstrip("\r\n") for line in sys.stdin]
    best = model.predict(texts, args.k, threshold=args.threshold)
    known = model.known_terms(texts).tolist()
    explained = args.explain or args.html
    why = [
        [model.explain(text, s.label) for s in found] if explained else []
        for text, found in zip(texts, best, strict=True)
    ]
    if args.html:
        write_text(args.html, page([e for row in why for e in row]))
    rows: list[dict[str, Any]] = [
        {"text": text, "known_terms": count, "suggestions": [s._asdict() for s in found]}
        | ({"explanations": [e.to_dict() for e in reasons]} if explained else {})
        for text, count, found, reasons in zip(texts, known, best, why, strict=True)
    ]
    lines = []
    for text, count, found, reasons in zip(texts, known, best, why, strict=True):
        lines += [shorten(text)] if len(texts) > 1 else []
        lines += [f"  {s.probability:6.3f}  {s.label}" for s in found]
        if not found:
            lines.append("  no suggestion: " + ("below the threshold" if count else "no known word"))
        lines += [line for e in reasons if args.explain for line in ["", *str(e).splitlines()]]
    return Output("\n".join(lines), rows)


def shorten(text: str, width: int = 76) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 4] + " ..."


def page(explanations: list[Any]) -> str:
    """An HTML page of explanations."""
    body = "\n".join(e.to_html() for e in explanations)
    head = '<!doctype html><html><head><meta charset="utf-8"><title>Why these labels</title></head>'
    return f"{head}<body>\n{body}\n</body></html>\n"
