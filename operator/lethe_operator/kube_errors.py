"""The errors of requests to the Kubernetes API. Pure."""

import json


class KubeError(Exception):
    """The API server rejected a request, or did not answer (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(KubeError):
    """The object does not exist. A delete treats this as success."""


class AlreadyExists(KubeError):
    """An object of this name exists. Read it: this operator may have created it before a crash."""


class Conflict(KubeError):
    """The object has changed since it was read. Read it again."""


class Refused(KubeError):
    """Rights, quota, admission or validation forbid the request. An immediate retry does not help."""


class Away(KubeError):
    """No answer, or one that asks to retry later."""


def error_of(status: int, content: bytes, request: str) -> KubeError:
    """The error for an answer with a status of 300 or more."""
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    reason = str(document.get("reason") or status) if isinstance(document, dict) else str(status)
    message = f"{request}: {document.get('message', '') if isinstance(document, dict) else ''}"
    if status == 404:
        return NotFound(status, reason, message)
    if status == 409:
        return (
            AlreadyExists(status, reason, message) if reason == "AlreadyExists" else Conflict(status, reason, message)
        )
    if status in (400, 401, 403, 405, 413, 422):
        return Refused(status, reason, message)
    return Away(status, reason, message)
