"""The process: settings, clients, the server. I/O."""

import asyncio
import logging
import sys
from typing import Final

import anyio.to_thread
from fastapi import FastAPI
from lethe import logs
from lethe.decoder.process import prepare
from lethe.kube import TimeLimits
from lethe.version import version
from lethe_operator.cluster import client as kubernetes

from lethe_gateway.app import create_app
from lethe_gateway.identity.caller import Identity
from lethe_gateway.identity.kubernetes import KubernetesIdentity, OneToken
from lethe_gateway.resources.client import KubeReader, KubeWriter
from lethe_gateway.server import server
from lethe_gateway.services import Services
from lethe_gateway.settings import GatewaySettings, from_environment, with_files
from lethe_gateway.tables.indexed import IndexedTables

log = logging.getLogger(__name__)

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
        own = kubernetes.connect(LIMITS)
        identity = KubernetesIdentity(own, settings.audiences, settings.identity_seconds)
    of_callers = kubernetes.connect_for_callers(LIMITS)
    reader, writer = KubeReader(of_callers), KubeWriter(of_callers)
    return Services(settings, identity, reader, IndexedTables(settings.index_folder, settings.index), writer)


def main() -> None:
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
        services.tables.close()


async def _serve(app: FastAPI, settings: GatewaySettings) -> None:
    long = settings.uploads.through_at_once + settings.uploads.complete_at_once
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS + long
    await server(app, settings).serve()
