"""Suggestions over HTTP: an API for programs and a page for people; needs ``xmc-fast[serve]``.

``xmc-fast serve model/`` starts it; `create_app` gives the ASGI application to other servers and to tests.
"""

from xmc_fast.serve._app import app_from_environment, create_app
from xmc_fast.serve._run import run
from xmc_fast.serve._settings import Settings, model_folders

__all__ = ["Settings", "app_from_environment", "create_app", "model_folders", "run"]
