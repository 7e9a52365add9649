"""The command line: ``xmc-fast COMMAND``. One module per command; each declares its options and runs."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from xmc_fast import __version__
from xmc_fast.cli._common import Output, UsageError, note

COMMANDS = (
    *("demo", "train", "tag", "predict", "evaluate", "explain"),
    *("update", "tune", "info", "compress", "convert", "plot", "merge", "status", "serve"),
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line as an argparse parser."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = argparse.ArgumentParser(
        prog="xmc-fast", description="Extreme multi-label classification, fast and exact."
    )
    parser.add_argument("--version", action="version", version=f"xmc-fast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"xmc_fast.cli.{name}")
        sub = commands.add_parser(
            name,
            parents=[common],
            help=module.HELP,
            description=module.HELP,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(sub)
        sub.set_defaults(run=module.run, parser=sub)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command; an unknown option is an error that names the command and the nearest option."""
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        options = [o for action in args.parser._actions for o in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], options, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        args.parser.exit(
            2,
            f"{args.parser.prog}: error: unknown argument {unknown[0]}{hint} (see {args.parser.prog} --help)\n",
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 an error (one line on stderr), 2 wrong usage.

    Ctrl-C is left to the caller (``xmc_fast.__main__``).
    """
    args = parse(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_note  # type: ignore[assignment]
            output: Output = args.run(args)
        if output.data is not None:  # None: the result itself went to standard output
            text = json.dumps(output.data, indent=1, ensure_ascii=False) if args.json else output.text
            print(text, flush=True)
        return 0
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        if args.debug:
            raise
        print(f"xmc-fast {args.command}: error: {_message(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _message(error: Exception) -> str:
    """One line: "file: what is wrong" for errors of the system, else what the error says."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _show_note(message: Warning | str, *_: Any) -> None:
    note(str(message))
