"""The Restatement resource as a frozen value, and who created it, as far as the object shows it. Pure.

Kubernetes does not store a user's name with an object. Programs choose their own names as field managers, and every writer of
the object can set annotations. Only the API server's audit log has the user, under the object's UID.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from lethe.base.errors import Verdict
from lethe.base.names import request_key
from lethe.contract.kubernetes import REQUESTED_BY
from lethe.contract.restatement import RestatementSpec
from lethe.contract.run import Manager, Provenance
from lethe.contract.status import BatchIdList, RestatementStatus, StoredStatus, stored_status
from lethe.restatement.group import LISTED_IDS_AT_MOST, IdList

from lethe_operator.resources.common import Meta, parse_meta, parse_spec

# At most this many batches are looked up to estimate the size of a Restatement.
SIZED_BY: Final = 1000
HASH_KEY_FIELD: Final = "spec.redact.hashKeyFrom"
"""The field that names the Secret with the key of the hashes of a Redact."""


def values_field(condition: str) -> str:
    """The field that names the values of a condition.

    Args:
        condition: As in `lethe.contract.restatement.RowsSpec.by_field`.
    """
    return f"{condition}.valuesFrom"


@dataclass(frozen=True)
class SecretFile:
    """A key of a Secret that is mounted as a file into the pod of a run."""

    secret: str
    key: str
    file: str
    """Name of the file. It identifies the request, too: a pod that has the file was started for this request, so it has the
    values that the Secret had then or later."""

    @classmethod
    def of(cls, secret: str, key: str, request_uid: str) -> "SecretFile":
        """The file of a key of a Secret for a request."""
        return cls(secret, key, sha256(f"{request_uid}/{secret}/{key}".encode()).hexdigest()[:16])


@dataclass(frozen=True)
class Unmet(Verdict):
    """Why a Restatement cannot use what it names: its list of batch ids, or the Restatement that it undoes."""

    final: bool = False
    """It can never use it."""
    again_seconds: float = 15
    """Time until the operator reads a list again, unless `final`."""


@dataclass(frozen=True)
class Restatement:
    """A Restatement whose spec matches the schema, with what the operator has found out about it."""

    meta: Meta
    spec: RestatementSpec
    # Identifies the request in the table's ledger, also after the object is deleted.
    key: str
    stored: StoredStatus[RestatementStatus]
    listed: IdList | Unmet | None = None
    """Content of the ConfigMap in spec.batchIdsFrom; None: the spec names none."""
    provenance: Provenance | None = None
    """Who created it; None: no run will carry it out."""
    made_by: str = ""
    """Name of the subject request that made it; "": none did."""
    request_uid: str = ""
    """UID of this request."""

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """The known batch ids. The operator does not know those in a file at spec.batchIdsFrom.uri and of spec.selector."""
        return self.listed.ids if isinstance(self.listed, IdList) else self.spec.batch_ids

    @property
    def secrets(self) -> dict[str, SecretFile]:
        """The Secrets that its run needs, by the field that names each: the values of records, and the key of hashes."""
        rows, redact = self.spec.rows, self.spec.redact
        by_field = rows.by_field if rows is not None else {}
        named = {values_field(f): c.values_from.secret_key_ref for f, c in by_field.items()}
        named[HASH_KEY_FIELD] = redact.secret if redact is not None else None
        uid = self.request_uid or self.meta.uid
        return {f: SecretFile.of(secret.name, secret.key, uid) for f, secret in named.items() if secret is not None}

    @property
    def searches(self) -> bool:
        """Whether its run searches for rows by values or batch ids. A dry run reads metadata only."""
        named = self.spec.rows is not None or self.spec.redact is not None
        return (named and not self.spec.dry_run) or self.by_keys

    @property
    def lookups(self) -> frozenset[str]:
        """Names of the Datasets in whose tables its run looks up values."""
        return self.spec.rows.lookups if self.spec.rows is not None else frozenset()

    @property
    def list_uri(self) -> str:
        """URI of the file with the batch ids; "": there is no file."""
        return self.spec.batch_ids_from.uri if self.spec.batch_ids_from is not None else ""

    @property
    def has_unread_ids(self) -> bool:
        """Whether only its run finds out which batches it concerns."""
        return bool(self.list_uri or self.spec.reference)

    @property
    def list_sha256(self) -> str:
        """SHA-256 of the list in spec.batchIdsFrom when it was first read; "": it was not read yet."""
        return self._list_in_status.sha256 or ""

    @property
    def batches(self) -> int:
        """The number of batches that it names; the largest possible number if no run has found them out yet."""
        listed = self._list_in_status.count or (LISTED_IDS_AT_MOST if self.has_unread_ids else 0)
        return len(self.batch_ids) or listed

    @property
    def sized_by(self) -> tuple[str, ...]:
        """A sample of the batches from which the size of all is estimated: looking up 100,000 in the ledger is too slow."""
        return self.batch_ids[:SIZED_BY]

    @property
    def _list_in_status(self) -> BatchIdList:
        plan = self.status.plan
        return plan.batch_ids if plan is not None and plan.batch_ids is not None else BatchIdList()

    @property
    def status(self) -> RestatementStatus:
        """The parsed status."""
        return self.stored.parsed

    @property
    def created(self) -> datetime:
        """When the object was created; without a creation time, the latest time there is, which sorts last."""
        return self.meta.creation_timestamp or datetime.max.replace(tzinfo=UTC)

    @property
    def deadline(self) -> datetime | None:
        """The time by which it must be committed; None: no deadline."""
        created, seconds = self.meta.creation_timestamp, self.spec.deadline_seconds
        return created + timedelta(seconds=seconds) if created is not None and seconds is not None else None

    @property
    def added_batch_id(self) -> str | None:
        """The id of the batch that it adds to the table; None: it adds none. A dry run adds none."""
        return self.spec.replacement.batch_id if self.spec.replacement is not None and not self.spec.dry_run else None

    @property
    def by_keys(self) -> bool:
        """Whether it also deletes rows of older batches that have the same keys as rows of its replacement."""
        return self.added_batch_id is not None and bool(self.spec.replacement and self.spec.replacement.key_columns)


def parse_restatement(body: Mapping[str, Any]) -> Restatement:
    """Parse a Restatement.

    Raises:
        InvalidSpec: A spec that the schema of the CRD should have rejected; the message names the first invalid field.
    """
    meta = parse_meta(body)
    spec = parse_spec(RestatementSpec, "Restatement", body)
    key = request_key(meta.namespace, meta.name, body.get("spec") or {})
    name, uid = owner_of(body)
    return Restatement(meta, spec, key, stored_status(RestatementStatus, body), made_by=name, request_uid=uid)


def is_subject_request(body: Mapping[str, Any]) -> bool:
    """Whether a Restatement's body names a subject instead of a Dataset."""
    return bool((body.get("spec") or {}).get("subject"))


def owner_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Name and UID of the subject request that made a Restatement; empty: none did."""
    for owner in (body.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("kind") == "Restatement" and owner.get("controller"):
            return str(owner["name"]), str(owner["uid"])
    return "", ""


def dataset_name_of(body: Mapping[str, Any]) -> str:
    """The name in `spec.datasetRef` of a Restatement's body; "": it has none."""
    return str(((body.get("spec") or {}).get("datasetRef") or {}).get("name") or "")


def lookup_names_of(body: Mapping[str, Any]) -> frozenset[str]:
    """The names of the Datasets in which the run of a Restatement looks up values, from its body."""
    rows = (body.get("spec") or {}).get("rows") or {}
    conditions = (rows, *(rows.get("anyOf") or ()))
    return frozenset(str(c["via"].get("dataset") or "") for c in conditions if c.get("via")) - {""}


# Annotations and labels in which people, Argo CD, Flux and Helm give their names.
MARKS: Final = (
    REQUESTED_BY,
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/namespace",
    "kustomize.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/namespace",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
)
TEXT_AT_MOST: Final = 256
MANAGERS_AT_MOST: Final = 10


def provenance_of(body: Mapping[str, Any], spec: RestatementSpec) -> Provenance:
    """Who created a Restatement and why.

    Args:
        spec: Parsed from `body`.
    """
    metadata = body.get("metadata") or {}
    texts = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    managers = [
        Manager.model_validate(
            {
                "name": str(m.get("manager", ""))[:TEXT_AT_MOST],
                "operation": m.get("operation", ""),
                "time": m.get("time"),
            }
        )
        for m in metadata.get("managedFields") or ()
        if not m.get("subresource")
    ]
    return Provenance.model_validate(
        {
            "reason": spec.reason,
            "ticket": spec.ticket,
            "uid": str(metadata.get("uid") or ""),
            "created_time": metadata.get("creationTimestamp"),
            "managers": tuple(managers[:MANAGERS_AT_MOST]),
            "marks": {key: str(texts[key])[:TEXT_AT_MOST] for key in MARKS if key in texts},
        }
    )
