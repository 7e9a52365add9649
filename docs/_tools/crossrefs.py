"""Docstrings as the site shows them: an extension of griffe, which reads the package.

Docstrings write `OneVsAll` or `SparseModel.load` between single backticks, which reads well in a terminal. Where such
a name can be found from the place of the docstring, the site links it to its entry; parameters and literals stand
between double backticks and stay as they are. Doctests outside a section "Examples" become blocks of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAME = re.compile(r"(?<![`\w:])`([A-Za-z_]\w*(?:\.\w+)*)(\(\))?`(?!`)")
DOCTEST = re.compile(r"^( *)>>> .*?(?=^\s*$|\Z)", re.S | re.M)


class CrossReferences(griffe.Extension):
    """Rewrites the docstrings of a package when all its modules are read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        visit(pkg, pkg)


def visit(found: Any, package: griffe.Module) -> None:
    if found.docstring is not None:
        text = NAME.sub(lambda match: link(match, found, package), found.docstring.value)
        if not re.search(r"^Examples?\n-+$", text, re.M):
            text = DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
        found.docstring.value = re.sub(r"::$", ":", text, flags=re.M)  # before indented code
    for member in found.members.values():
        if not member.is_alias:
            visit(member, package)


def link(match: re.Match[str], place: Any, package: griffe.Module) -> str:
    """A link that is plain code where the site has no entry of that name."""
    path = resolve(match[1], place, package)
    shown = f"<code>{match[1]}{match[2] or ''}</code>"
    return f'<autoref optional identifier="{path}">{shown}</autoref>' if path else match[0]


def resolve(name: str, place: Any, package: griffe.Module) -> str | None:
    """The full path of a name as seen from `place`, or None."""
    if name == package.name or name.startswith(f"{package.name}."):
        return name
    first, _, rest = name.partition(".")
    try:
        path = place.resolve(first)
    except (griffe.NameResolutionError, griffe.AliasResolutionError):
        return None
    path = f"{path}.{rest}" if rest else path
    return path if path.startswith(f"{package.name}.") and "(" not in path else None
