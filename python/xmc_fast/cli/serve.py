"""``xmc-fast serve``: models over HTTP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from xmc_fast.cli._common import Output, UsageError, add_threads, note, positive

HELP = "serve text models over HTTP: an API for programs, a page for people"
EXAMPLES = (
    "xmc-fast serve model/                                  # then open http://127.0.0.1:8000",
    "xmc-fast serve cooking=models/a gnd=models/b --port 9000 --workers 4",
    "xmc-fast serve model/ --host 0.0.0.0 --allow-host tags.example.org --token-file token.txt",
)
MOST_PORT = 65535
LOCAL = ("127.0.0.1", "::1", "localhost")


def port(text: str) -> int:
    """The number of a port, as argparse's ``type``; a larger one would be taken modulo 2^16."""
    number = positive(text)
    if number > MOST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to {MOST_PORT}, got {text!r}")
    return number


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="folders of text models, FOLDER or NAME=FOLDER"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (default 8000)")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="requests need the token in this file (or in the variable XMC_FAST_TOKEN)",
    )
    parser.add_argument(
        "--allow-host",
        nargs="+",
        default=[],
        metavar="NAME",
        help="host names of requests besides localhost and --host",
    )
    parser.add_argument(
        "--cors",
        nargs="+",
        default=[],
        metavar="URL",
        help="origins whose pages may call the API (default none)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-body", type=positive, default=10_000_000, metavar="BYTES", help="of a request")
    limits.add_argument(
        "--max-upload", type=positive, default=100_000_000, metavar="BYTES", help="of a table"
    )
    limits.add_argument("--max-batch", type=positive, default=1000, metavar="N", help="texts of a request")
    limits.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds of a request (default 30)"
    )
    parser.add_argument(
        "--mmap", action="store_true", help="map the weights: workers share them, files must not be cut short"
    )
    parser.add_argument("--quiet", action="store_true", help="log warnings and errors only")
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast._folder import kind_of, load, read_any_manifest

    try:
        from xmc_fast import serve
    except ImportError as error:
        raise ImportError(f"{error.name} is missing: pip install 'xmc-fast[serve]'") from None
    folders = serve.model_folders(args.models)
    for folder in folders.values():  # before any worker starts
        if not kind_of(read_any_manifest(folder)[1]).startswith("text"):
            raise UsageError(f"{folder} is not a text model: only those can be served")
        if args.workers > 1:  # one that cannot open it would be started again and again
            load(folder)
    token = os.environ.get("XMC_FAST_TOKEN")
    if args.token_file:
        token = Path(args.token_file).read_text(encoding="utf-8").strip()
    if args.token_file and not token:
        raise UsageError(f"{args.token_file} is empty: it must hold the token")
    if args.host not in LOCAL and not token:
        note(f"everyone who reaches {args.host} can use this server: --token-file asks for a token")
    settings = serve.Settings(
        models={name: os.path.abspath(folder) for name, folder in folders.items()},
        token=token,
        hosts=[args.host, *args.allow_host],
        origins=args.cors,
        max_body=args.max_body,
        max_upload=args.max_upload,
        max_batch=args.max_batch,
        timeout=args.timeout,
        threads=args.threads,
        mmap=args.mmap,
    )
    serve.run(settings, host=args.host, port=args.port, workers=args.workers, quiet=args.quiet)
    return Output("stopped", {"stopped": True})
