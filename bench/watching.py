"""Watches of the API server that cost little: one JSON document per event, and nothing else. I/O."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import kubernetes.client
import urllib3
from lethe.kube import ResourceKind

WATCH_SECONDS: Final = 60
PIECE: Final = 1 << 16
Event = tuple[str, dict[str, Any]]


def watch(
    kind: ResourceKind, namespace: str, closed: threading.Event, labels: str = "", fields: str = ""
) -> Iterator[Event]:
    """Events of objects, first of those that exist, until `closed` is set. After an interruption it begins again, so that an
    object may be reported twice. It uses the default configuration of the client."""
    pool = _pool()
    selectors = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
    version = ""
    while not closed.is_set():
        query = {"watch": "1", "timeoutSeconds": str(WATCH_SECONDS), "allowWatchBookmarks": "true", **selectors}
        if version:
            query["resourceVersion"] = version
        try:
            for event in _events(pool, f"{kind.path(namespace)}?{urlencode(query)}"):
                if event["type"] == "ERROR":
                    version = ""
                    break
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
                if closed.is_set():
                    return
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError):
            version = ""
            time.sleep(0.5)


def _events(pool: urllib3.PoolManager, path: str) -> Iterator[dict[str, Any]]:
    """The events of one request."""
    url = kubernetes.client.Configuration.get_default_copy().host + path
    response = pool.request("GET", url, preload_content=False, headers={"Accept": "application/json"})
    try:
        if response.status != 200:
            raise OSError(f"{path}: {response.status}")
        rest = b""
        for piece in response.stream(PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(json.loads, lines)
    finally:
        response.close()


def _pool() -> urllib3.PoolManager:
    found = kubernetes.client.Configuration.get_default_copy()
    timeout = urllib3.Timeout(connect=5, read=WATCH_SECONDS + 30)
    files = {"ca_certs": found.ssl_ca_cert, "cert_file": found.cert_file, "key_file": found.key_file}
    return urllib3.PoolManager(num_pools=1, maxsize=4, timeout=timeout, retries=False, **files)
