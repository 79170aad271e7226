"""Observes a subject request, decides, and carries it out. I/O, in the queue's threads.

The API server decides in which Datasets the requester may erase rows. The record of the request is written, with its signature,
beside each of its tables.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol

from lethe.base import names
from lethe.base.errors import LetheError, Verdict
from lethe.base.short_cache import ShortCache
from lethe.contract.kubernetes import GROUP, REQUESTED_BY, REQUESTED_BY_GROUPS
from lethe.contract.restatement import Requester
from lethe.contract.result import RecordedRedaction, RedactedColumn
from lethe.contract.run import Provenance
from lethe.contract.settings import BufferLayout
from lethe.contract.status import ErasureStatus, RestatementStatus
from lethe.erasure.request_record import AskedErasure, RequestStatement, TableErasure, request_record, verified_time
from lethe.iceberg import catalogs
from lethe.kube import (
    LOCAL_ACCESS_REVIEWS,
    RESTATEMENTS,
    SECRETS,
    AlreadyExists,
    Document,
    Kube,
    NotFound,
    RequestRefused,
    ResourceKind,
    is_allowed,
)
from lethe.storage.file_io import file_io
from lethe.storage.object_store import write_once
from lethe.storage.vended import of_table

from lethe_operator.actions import Event
from lethe_operator.cluster import status
from lethe_operator.cluster.schedule import Next
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.erasure.signatures import NotSigned, signature_beside
from lethe_operator.reasons import Reason
from lethe_operator.request.decide import (
    Part,
    RequestActions,
    RequestWorld,
    decide,
    events,
    is_closed,
    verified,
    without_record,
)
from lethe_operator.request.targets import Targets, targets_of
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.assess import may_read_secret
from lethe_operator.restatement.outcome import finished_before
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


class RecordNotWritten(Exception):
    """The record of a request cannot be made yet. The text says why."""


def write_record(
    request: Restatement, parts: Sequence[Part], without_identity: Sequence[str], settings: Settings
) -> ErasureStatus:
    """Write the record of a request. Writing it again changes nothing.

    Args:
        parts: All verified.

    Returns:
        What the status shows of it.

    Raises:
        RecordNotWritten: A table's own record is not known or not signed.
        LetheError: Another file is in its place, or the store cannot lock it.
        Exception: What the storage raises.
    """
    tables = [_table_erasure(p, settings) for p in parts]
    made = request_record(_asked(request), tables, without_identity)
    statement = RequestStatement(request.key, made.sha256, verified_time(tables))
    signatures: dict[str, str | None] = {}
    for part, table in zip(parts, tables, strict=True):
        uri = f"{table.record.rpartition('/')[0]}/{made.name}"
        signatures[uri] = _write_copy(part, uri, made.content, statement, settings)
    first = next(iter(signatures))
    return ErasureStatus(
        verified_time=statement.verified_time,
        record=first,
        record_sha256=made.sha256,
        signature=signatures[first],
    )


def _asked(request: Restatement) -> AskedErasure:
    subject, selector = request.spec.subject, request.spec.dataset_selector
    assert subject is not None
    assert selector is not None
    return AskedErasure(
        key=request.key,
        name=request.meta.full_name,
        identities=tuple(i.identity for i in subject.identities),
        selector=selector.to_document(),
        provenance=request.provenance or Provenance(),
        redaction=_redaction(request),
    )


def _redaction(request: Restatement) -> RecordedRedaction | None:
    redact = request.spec.redact
    if redact is None:
        return None
    columns = tuple(RedactedColumn(column=c.column, method=c.method) for c in redact.columns)
    key = f"{redact.secret.name}/{redact.secret.key}" if redact.secret is not None else ""
    return RecordedRedaction(columns=columns, hash_key=key)


def _table_erasure(part: Part, settings: Settings) -> TableErasure:
    child = part.child
    erasure = child.status.erasure if isinstance(child, Restatement) else None
    if part.target is None or not isinstance(child, Restatement):
        name = child.meta.name if child is not None else ""
        raise RecordNotWritten(
            f"Dataset {part.dataset} does not exist any more, or has an invalid spec, so its table is not known. Create it again "
            f"or correct it, or delete the Restatement {name}: the record then does not name this table"
        )
    if erasure is None or not erasure.record or not erasure.record_sha256 or erasure.verified_time is None:
        raise RecordNotWritten(f"the status of Restatement {child.meta.name} does not name its record")
    table = part.target.dataset.status.table
    folder = f"{str(table.location).rstrip('/')}/{names.ERASURES_FOLDER}" if table is not None else ""
    if erasure.record.rpartition("/")[0] != folder:
        raise RecordNotWritten(
            f"Restatement {child.meta.name} names the record {erasure.record}, expected one in {folder}/"
        )
    if settings.signer is not None and not erasure.signature:
        raise RecordNotWritten(f"the record of Restatement {child.meta.name} is not signed")
    dataset, result = part.target.dataset, child.status.result
    rows = child.spec.rows
    return TableErasure(
        dataset=part.dataset,
        table=f"{dataset.spec.table.catalog}.{dataset.spec.table.name}",
        restatement=child.meta.full_name,
        columns=tuple(dict.fromkeys(c.column for c in rows.conditions)) if rows is not None else (),
        rows_erased=result.rows_erased if result is not None else None,
        rows_redacted=result.rows_redacted if result is not None else None,
        record=erasure.record,
        record_sha256=erasure.record_sha256,
        signature=erasure.signature,
        verified_time=erasure.verified_time,
        not_covered=_not_covered(dataset),
    )


def _not_covered(dataset: Dataset) -> tuple[str, ...]:
    """Where copies of rows may be that no run searches."""
    buffer, kafka = dataset.spec.buffer, dataset.spec.source.kafka
    kept = f"{buffer.retention_seconds} seconds after its promotion"
    what = "file" if buffer.layout is BufferLayout.FILE else "folder"
    places = [
        f"{buffer.uri}: the {what} of a promoted batch until {kept}",
        f"{buffer.uri}: batches that wait or are held, and refused ones in _refused/",
        "folders of replacements that Restatements named",
    ]
    if kafka is not None:
        places.append(f"the topics {', '.join(kafka.topics)} of the Kafka cluster {kafka.cluster}")
    return tuple(places)


def _write_copy(part: Part, uri: str, content: bytes, statement: RequestStatement, settings: Settings) -> str | None:
    """Write one copy of the record, and return its signature; None: records are not signed."""
    assert part.target is not None
    table = part.target.dataset.spec.table
    properties = of_table(catalogs.properties(table.catalog), table.name)
    io = file_io(properties, uri)
    write_once(uri, content, io, properties, settings.record_retention)
    if settings.signer is None:
        return None
    return signature_beside(uri, statement, io, properties, settings, settings.signer)


ERASE: Final = "erase"
"""The verb on datasets.lethe.dev. Kubernetes gives it no meaning of its own."""
ALLOWED_SECONDS: Final = 60.0
# A right may just have been granted.
DENIED_SECONDS: Final = 10.0
ANSWERS_AT_MOST: Final = 20_000


class Reviewer(Protocol):
    """The part of `lethe.kube.Kube` that asks about rights."""

    def review(self, kind: ResourceKind, namespace: str, spec: Mapping[str, Any]) -> Document:
        """The status of a review."""


class EraseRights:
    """Asks who may erase, and remembers the answers for a short time. Threads may share it."""

    def __init__(self, kube: Reviewer, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._answers: ShortCache[tuple[Requester, str, str], bool] = ShortCache(ANSWERS_AT_MOST)

    def denied(self, request: Restatement, dataset: str) -> Verdict | None:
        """Why the requester of a Restatement with a subject may not erase rows of a Dataset; None: the requester may.

        Its annotations are true where the chart's value admission.eraseRight is enabled: the policies compare them with the user.

        Raises:
            Away: The API server gave no answer, or one that asks to retry later.
        """
        requester = Requester.of_annotations(request.meta.annotations)
        return self.may_erase(requester, request.meta.namespace, dataset)

    def may_erase(self, requester: Requester | None, namespace: str, dataset: str) -> Verdict | None:
        """Whether a requester has the verb `erase` on a Dataset. None: it may; a Verdict: it may not, and what to do.

        Waits for at most one request to the API server.

        Args:
            requester: None is a refusal: the Restatement does not say who requests it.

        Raises:
            Away: The API server gave no answer, or one that asks to retry later.
        """
        right = f"the verb {ERASE} on datasets.{GROUP} {dataset} in the namespace {namespace}"
        if requester is None:
            return Verdict(
                Reason.REQUESTER_NOT_ALLOWED,
                f"Dataset {dataset}: the Restatement has no valid annotations {REQUESTED_BY} and {REQUESTED_BY_GROUPS}, so it "
                f"is not known whether a user with {right} requested it. Create a new Restatement with them.",
            )
        key, now = (requester, namespace, dataset), self._clock()
        allowed = self._answers.get(key, now)
        if allowed is None:
            try:
                allowed = self._ask(requester, namespace, dataset)
            except RequestRefused as e:
                return Verdict(
                    Reason.REQUESTER_NOT_ALLOWED,
                    f"Dataset {dataset}: the operator could not ask whether {requester.username} has {right}: "
                    f"{e.explanation or e.reason}. Run helm upgrade to restore the operator's Role.",
                    transient=True,
                )
            self._answers.put(key, allowed, now + (ALLOWED_SECONDS if allowed else DENIED_SECONDS))
        if allowed:
            return None
        return Verdict(
            Reason.REQUESTER_NOT_ALLOWED,
            f"Dataset {dataset}: {requester.username}, who requested this, does not have {right}. Grant it with a Role and a "
            "RoleBinding, or let a user who has it create a new Restatement.",
        )

    def _ask(self, requester: Requester, namespace: str, dataset: str) -> bool:
        attributes = {"verb": ERASE, "group": GROUP, "resource": "datasets", "namespace": namespace, "name": dataset}
        spec = {"user": requester.username, "groups": list(requester.groups), "resourceAttributes": attributes}
        return is_allowed(self._kube.review(LOCAL_ACCESS_REVIEWS, namespace, spec))


def everyone_may(_request: Restatement, _dataset: str) -> Verdict | None:
    """None: who may create Restatements may erase from all Datasets of the namespace."""
    return None


@dataclass(frozen=True)
class RequestReconciler:
    """Reconciles subject requests. It keeps nothing between calls."""

    kube: Kube
    objects: WatchedObjects
    settings: Settings
    denied: Callable[[Restatement, str], Verdict | None] = everyone_may
    """Why the requester may not erase from a Dataset, by its name; None: the requester may."""

    def __call__(self, request: Restatement, now: datetime) -> Next | None:
        """Reconcile a request.

        Raises:
            KubeError: And others. The queue then repeats the request after a pause.
        """
        namespace, name = request.meta.namespace, request.meta.name
        world = self._observe(request)
        actions = decide(world, now)
        for document in actions.create:
            self._create(namespace, document)
        for child, spec in actions.change.items():
            self._change(namespace, child, spec)
        new, more = actions.status, list[Event]()
        if actions.complete:
            new, more = self._complete(world, actions, now)
        status.write(self.kube, RESTATEMENTS, request.meta, request.stored, new)
        posted = (*events(name, request.status, new), *more)
        status.post(self.kube, namespace, posted, {("Restatement", name): request.meta.uid})
        if actions.delete:
            self.kube.delete(RESTATEMENTS, namespace, name, uid=request.meta.uid)
            return None
        changed = bool(actions.create or actions.change or posted)
        return Next(actions.look_again, idle=is_closed(request) and not changed)

    def _observe(self, request: Restatement) -> RequestWorld:
        if is_closed(request):
            return RequestWorld(request, Targets((), ()), {})
        namespace, name = request.meta.namespace, request.meta.name
        targets = targets_of(request.spec, self.objects.all_datasets(namespace))
        children = self.objects.restatements.children(namespace, request.meta.uid)
        world = RequestWorld(
            request,
            targets,
            {c.meta.name: c for c in children},
            self.objects.restatements.names(namespace) - {c.meta.name for c in children},
        )
        begun = {c.spec.dataset for c in children if isinstance(c, Restatement)}
        problems = {t.name: self.denied(request, t.name) for t in targets.included if t.name not in begun}
        log.debug("subject request %s/%s: %d Datasets", namespace, name, len(targets.included))
        return replace(world, denied={n: v for n, v in problems.items() if v is not None})

    def _create(self, namespace: str, document: Mapping[str, object]) -> None:
        try:
            self.kube.create(RESTATEMENTS, namespace, document)
        except AlreadyExists:
            return  # of an earlier request of this name, which is being deleted, or of an operator that stopped here

    def _change(self, namespace: str, name: str, spec: Mapping[str, object]) -> None:
        try:
            self.kube.patch(RESTATEMENTS, namespace, name, {"spec": dict(spec)})
        except NotFound:
            return

    def _complete(
        self, world: RequestWorld, actions: RequestActions, now: datetime
    ) -> tuple[RestatementStatus, list[Event]]:
        """Write the record, delete the values if that is wanted, and make the final status."""
        request = world.request
        try:
            written = write_record(request, actions.parts, world.targets.without_identity, self.settings)
        except (RecordNotWritten, NotSigned, LetheError) as e:
            text = f"The operator did not write the record of the request: {str(e).rstrip('.')}. The operator retries."
            log.warning("%s: %s", request.meta.full_name, text)
            return without_record(request, actions, text, now), []
        more = self._delete_values(request)
        return verified(request, actions, written, now), more

    def _delete_values(self, request: Restatement) -> list[Event]:
        subject, namespace = request.spec.subject, request.meta.namespace
        if subject is None or not subject.delete_values:
            return []
        problems: list[str] = []
        needed = self._needed_secrets(request)
        for secret in sorted(_secrets_with_values(request)):
            if not may_read_secret(secret, namespace, self.settings):
                continue  # no run has read it either
            if by := needed.get(secret):
                problems.append(
                    f"The Secret {secret} (spec.subject.deleteValues) stays, because Restatement {by}, which has not ended, "
                    "names it too. Unless that one deletes it, delete it yourself when it has ended."
                )
                continue
            try:
                self.kube.delete(SECRETS, namespace, secret)
            except RequestRefused as e:
                problems.append(
                    f"The operator cannot delete the Secret {secret} (spec.subject.deleteValues): {e}. Delete it yourself."
                )
        name = request.meta.name
        return [Event("Restatement", name, Verdict(Reason.VALUES_NOT_DELETED, p), warning=True) for p in problems]

    def _needed_secrets(self, request: Restatement) -> dict[str, str]:
        """The Secrets that other Restatements name that have not ended, by name, each with one of these."""
        namespace, known = request.meta.namespace, self.objects.restatements
        others = [r for r in known.requests(namespace) if isinstance(r, Restatement) and not is_closed(r)]
        unfinished = [r for _, r in known.unfinished(namespace) if isinstance(r, Restatement)]
        others += [r for r in unfinished if finished_before(r) is None]
        return {
            secret: other.meta.name
            for other in others
            if other.meta.uid != request.meta.uid and not other.spec.dry_run
            for secret in (*_secrets_with_values(other), *(file.secret for file in other.secrets.values()))
        }


def _secrets_with_values(request: Restatement) -> frozenset[str]:
    """The names of the Secrets with the values of a subject."""
    subject = request.spec.subject
    named = (i.values_from.secret_key_ref for i in subject.identities) if subject is not None else ()
    return frozenset(secret.name for secret in named if secret is not None)
