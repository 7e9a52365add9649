"""Writes docs/api/cli.md from the parsers of the command line: `python docs/_tools/cli_page.py`.

`tests/test_docs.py` compares the page with the parsers.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from xmc_fast.cli import COMMANDS, build_parser

PAGE = Path(__file__).parents[1] / "api" / "cli.md"
HEAD = """# Command line

Written by `python docs/_tools/cli_page.py` from the parsers; `xmc-fast COMMAND --help` prints the same.

Every command takes `--json` (print the result as JSON) and `--debug` (show the traceback of an error). The exit code
is 0 on success, 1 for an error (one line on stderr), 2 for wrong usage and 130 after Ctrl-C. `python -m xmc_fast` is
the same as `xmc-fast`.
"""
COMMON = ("--json", "--debug", "--help")


def page() -> str:
    """The text of the page."""
    parser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return "\n".join([HEAD, *(section(name, commands.choices[name]) for name in COMMANDS)])


def section(name: str, parser: argparse.ArgumentParser) -> str:
    module = importlib.import_module(f"xmc_fast.cli.{name}")
    actions = [
        a for a in parser._actions if a.help != argparse.SUPPRESS and not set(a.option_strings) & set(COMMON)
    ]
    usage = " ".join(["xmc-fast", name, "[options]", *(value(a) for a in actions if not a.option_strings)])
    examples = "\n".join(f"$ {line}" for line in module.EXAMPLES)
    rows = "\n".join(row(a, parser) for a in actions)
    said = module.HELP[0].upper() + module.HELP[1:]
    return f"## {name}\n\n{said}.\n\n```text\n{usage}\n```\n\n```console\n{examples}\n```\n\n{rows}\n"


def value(action: argparse.Action) -> str:
    """The value of an argument as usage lines write it."""
    if action.choices and not action.metavar:
        return action.dest.upper()
    shown = action.metavar or action.dest.upper()
    shown = " ".join(shown) if isinstance(shown, tuple) else shown
    return {"+": f"{shown} ...", "*": f"[{shown} ...]", "?": f"[{shown}]"}.get(str(action.nargs), shown)


def row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """One line of the list; a default appears where the help does not name it."""
    names = ", ".join(action.option_strings)
    if not names:
        names = value(action)
    elif action.nargs != 0:
        names += f" {value(action)}"
    meaning = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices:
        meaning += (
            f"{'; one of ' if meaning else 'one of '}{', '.join(f'`{choice}`' for choice in action.choices)}"
        )
    if action.default not in (None, False, argparse.SUPPRESS) and "default" not in meaning:
        meaning += f"{' ' if meaning else ''}(default {action.default})"
    return f"- `{names}`{': ' if meaning else ''}{meaning}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
