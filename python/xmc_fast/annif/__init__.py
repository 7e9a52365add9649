"""xmc_fast as a backend of Annif, the tool with which libraries assign subjects; needs ``xmc-fast[annif]``.

Annif has no plug-ins, so the command ``xmc-fast-annif`` adds the backend and then runs Annif's own command line:
``xmc-fast-annif train my-project corpus.tsv``. A project of ``projects.cfg`` asks for it with
``backend=xmc_fast`` and may set the parameters of `XmcFastBackend`.
"""

from annif.backend import _backend_fns

from xmc_fast.annif._backend import XmcFastBackend

__all__ = ["XmcFastBackend", "main", "register"]


def register() -> None:
    """Make the backend known to Annif under its name."""
    _backend_fns[XmcFastBackend.name] = lambda: XmcFastBackend


def main() -> None:
    """The command ``xmc-fast-annif``: Annif's own command line with the backend ``xmc_fast``."""
    register()
    from annif.cli import cli

    cli()
