"""Serves Prometheus metrics, with the limits of `lethe.http_server`. I/O: a port, threads."""

import gzip
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from lethe.http_server import BoundedHandler, BoundedServer, ClientLimits, Rejected, start


def serve_metrics(port: int, registry: CollectorRegistry, host: str = "") -> BoundedServer:
    """Serve Prometheus metrics on a port, in a thread.

    Args:
        host: "": all addresses, of IPv4 and of IPv6.

    Raises:
        OSError: The port is in use.
    """

    class Handler(BoundedHandler):
        limits = ClientLimits(connections=32, header_bytes=16_384)

        def authorize(self) -> None:
            """Metrics need no token: they are on a port of their own."""

        def answer(self, body: bytes) -> None:  # noqa: ARG002
            if self.command not in ("GET", "HEAD"):
                raise Rejected(405, "MethodNotAllowed", "metrics can only be read")
            metric_names = parse_qs(urlsplit(self.path).query).get("name[]")
            encode, media_type = choose_encoder(self.headers.get("Accept", ""))
            content = encode(registry.restricted_registry(metric_names) if metric_names else registry)
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                self.send(200, media_type, gzip.compress(content), {"Content-Encoding": "gzip"})
            else:
                self.send(200, media_type, content)

        def reject(self, rejected: Rejected) -> None:
            self.send(rejected.status, "text/plain; charset=utf-8", f"{rejected.message}\n".encode())

    server = BoundedServer((host, port), Handler)
    start(server, "metrics")
    return server
