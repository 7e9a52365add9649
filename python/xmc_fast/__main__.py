"""``python -m xmc_fast`` and ``xmc-fast``: the command line, quiet on Ctrl-C from the first import on."""

import sys


def main() -> int:
    """Run the command line; returns its exit code (130 when interrupted)."""
    try:
        from xmc_fast import cli

        return cli.main()
    except KeyboardInterrupt:
        print("xmc-fast: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
