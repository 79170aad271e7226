"""Prometheus metrics of the gateway: requests by declared route. I/O: a port.

The port is not that of the API, so a client that reads metrics needs no token, and a client of the API cannot read them.
"""

from typing import Final

from lethe.metrics_server import serve_metrics
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

# Bounds of the histogram, in seconds.
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics:
    """One per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "lethe_gateway_requests_total",
            "Requests by declared route, method and status of the answer (0: the connection ended without one).",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "lethe_gateway_request_duration_seconds",
            "Seconds from a request to the end of its answer, by declared route.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route`: as declared; "": no route matched."""
        self._requests.labels(route or "none", method, str(status)).inc()
        self._seconds.labels(route or "none").observe(seconds)

    def serve(self, port: int | None) -> None:
        """Serve `/metrics` on a port, in a thread; None: do not. Raises: OSError, if the port is in use."""
        if port is not None:
            serve_metrics(port, self.registry)
