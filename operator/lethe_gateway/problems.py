"""What goes wrong, as RFC 9457 problem documents with stable types. Pure.

`type` identifies a problem for programs and never changes. `detail` says what was found and what to do. Neither contains a
token, a query value or a row.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "https://lethe.dev/problems/"


class Kind(Enum):
    """A type of problem: its name in the type URI, the status of the answer, and a title."""

    INVALID_REQUEST = "invalid-request", 400, "The request is invalid"
    INVALID_CURSOR = "invalid-cursor", 400, "The cursor is invalid"
    UNAUTHENTICATED = "unauthenticated", 401, "The token is missing or invalid"
    FORBIDDEN = "forbidden", 403, "You may not do this"
    NOT_FOUND = "not-found", 404, "There is no such thing, or you may not see it"
    METHOD_NOT_ALLOWED = "method-not-allowed", 405, "The method is not supported here"
    BODY_TOO_SLOW = "body-too-slow", 408, "The body came too slowly"
    NO_TABLE = "no-table", 409, "The Dataset has no table yet"
    NOT_TRACKED = "not-tracked", 409, "The Dataset has no table of batches"
    TABLE_UNREADABLE = "table-unreadable", 409, "The table cannot be read"
    BUFFER_UNUSABLE = "buffer-unusable", 409, "The gateway may not write into this buffer"
    ALREADY_EXISTS = "already-exists", 409, "A resource of this name exists"
    UPLOAD_CONFLICT = "upload-conflict", 409, "Another upload has this batch id"
    UPLOAD_ENDED = "upload-ended", 409, "The upload has ended"
    UPLOAD_INCOMPLETE = "upload-incomplete", 409, "Files of the upload are missing or differ"
    BATCH_ID_USED = "batch-id-used", 409, "The batch id is used"
    CURSOR_EXPIRED = "cursor-expired", 410, "The cursor has expired"
    BODY_TOO_LARGE = "body-too-large", 413, "The body is too large"
    HEADERS_TOO_LARGE = "headers-too-large", 431, "The headers are too large"
    BATCH_REFUSED = "batch-refused", 422, "A consolidation would refuse the batch"
    REJECTED = "rejected", 422, "The API server rejects the change"
    CONTENT_DIFFERS = "content-differs", 422, "The content is not what was announced"
    TOO_MANY_REQUESTS = "too-many-requests", 429, "Too many requests"
    INTERNAL = "internal", 500, "The gateway failed"
    API_SERVER_AWAY = "api-server-away", 503, "The API server does not answer"
    CATALOG_AWAY = "catalog-away", 503, "The catalog or the store does not answer"
    INDEX_BUILDING = "index-building", 503, "The index of batches is being built"
    OVERLOADED = "overloaded", 503, "The gateway is overloaded"
    TIMED_OUT = "timed-out", 503, "The request took too long"

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title

    @property
    def type(self) -> str:
        """The URI that identifies this type of problem in documents: TYPE_PREFIX and the slug."""
        return f"{TYPE_PREFIX}{self.slug}"


class FieldError(BaseModel):
    """What is wrong with one parameter."""

    field: str = Field(description="The parameter, such as query.limit, or the path of a file.")
    pointer: str | None = Field(
        default=None,
        description="Where the value is in the body, as a JSON Pointer (RFC 6901), such as #/files/0/size.",
    )
    message: str = Field(description="What was expected.")


def field_error(location: Sequence[str | int], message: str) -> FieldError:
    """What is wrong with one parameter.

    Args:
        location: Where it is: query, path, header or body, and the names and indexes below.
    """
    pointer = None
    if location and location[0] == "body":
        parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location[1:]]
        pointer = "#" + "".join(f"/{part}" for part in parts)
    return FieldError(field=".".join(map(str, location)), pointer=pointer, message=message)


class ProblemDocument(BaseModel):
    """A problem, as RFC 9457 defines it."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(description="Identifies the type of the problem. docs/gateway.md lists the types.")
    title: str = Field(description="The type, in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What was found, and what to do.")
    errors: list[FieldError] | None = Field(default=None, description="The invalid parameters, or the files concerned.")


class Problem(Exception):
    """A request that is answered with a problem document."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        errors: tuple[FieldError, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{kind.slug}: {detail}")
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.retry_after_seconds = retry_after_seconds

    @property
    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        problem = ProblemDocument(
            type=self.kind.type,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            errors=list(self.errors) or None,
        )
        return problem.model_dump(exclude_none=True)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer besides its type."""
        headers = {"Cache-Control": "no-store"}
        if self.kind is Kind.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = 'Bearer realm="lethe"'
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_seconds)))
        return headers


def not_found() -> Problem:
    """The same for what does not exist and for what the caller may not see."""
    return Problem(
        Kind.NOT_FOUND,
        "Check the namespace and the names in the path. If they are right, ask for the right to get and list datasets.lethe.dev "
        "in this namespace.",
    )


def unauthenticated() -> Problem:
    """The same for a missing, an expired and a foreign token."""
    return Problem(
        Kind.UNAUTHENTICATED,
        "Send `Authorization: Bearer <token>` with a current token of this cluster, such as one of `kubectl create token`.",
    )
