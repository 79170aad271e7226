"""The documents of lists, tables and uploads, and the parameters that routes share. Pure."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request
from lethe.base.errors import InputError
from lethe.base.names import MAX_BATCH_ID_LENGTH
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.reference import LENGTH_AT_MOST, require_reference
from lethe.contract.restatement import RestatementSpec
from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import ErasureStatus
from lethe.restatement.plan import name_of
from pydantic import ConfigDict, Field, GetPydanticSchema, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from lethe_gateway.freshness import ResourceFreshness, SnapshotIdText, TableFreshness
from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import FieldError, Kind, Problem, unauthenticated
from lethe_gateway.resources.datasets import DatasetSummary, DatasetVacuum, DatasetView, RunView, VacuumPolicyView
from lethe_gateway.resources.restatements import RestatementSummary, RestatementView
from lethe_gateway.services import ListRequest, Services
from lethe_gateway.tables.records import (
    BatchErasure,
    BatchEvent,
    BatchFacts,
    BatchRestatement,
    ErasureStage,
    IndexedState,
    KnownErasure,
    Purge,
    erasure_of,
    history_of,
    open_state,
    purge_of,
    restatement_ref,
)
from lethe_gateway.uploads.manifest import (
    MAX_PATH_LENGTH,
    PATH,
    SHA256,
    FileEntry,
    FileState,
    FileView,
    PartUrl,
    UploadState,
    UploadView,
    is_path,
)

_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_DNS_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
MAX_PAGE: Final = 1000

Namespace = Annotated[str, Path(pattern=_DNS_LABEL, max_length=63, description="The Kubernetes namespace.")]
DatasetName = Annotated[str, Path(pattern=_DNS_NAME, max_length=253, description="The name of the Dataset.")]
ResourceName = Annotated[str, Path(pattern=_DNS_NAME, max_length=253, description="The name of the resource.")]
Limit = Annotated[
    int, Query(ge=1, le=MAX_PAGE, description="The largest number of items in the answer. A page may have fewer.")
]
Cursor = Annotated[
    str,
    Query(max_length=4096, description="The `nextCursor` of the page before. Leave it out for the first page."),
]


def services_of(request: Request) -> Services:
    """The services of the application that the request was sent to."""
    services: Services = request.app.state.services
    return services


ServicesOf = Annotated[Services, Depends(services_of)]


def caller_of(request: Request) -> Caller:
    """The caller, as the middleware has found it."""
    caller: Caller | None = request.scope.get("lethe.caller")
    if caller is None:
        raise unauthenticated()
    return caller


CallerOf = Annotated[Caller, Depends(caller_of)]


def list_request(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, limit: Limit = 100, cursor: Cursor = ""
) -> ListRequest:
    """The parameters that all lists have."""
    return ListRequest(services, caller, namespace, limit, cursor)


ListOf = Annotated[ListRequest, Depends(list_request)]
# What lists are filtered by, in the API and in the console.
ActiveFilter = Annotated[bool, Query(description="Only runs that have not ended.")]
DecisionFilter = Annotated[str, Query(max_length=63, description="Only vacuums with this decision.")]
DatasetFilter = Annotated[str, Query(max_length=253, description="Only Restatements of this Dataset.")]
PhaseFilter = Annotated[str, Query(max_length=63, description="Only Restatements in this phase.")]
StateFilter = Annotated[
    list[IndexedState] | None, Query(description="Only batches in one of these states. Repeatable.")
]
OpenFilter = Annotated[bool, Query(alias="open", description="Only erasures that are not verified.")]


def utc(name: str, time: datetime | None) -> datetime | None:
    """The time of a parameter in UTC; None: the parameter is not given.

    Raises:
        Problem: `invalid-request`, for a time without an offset, or beyond the times of tables.
    """
    if time is None:
        return None
    if time.tzinfo is None:
        raise invalid(name, "a time with an offset, such as 2026-03-01T00:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise invalid(name, "a time between the years 1 and 9999") from None


def invalid(name: str, expected: str) -> Problem:
    """The problem `invalid-request` for a parameter of the query. `expected` has no full stop."""
    error = FieldError(field=f"query.{name}", message=f"expected {expected}")
    return Problem(Kind.INVALID_REQUEST, f"query.{name}: expected {expected}.", errors=(error,))


class Page(ApiModel):
    """One page of a list. Send its `nextCursor` as the parameter `cursor` to get the next page."""

    next_cursor: str | None = None
    """Where the next page begins. Absent: this is the last page."""


class ResourceListPage(Page):
    """A page of Kubernetes resources. It may be shorter than `limit`, even empty, before the last page."""

    freshness: ResourceFreshness


class NamespacePage(Page):
    """The namespaces that the caller may see."""

    items: list[str]
    """Their names, in order."""


class DatasetPage(ResourceListPage):
    """Datasets of one namespace. A page may be shorter than `limit`, even empty, before the last page."""

    items: list[DatasetSummary]
    """Datasets, in the order of their names."""


class DatasetAnswer(DatasetView):
    """One Dataset, as the Kubernetes API server had it at the time of reading."""

    freshness: ResourceFreshness


class RequestBody(ApiModel):
    """A body of a request. A field that is not known is an error: it may be misspelt."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


def _as_sent(spec: Any, parse: core_schema.ValidatorFunctionWrapHandler) -> Any:
    """What was sent and can be parsed. The API server reads all of it, also fields that this version does not know."""
    parse(spec)
    # The API server would replace half of a surrogate pair, and name another batch.
    try:
        json.dumps(spec, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("expected texts without halves of surrogate pairs, and no NaN or infinite numbers") from None
    return spec


SubjectValue = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\r\n]*[^\s][^\r\n]*$")]


class NewRestatement(RequestBody):
    """A Restatement to create."""

    name: str = Field(default="", max_length=253, pattern=rf"{_DNS_NAME}|^$")
    """Its name. If it is missing, one is made from the spec, so that the same request creates one Restatement."""
    spec: Annotated[
        dict[str, Any],
        GetPydanticSchema(
            lambda _type, handler: core_schema.no_info_wrap_validator_function(_as_sent, handler(RestatementSpec))
        ),
    ]
    """What it does, as `spec` of the resource."""
    values: dict[
        Annotated[str, Field(pattern=_DNS_LABEL, max_length=63)],
        Annotated[list[SubjectValue], Field(min_length=1, max_length=10_000)],
    ] = Field(default_factory=dict, max_length=8, repr=False)
    """Of an Erase or Redact with `datasetSelector`: the values that name the subject, by the identity that Datasets declare. They
    are stored in a new Secret, which belongs to the Restatement, and is deleted when the erasure is verified. `spec.subject` is
    made from them. Needs a `name`, and the right to `create` `secrets`.
    """


class RestatementPage(ResourceListPage):
    """Restatements of one namespace. A page may be shorter than `limit`, even empty, before the last page."""

    items: list[RestatementSummary]
    """Restatements, in the order of their names."""


class RestatementAnswer(RestatementView):
    """One Restatement, as the Kubernetes API server had it at the time of reading."""

    freshness: ResourceFreshness


class RunPage(ResourceListPage):
    """Runs of one namespace or one Dataset: active ones and, unless only these were asked for, the last that ended."""

    items: list[RunView]
    """Runs by the names of their Datasets, those of one Dataset newest first."""


class VacuumPage(ResourceListPage):
    """Vacuums of one namespace: what is decided about the next one of each Dataset, and its plan."""

    items: list[DatasetVacuum]
    """The vacuums of Datasets, in the order of their names."""


class VacuumPolicyPage(ResourceListPage):
    """VacuumPolicies of one namespace, each with its window and when vacuums ran."""

    items: list[VacuumPolicyView]
    """VacuumPolicies, in the order of their names."""


class BatchSummary(SnapshotIdText):
    """A batch in a list."""

    id: str
    """The id of the batch."""
    state: str
    """promoted, reverted, replaced, erased, refused, held or buffered."""
    state_time: datetime
    """When it reached this state."""
    rows: int | None = None
    """Rows that it has or had. Absent: Lethe never promoted it."""
    bytes: int | None = None
    """The size of its files in the buffer."""
    objects: int | None = None
    """The number of these files."""
    snapshot_id: int | None = None
    """The commit that promoted it, or that took it back before it was promoted."""
    run_id: str | None = None
    """The run that set the state."""
    restatement: str | None = None
    """namespace/name of the Restatement that reverted, replaced, erased, added or approved it."""
    replaced_by: str | None = None
    """The batch that replaced it."""
    refusal_reason: str | None = None
    """Why it was refused or held, as one CamelCase word."""
    refusal_message: str | None = None
    """The same in words."""
    evict_by_time: datetime | None = None
    """When the bytes of a deleted batch must be gone."""
    reference: str | None = None
    """The id of the run of another program that delivered it."""


class BatchPage(Page):
    """Batches of one Dataset, as its table of batches shows them. `freshness` says how current that is."""

    items: list[BatchSummary]
    """Batches, newest first by the time of their state, then by id."""
    freshness: TableFreshness


class BatchAnswer(BatchSummary):
    """One batch with its history."""

    restated_by: BatchRestatement | None = None
    """The Restatement that set the state."""
    purge: Purge
    """Whether its rows have left the data files."""
    erasure: BatchErasure | None = None
    """Whether its bytes are gone. Absent: no Restatement asked for that, or it is not known."""
    history: list[BatchEvent]
    """What happened to it, the oldest first."""
    freshness: TableFreshness


class ErasureSummary(ApiModel):
    """An erasure: bytes that must be gone, by one Restatement."""

    key: str
    """Identifies the erasure in the ledger: namespace/name/hash."""
    namespace: str
    """The Kubernetes namespace of the Restatement."""
    restatement: str
    """The name of the Restatement. The resource may have been deleted."""
    operation: str | None = None
    """Replay, Revert, Erase or Redact."""
    state: ErasureStage
    """RowsInTable, Blocked, NotVerified or Verified."""
    requested_time: datetime | None = None
    """When the Restatement was created."""
    committed_time: datetime | None = None
    """When its rows were deleted."""
    due_time: datetime | None = None
    """When the bytes of an open erasure must be gone."""
    purged_time: datetime | None = None
    """When no data file of the head had its rows any more."""
    next_check_time: datetime | None = None
    """When it is checked again at the latest."""
    blocked_by: Annotated[list[str], SameAs(ErasureStatus)] = Field(default_factory=list)
    blocked_by_count: Annotated[int, SameAs(ErasureStatus)] = 0
    reason: str | None = None
    """Why it was requested."""
    ticket: str | None = None
    """Where it was requested."""
    verified_time: Annotated[datetime | None, SameAs(ErasureStatus)] = None
    record: Annotated[str | None, SameAs(ErasureStatus)] = None
    record_sha256: str | None = None
    """The SHA-256 of the record, from the ledger."""


class ErasurePage(Page):
    """Erasures from the ledger of one Dataset's table, without the content of their records."""

    items: list[ErasureSummary]
    """Erasures, in the order of their keys."""
    freshness: TableFreshness


class ErasureRecord(ApiModel):
    """An erasure with its record."""

    erasure: ErasureSummary
    """The erasure, from the ledger."""
    found: bool
    """Whether the record exists in the storage."""
    unchanged: bool | None = None
    """Whether the SHA-256 of the record is that in the ledger. Absent: there is no record."""
    signature: str | None = None
    """The URI of the signature. `lethe erasures verify` checks it. Absent: there is none."""
    document: dict[str, Any] | None = None
    """The record. Absent: it is missing or not readable."""


class ErasureAnswer(ApiModel):
    """The erasures of one Restatement. More than one, if it was created again with another spec."""

    items: list[ErasureRecord]
    freshness: TableFreshness


def batch_summary(row: BatchRow) -> BatchSummary:
    """The short form of a batch, for lists. Fields that its row does not have are absent."""
    return BatchSummary(**_batch(row))


def batch_answer(facts: BatchFacts, freshness: TableFreshness) -> BatchAnswer:
    """A batch with its purge, erasure and history, which follow from the facts. Pure."""
    return BatchAnswer(
        **_batch(facts.row),
        restated_by=restatement_ref(facts),
        purge=purge_of(facts),
        erasure=erasure_of(facts),
        history=history_of(facts),
        freshness=freshness,
    )


def erasure_summary(known: KnownErasure) -> ErasureSummary:
    """The short form of an erasure, for lists. It is `Verified` unless the ledger lists it as open."""
    namespace, _, name = name_of(known.key).partition("/")
    result, pending = known.result, known.pending
    outcome = result.erasure if result is not None and pending is None else None
    provenance = result.provenance if result is not None else None
    return ErasureSummary(
        key=known.key,
        namespace=namespace,
        restatement=name,
        operation=result.operation if result is not None else None,
        state=open_state(pending) if pending is not None else ErasureStage.VERIFIED,
        requested_time=provenance.created_time if provenance is not None else None,
        committed_time=result.committed_time if result is not None else None,
        due_time=pending.evict_by if pending is not None else None,
        purged_time=pending.purged_time if pending is not None else None,
        next_check_time=pending.look_again if pending is not None else None,
        blocked_by=[str(b) for b in pending.blockers] if pending is not None else [],
        blocked_by_count=pending.blockers_count if pending is not None else 0,
        reason=(provenance.reason or None) if provenance is not None else None,
        ticket=(provenance.ticket or None) if provenance is not None else None,
        verified_time=outcome.verified_time if outcome is not None else None,
        record=(outcome.record or None) if outcome is not None else None,
        record_sha256=(outcome.record_sha256 or None) if outcome is not None else None,
    )


_RENAMED: Final = {"batch_id": "id", "evict_by": "evict_by_time"}


def _batch(row: BatchRow) -> dict[str, Any]:
    """The fields of a row under their names in the API. Of the Restatement's key only the name is shown."""
    fields = {_RENAMED.get(name, name): value for name, value in vars(row).items()}
    return fields if row.restatement is None else {**fields, "restatement": name_of(row.restatement)}


MAX_FILE_BYTES = 5 * 2**40
FILES_AT_MOST = 10_000
PARTS_AT_ONCE = 1000


_NAMES = (
    "Names of files and folders do not begin with _ or ., have no control characters, and lead nowhere else if decoded"
)


class AnnouncedFile(RequestBody):
    """A file that will be uploaded."""

    path: str = Field(
        pattern=PATH,
        max_length=MAX_PATH_LENGTH,
        description=f"Its path below the folder of the batch. {_NAMES}",
    )
    size: int = Field(ge=0, le=MAX_FILE_BYTES)
    """In bytes."""
    sha256: str = Field(default="", pattern=rf"{SHA256}|^$")
    """In hex. Then no other content is accepted. If a file is sent in parts, better announce that of each part: the whole
    file is read again to compare it.
    """

    @field_validator("path", mode="before")
    @classmethod
    def _say_what_names_are_possible(cls, path: object) -> object:
        """A user who uploads a folder must not have to read a pattern."""
        if isinstance(path, str) and 0 < len(path) <= MAX_PATH_LENGTH and not is_path(path):
            raise ValueError(f"the file cannot have this name. {_NAMES}. Rename it")
        return path


class UploadRequest(RequestBody):
    """The batch that will be uploaded."""

    batch_id: str = Field(min_length=1, max_length=MAX_BATCH_ID_LENGTH)
    """The id of the batch. An id is used once."""
    files: list[AnnouncedFile] = Field(min_length=1, max_length=FILES_AT_MOST)
    """All files of the batch, with different paths."""
    reference: str = Field(default="", max_length=LENGTH_AT_MOST)
    """The id of the run that delivers the batch, such as of a DAG. What a run has delivered can be taken back at once. Only for
    buffers in which a batch is a folder.
    """

    @field_validator("reference")
    @classmethod
    def _require_reference(cls, reference: str) -> str:
        try:
            return require_reference(reference, "the upload") if reference else ""
        except InputError as e:
            raise ValueError(e.message) from None

    @property
    def entries(self) -> list[FileEntry]:
        """The files for the manifest, in the order of the request. None is divided into parts yet."""
        return [FileEntry(path=f.path, size=f.size, sha256=f.sha256) for f in self.files]


class HashedFile(RequestBody):
    """The checksum of a file that was announced."""

    path: str = Field(max_length=MAX_PATH_LENGTH)
    """As it was announced."""
    sha256: str = Field(pattern=SHA256)
    """Of its content, in hex."""


class CompleteRequest(RequestBody):
    """The checksums that a client knows only after it has sent the files.

    The gateway compares them before it completes an upload.
    """

    files: list[HashedFile] = Field(default=[], max_length=FILES_AT_MOST)
    """Any files of the upload."""


class AskedPart(RequestBody):
    """A part of a file for which the client needs a URL."""

    number: int = Field(ge=1, le=10_000)
    """The number of the part, from 1."""
    sha256: str = Field(default="", pattern=rf"{SHA256}|^$")
    """In hex. Then no other content is accepted."""


class PartsRequest(RequestBody):
    """The parts that will be sent next."""

    parts: list[AskedPart] = Field(min_length=1, max_length=PARTS_AT_ONCE)
    """They may be sent at the same time."""


class PresignedRequest(ApiModel):
    """A PUT to the store. Anyone with the URL can send it until it expires."""

    url: str
    """Send the content there, by PUT, without the token."""
    headers: dict[str, str]
    """Send them as they are."""


class UploadPart(PresignedRequest):
    """A PUT that sends one part of a file to the store."""

    number: int
    """The number of the part, from 1."""
    offset: int
    """Where the part begins in the file, in bytes."""
    size: int
    """In bytes."""


class UploadParts(ApiModel):
    """Where to send parts of a file."""

    items: list[UploadPart]
    """In the order in which they were asked for."""


class MultipartUpload(ApiModel):
    """A file that is sent in parts."""

    parts: int
    """How many parts it has, numbered from 1."""
    part_size: int
    """The size of each part but the last, in bytes."""
    uploaded: list[int]
    """The numbers of the parts that the store has."""


class UploadFile(ApiModel):
    """A file of an upload.

    Send it as `put` says, or in parts as `multipart` says, or, if it is small, by PUT to `files/<index>` of the upload.
    """

    index: int
    """Its number in the upload, from 0."""
    path: str
    """Its path below the folder of the batch."""
    size: int
    """In bytes."""
    sha256: str | None = None
    """In hex, if it was announced."""
    state: FileState
    """Missing or Uploaded."""
    put: PresignedRequest | None = None
    """Where to send it directly to the store."""
    multipart: MultipartUpload | None = None
    """It is sent in parts: ask for their URLs."""


class UploadSummary(ApiModel):
    """An upload in a list."""

    id: str
    """Identifies the upload in paths. It is derived from the batch id."""
    batch_id: str
    """The id of the batch."""
    state: UploadState
    """Open; Completing, while the batch is brought into the buffer; Complete, when it is there; or Abandoned, while the
    upload is being removed.
    """
    opened_time: datetime
    """When it was opened."""
    expires_time: datetime
    """When it is removed if it is still open."""


class Upload(UploadSummary):
    """A batch that is being uploaded."""

    files: list[UploadFile]
    """In the order in which they were announced."""
    checked: bool | None = None
    """Of a completed upload: whether the files were compared with the table. If not, the consolidation does it."""


class UploadPage(Page):
    """Uploads of one Dataset, without their files."""

    items: list[UploadSummary]
    """Uploads that are open or were completed lately, in the order of their ids."""


def summary_of(view: UploadView) -> UploadSummary:
    """The short form of an upload, for lists: without its files."""
    return UploadSummary(
        id=view.id,
        batch_id=view.batch_id,
        state=view.state,
        opened_time=view.opened_time,
        expires_time=view.expires_time,
    )


def upload_of(view: UploadView) -> Upload:
    """An upload with the state of each file, and with URLs for the files that have one."""
    return Upload(**dict(summary_of(view)), files=[_file(f) for f in view.files], checked=view.checked)


def parts_of(parts: list[PartUrl]) -> UploadParts:
    """The URLs of parts, in the order of the list."""
    return UploadParts(
        items=[
            UploadPart(number=p.number, offset=p.offset, size=p.size, url=p.url, headers=dict(p.headers)) for p in parts
        ]
    )


def _file(view: FileView) -> UploadFile:
    entry = view.entry
    return UploadFile(
        index=view.index,
        path=entry.path,
        size=entry.size,
        sha256=entry.sha256 or None,
        state=view.state,
        put=PresignedRequest(url=view.url, headers=dict(view.headers)) if view.url else None,
        multipart=MultipartUpload(parts=view.parts, part_size=entry.part_bytes, uploaded=list(view.parts_uploaded))
        if view.parts
        else None,
    )
