"""The process: settings, clients, and uvicorn as the server, with limits on slow and idle clients. I/O."""

import asyncio
import logging
import socket
import ssl
import struct
import sys
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from lethe import logs
from lethe.decoder.process import prepare
from lethe.kube import STRICT, TimeLimits
from lethe.version import version
from lethe_operator.cluster import client
from uvicorn.protocols.http.h11_impl import H11Protocol

from lethe_gateway.app import create_app
from lethe_gateway.guard import HEADER_BYTES
from lethe_gateway.identity.caller import Identity
from lethe_gateway.identity.kubernetes import KubernetesIdentity, OneToken
from lethe_gateway.resources.client import KubeReader, KubeWriter
from lethe_gateway.services import Services
from lethe_gateway.settings import CallerLimits, GatewaySettings, from_environment, with_files
from lethe_gateway.tables.indexed import IndexedTables

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15
# After a signal, requests that are being answered have this long. Streams end.
STOP_SECONDS = 5
# How often the files of the certificate are looked at. An issuer replaces it days before it ends.
RENEW_SECONDS = 30
# Of the kernel, for each connection: what a client that does not read may occupy before it is noticed.
SEND_BUFFER_BYTES = 131_072


def protocol_of(limits: CallerLimits) -> type[asyncio.Protocol]:
    """A protocol that ends connections whose requests come too slowly, and those above the limit."""

    class BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._begin()

        def data_received(self, data: bytes) -> None:
            if self._is_idle:
                self._begin()
            super().data_received(data)

        def handle_events(self) -> None:
            """Also called when an answer is complete and the next request was received before."""
            super().handle_events()
            if not self._is_idle:
                self._stop()
                # The application ends the connection of a client that does not read.
                self.scope["lethe.abort"] = self._reset  # type: ignore[typeddict-unknown-key]

        def _reset(self) -> None:
            """End the connection at once.

            Otherwise the kernel would keep what the client does not read, and the client would not learn of the end before it has
            read all that.
            """
            at_once = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        @property
        def _is_idle(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def _begin(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return BoundedProtocol


def server(app: FastAPI, settings: GatewaySettings) -> uvicorn.Server:
    """The server for an application, not started yet.

    It speaks TLS if the settings name a certificate, and reads that again when it was renewed.
    """
    certificate, key = settings.tls or (None, None)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_of(settings.limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        ssl_certfile=str(certificate) if certificate else None,
        ssl_keyfile=str(key) if key else None,
        timeout_notify=RENEW_SECONDS,
    )
    if settings.tls is not None:
        config.callback_notify = _Renewal(config, settings.tls)
    return _Announcing(config)


class _Renewal:
    """Reads the certificate again when its files have changed. Connections that are open keep the earlier one."""

    def __init__(self, config: uvicorn.Config, files: tuple[Path, Path]) -> None:
        self._config = config
        self._files = files
        self._read = self._times()

    async def __call__(self) -> None:
        seen = self._times()
        if seen == self._read or self._config.ssl is None:
            return
        try:
            # One that does not fit its key changes nothing.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._config.ssl.load_cert_chain(*self._files)
        except OSError as e:  # that of TLS is one, too
            log.warning("the certificate has changed and cannot be read: %s", e)
            return
        self._read = seen
        log.info("the certificate has changed and is used from now on")

    def _times(self) -> tuple[int, ...]:
        """When the files were changed; empty: not all are there."""
        try:
            return tuple(file.stat().st_mtime_ns for file in self._files)
        except OSError:
            return ()


class _Announcing(uvicorn.Server):
    """Logs where it listens: port 0 means any."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for listening in self.servers:
            for bound in listening.sockets:
                log.info("listening on port %d", bound.getsockname()[1])


# A person or a program waits for the answer.
LIMITS: Final = TimeLimits(connect_seconds=2, connect_to_write_seconds=2, read_seconds=8, retries=1)
# Threads that carry out short requests: each may hold a page of an answer in memory. Those that may take minutes have others.
THREADS: Final = 16


def services_of(settings: GatewaySettings) -> Services:
    """Connect.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
        kubernetes.config.ConfigException: There is no configuration of a cluster.
    """
    identity: Identity
    if settings.token_file is not None:
        identity = OneToken(settings.token_file)
    else:
        own = client.connect(LIMITS)
        identity = KubernetesIdentity(own, settings.audiences, settings.identity_seconds)
    of_callers = client.connect_for_callers(LIMITS)
    of_callers.write_query = STRICT
    reader, writer = KubeReader(of_callers), KubeWriter(of_callers)
    return Services(settings, identity, reader, IndexedTables(settings.index_folder, settings.index), writer)


def main() -> None:
    """Serve until SIGTERM or SIGINT, then release the indexes.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
        InvalidBoundaries: The file of boundaries is not valid; the message names the field.
        kubernetes.config.ConfigException: There is no configuration of a cluster.
    """
    settings = with_files(from_environment())
    logs.to_stderr(settings.log_level, settings.log_format)
    access = logging.getLogger("lethe_gateway.access")
    access.propagate = False
    plain = logging.StreamHandler(sys.stdout)
    plain.setFormatter(logging.Formatter("%(message)s"))  # one line of JSON for each request
    access.addHandler(plain)
    for verbose in ("botocore", "urllib3", "uvicorn.error", "asyncio", "pyiceberg"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    log.info("version %s", version())
    services = services_of(settings)
    prepare("lethe.ingest.buffer_files")
    services.metrics.serve(settings.metrics_port)
    try:
        asyncio.run(_serve(create_app(services), settings))
    finally:
        services.followers.close()
        services.tables.close()


async def _serve(app: FastAPI, settings: GatewaySettings) -> None:
    long = settings.uploads.through_at_once + settings.uploads.complete_at_once
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS + long
    await server(app, settings).serve()
