"""``python -m xmc_fast.annif``: the command ``xmc-fast-annif``."""

from xmc_fast.annif import main

main()
