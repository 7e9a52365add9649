"""Starting uvicorn with the application and its workers."""

from __future__ import annotations

import logging
import os
import tempfile

import uvicorn

from xmc_fast.serve._settings import Settings

GRACE = 30  # seconds that running requests get when the server is stopped


def run(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 8000, workers: int = 1, quiet: bool = False
) -> None:
    """Serve until stopped: SIGTERM or Ctrl-C ends it after the running requests. See `create_app`.

    ``workers`` are processes; one that dies is started anew.
    """
    settings.to_environment()
    with tempfile.TemporaryDirectory(prefix="xmc-fast-metrics-") as folder:
        if workers > 1:  # where prometheus_client adds up the workers' counts
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run(
            "xmc_fast.serve:app_from_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            access_log=False,  # it would write queries; ours writes routes, see Guards
            log_config=log_config(logging.WARNING if quiet else logging.INFO),
            server_header=False,
            proxy_headers=False,  # nothing looks at who asks
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE,
        )


def log_config(level: int) -> dict[str, object]:
    """Lines on stderr: time, level, message."""
    own = {"handlers": ["stderr"], "level": level, "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {"uvicorn": own, "xmc_fast.serve": own},
    }
