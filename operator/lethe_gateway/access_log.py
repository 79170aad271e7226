"""One line of JSON for each request, without tokens, values of the query, batch ids or names of people.

The line names the route as it is declared, such as /v1/namespaces/{namespace}/datasets, the namespace, and the Dataset and
Restatement of the path. A caller appears as a
keyed digest that is different in each process, so lines of one caller can be counted, and no caller can be named.
"""

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

log = logging.getLogger("lethe_gateway.access")
_KEY: Final = os.urandom(16)


@dataclass
class LoggedRequest:
    """What the line says. The parts fill it in."""

    method: str
    route: str = ""
    """As declared; "": no route matched."""
    namespace: str = ""
    caller: str = ""
    """A key of the caller, which the line does not contain; "": not known."""
    status: int = 0
    """0: the connection ended without an answer."""
    problem: str = ""
    """The type of the problem; "": there is none."""
    seconds: float = 0
    sent_bytes: int = 0
    dataset: str = ""
    """In the path."""
    restatement: str = ""
    """In the path."""


def line(request: LoggedRequest, now: datetime) -> str:
    """Pure, apart from the key of the process."""
    entry = {
        "time": now.astimezone(UTC).isoformat(timespec="milliseconds"),
        "method": request.method,
        "route": request.route or "none",
        "namespace": request.namespace or None,
        "dataset": request.dataset or None,
        "restatement": request.restatement or None,
        "caller": _digest(request.caller) if request.caller else None,
        "status": request.status,
        "problem": request.problem or None,
        "seconds": round(request.seconds, 4),
        "bytes": request.sent_bytes,
    }
    return json.dumps({k: v for k, v in entry.items() if v is not None})


def write(request: LoggedRequest) -> None:
    """Write the line of a request, with the current time, to the logger `lethe_gateway.access`."""
    log.info("%s", line(request, datetime.now(UTC)))


def _digest(caller: str) -> str:
    return hashlib.blake2b(caller.encode(), digest_size=6, key=_KEY).hexdigest()
