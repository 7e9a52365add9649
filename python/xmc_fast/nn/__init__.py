"""Neural models and building blocks. Needs torch: ``pip install 'xmc-fast[nn]'``."""
