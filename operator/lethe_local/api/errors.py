"""Answers of the API that are errors, as the Kubernetes API server gives them. Pure."""

from typing import Any


class ApiError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def document(self) -> dict[str, Any]:
        """The body of the answer: an object of kind Status."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }


def not_found(kind: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind} "{name}" not found')


def already_exists(kind: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind} "{name}" already exists')


def conflict(kind: str, name: str, why: str) -> ApiError:
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}')


def expired(version: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {version}")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def invalid(message: str) -> ApiError:
    return ApiError(422, "Invalid", message)


def unavailable(message: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", message)
