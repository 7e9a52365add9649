"""``python -m xmc_fast`` is the command line."""

import sys

from xmc_fast.cli import main

sys.exit(main())
