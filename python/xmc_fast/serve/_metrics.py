"""Counts and times for Prometheus; those of several workers are added up."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The measures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._requests = Counter(
            "xmc_fast_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "xmc_fast_request_seconds",
            "Time of a request",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._rows = Histogram(
            "xmc_fast_batch_texts", "Texts predicted together", buckets=ROWS, registry=registry
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        """Count one prediction."""
        self._rows.observe(rows)

    def text(self) -> bytes:
        """What Prometheus reads."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)
