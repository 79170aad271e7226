"""The spec of a Restatement, and the annotations that say who requests an Erase with a subject. Pure.

Kubernetes does not store the user of a request with the object. The admission policies of the chart's value admission.eraseRight
compare these annotations with the user who creates the Restatement, and refuse later changes. Without them, they prove nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from lethe.contract.dataset import IdentityName
from lethe.contract.kubernetes import REQUESTED_BY, REQUESTED_BY_GROUPS, ObjectName, Uri
from lethe.contract.schema import ApiModel, Rule, SameAs, between, items, keyed_by, length
from lethe.contract.settings import Lookup, Operation, RedactionMethod, UnknownBatches
from lethe.contract.vacuum_policy import Selector


@dataclass(frozen=True)
class Requester:
    """A user, as the API server knows it."""

    username: str
    groups: tuple[str, ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of a Restatement of this user. The expression of the admission policy writes the same text."""
        groups = json.dumps(self.groups, ensure_ascii=False, separators=(",", ":"))
        return {REQUESTED_BY: self.username, REQUESTED_BY_GROUPS: groups}

    @classmethod
    def of(cls, username: str, groups: Sequence[str]) -> "Requester":
        """The requester of a review or a token."""
        return cls(username, tuple(groups))

    @classmethod
    def of_annotations(cls, annotations: Mapping[str, Any]) -> "Requester | None":
        """Read the annotations. None: one of them is missing or not valid."""
        username, text = annotations.get(REQUESTED_BY), annotations.get(REQUESTED_BY_GROUPS)
        if not isinstance(username, str) or not username or not isinstance(text, str):
            return None
        try:
            groups = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
            return None
        return cls(username, tuple(groups))


Text = Annotated[str, length(1, 256)]
Key = Annotated[str, length(1, 253)]

_OPTIONAL_AND_IMMUTABLE: Final = (
    "datasetRef",
    "datasetSelector",
    "subject",
    "batchIds",
    "batchIdsFrom",
    "selector",
    "unknownBatches",
    "replacement",
    "undoes",
    "rows",
    "redact",
    "reason",
    "ticket",
    "evictBySeconds",
    "dryRun",
    "deadlineSeconds",
)


def immutable(field: str, optional: bool = False) -> Rule:
    """The rule of a field that cannot change after creation.

    Args:
        field: Name in the API.
        optional: The field may be absent; then it can be neither added nor removed.
    """
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        # A comparison of values alone would let a field be removed and added again with another value.
        same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    return Rule(same, f"{field} is immutable; create a new Restatement instead", f".{field}")


class DatasetRef(ApiModel):
    """The Dataset to restate, in the same namespace."""

    name: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the Dataset."""


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the same namespace that has the label lethe.dev/batch-ids: "true"."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: Key
    """The key whose value is the list."""


class BatchIdsFrom(ApiModel):
    """The location of a longer list of batch ids: UTF-8, one id per line, at most 100000 ids.

    It must not change after the operator has read it, see status.plan.batchIds. The ledger identifies the Restatement
    by the reference and not by the list: another list needs another Restatement.
    """

    cel_rules = (
        Rule("has(self.configMapKeyRef) != has(self.uri)", "exactly one of configMapKeyRef and uri is required"),
    )

    config_map_key_ref: ConfigMapKey | None = None
    uri: Uri = ""
    """URI of a text file that the FileIO of the table's catalog can read. The run reads it, the operator does not."""


class BatchSelector(ApiModel):
    """Selects batches by their delivery, when the Restatement is carried out."""

    reference: Text
    """The id of the run of another program that delivered the batches, as it named it: a DAG run, a load of dlt, an agent.
    Selects all of its batches that the operation can change, in the table and, unless the operation is Approve, in the buffer.
    """


class ReplacementSpec(ApiModel):
    """The batch that replaces the batches of a Replay, or single rows if keyColumns is set."""

    cel_rules = (
        Rule("!has(self.opColumn) || has(self.keyColumns)", "opColumn is allowed only with keyColumns", ".opColumn"),
        Rule(
            "!has(self.opColumn) || !has(self.keyColumns) || !(self.opColumn in self.keyColumns)",
            "opColumn cannot be one of keyColumns",
            ".opColumn",
        ),
    )

    batch_id: Text
    """The id of the new batch. It must never have been used in this table."""
    uri: Uri
    """The folder with the files of the new batch, in the format of the buffer, with a _SUCCESS object. It must be outside
    the buffer. Lethe reads it and never deletes it.
    """
    key_columns: Annotated[
        tuple[Text, ...],
        items(1, 16),
        Rule("self.all(c, self.exists_one(d, d == c))", "keyColumns must name each column once"),
    ] = ()
    """Columns of the table, or fields of structs such as customer.id, whose values together are the key of a row. Each row
    of the new batch replaces all rows with the same key that were committed before, in any batch. A key must not be null,
    and must not occur in two rows of the new batch.
    """
    op_column: Text = ""
    """A column of the files, not of the table, with the change of each row: U, I or null replaces the older rows by it, D
    only removes the older rows. If unset, all rows are added.
    """


class RestatementRef(ApiModel):
    """The Restatement that Undo undoes."""

    name: ObjectName
    """Name of a Restatement of the same Dataset, in the same namespace. It must exist when the operator first reads this
    one. If it was deleted, create it again with the same name and spec.
    """


class SecretKey(ApiModel):
    """A key of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Key
    """The key in the Secret."""


class ValuesFrom(ApiModel):
    """The location of the values: UTF-8, one value per line, at most 100000 values.

    A list at a URI must not change after a run has read it, see status.plan.valuesDigest.
    """

    cel_rules = (Rule("has(self.secretKeyRef) != has(self.uri)", "exactly one of secretKeyRef and uri is required"),)

    secret_key_ref: SecretKey | None = None
    uri: Uri = ""
    """URI of a text file that the FileIO of the table's catalog can read. The run reads it, the operator does not. Only the
    run and those who asked for the Restatement should be able to read it. Lethe never deletes it.
    """


class RowsCondition(ApiModel):
    """Records with one of the values in the column."""

    column: Text
    """The column whose values name the records, or a field of it, such as customer.email, or passengers.element.email in a
    list: then a record is meant if one of its elements has such a value.
    """
    values_from: ValuesFrom
    via: Lookup | None = None
    """The values are not those of the column: the run looks up in another Dataset what stands in the column for them."""


class RowsSpec(ApiModel):
    """Which records Erase deletes or Redact changes. The values are never written into a resource, a log or a ledger file."""

    cel_rules = (
        Rule(
            "has(self.anyOf) ? !has(self.column) && !has(self.valuesFrom) && !has(self.via) : "
            "has(self.column) && has(self.valuesFrom)",
            "either anyOf, or column and valuesFrom are required",
        ),
    )

    column: Annotated[str, length(1, 256), SameAs(RowsCondition)] = ""
    values_from: ValuesFrom | None = None
    via: Annotated[Lookup | None, SameAs(RowsCondition)] = None
    any_of: Annotated[tuple[RowsCondition, ...], items(1, 16)] = ()
    """Several conditions. A record that meets at least one of them is meant."""

    @property
    def by_field(self) -> dict[str, RowsCondition]:
        """The conditions, by the fields that have them, for messages."""
        if self.any_of or self.values_from is None:
            return {f"spec.rows.anyOf[{n}]": condition for n, condition in enumerate(self.any_of)}
        return {"spec.rows": RowsCondition(column=self.column, values_from=self.values_from, via=self.via)}

    @property
    def conditions(self) -> tuple[RowsCondition, ...]:
        """The conditions, of which a record meets at least one."""
        return tuple(self.by_field.values())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, each once."""
        return tuple(dict.fromkeys(c.column for c in self.conditions))

    @property
    def lookups(self) -> frozenset[str]:
        """The names of the Datasets in which the run looks up values."""
        return frozenset(c.via.dataset for c in self.conditions if c.via is not None)


class SubjectIdentity(ApiModel):
    """The values of one identity that name the subject."""

    identity: IdentityName
    """Name of an identity that Datasets declare in spec.identities."""
    values_from: ValuesFrom


class SubjectSpec(ApiModel):
    """A person, or another subject, or several, whose rows are erased or redacted in all selected Datasets."""

    cel_rules = (
        Rule(
            "has(self.identity) == has(self.valuesFrom) && has(self.identity) != has(self.anyOf)",
            "either identity and valuesFrom, or anyOf is required",
        ),
    )

    identity: IdentityName | None = None
    """Name of the identity."""
    values_from: ValuesFrom | None = None
    any_of: Annotated[tuple[SubjectIdentity, ...], items(1, 8)] = ()
    """Several identities of the subject. A row that has one of them is erased or redacted."""
    delete_values: bool = False
    """Delete the Secrets with the values when the erasure is verified in all Datasets."""

    @property
    def identities(self) -> tuple[SubjectIdentity, ...]:
        """All identities, with their values."""
        if self.identity is None or self.values_from is None:
            return self.any_of
        return (SubjectIdentity(identity=self.identity, values_from=self.values_from),)


class ColumnRedactionSpec(ApiModel):
    """What Redact writes into one column."""

    cel_rules = (
        Rule(
            "(self.method == 'Constant') == has(self.value)",
            "value is required when method is Constant, and only then allowed",
            ".value",
        ),
    )

    column: Text
    """A column of the table, or a field of it, such as customer.email, or passengers.element.email in a list: then it is
    redacted in all elements of a selected record. The batch column, and columns of partitions and identifiers, are refused.
    """
    method: RedactionMethod
    """SetNull writes null, which a required column refuses. Constant writes value. KeyedHash writes the HMAC-SHA-256 of the
    value with the key in hashKeyFrom, in hex, into columns of type string or binary; null stays null.
    """
    value: Annotated[str | None, length(maximum=1024)] = None
    """The constant, as text, which must be a value of the column's type, such as 0 or 2026-03-01. Do not write personal data
    here.
    """


class HashKeyFrom(ApiModel):
    """The location of the key of the hashes: all bytes of the Secret's key, at least 16."""

    secret_key_ref: SecretKey


class RedactSpec(ApiModel):
    """What Redact writes into the selected records.

    With subject, the columns are the same for all Datasets: one that lacks a column is blocked.
    """

    cel_rules = (
        Rule(
            "self.columns.exists(c, c.method == 'KeyedHash') == has(self.hashKeyFrom)",
            "hashKeyFrom is required when a column has the method KeyedHash, and only then allowed",
            ".hashKeyFrom",
        ),
    )

    columns: Annotated[tuple[ColumnRedactionSpec, ...], items(1), keyed_by("column", maximum=16)]
    """The columns to redact. None can be a part of another one."""
    hash_key_from: HashKeyFrom | None = None

    @property
    def secret(self) -> SecretKey | None:
        """The Secret, and the key in it, that hold the key of the hashes; None: there are none."""
        return self.hash_key_from.secret_key_ref if self.hash_key_from is not None else None


class RestatementSpec(ApiModel):
    """What the Restatement does. Immutable except for suspend, cancel and ttlSecondsAfterFinished."""

    cel_rules = (
        immutable("operation"),
        *(immutable(field, optional=True) for field in _OPTIONAL_AND_IMMUTABLE),
        Rule(
            "!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",
            "cancel cannot be taken back; create a new Restatement instead",
            ".cancel",
        ),
        Rule(
            "has(self.datasetRef) != has(self.datasetSelector)",
            "exactly one of datasetRef and datasetSelector is required",
            ".datasetRef",
        ),
        Rule(
            "has(self.datasetSelector) == has(self.subject)",
            "datasetSelector is required with subject, and only then allowed",
            ".datasetSelector",
        ),
        # Which field belongs to which operation.
        Rule(
            "(self.operation == 'Replay') == has(self.replacement)",
            "replacement is required when operation is Replay, and only then allowed",
            ".replacement",
        ),
        Rule(
            "(self.operation == 'Undo') == has(self.undoes)",
            "undoes is required when operation is Undo, and only then allowed",
            ".undoes",
        ),
        Rule(
            "self.operation in ['Erase', 'Redact'] || !has(self.rows)",
            "rows is allowed only when operation is Erase or Redact",
            ".rows",
        ),
        Rule(
            "(self.operation == 'Redact') == has(self.redact)",
            "redact is required when operation is Redact, and only then allowed",
            ".redact",
        ),
        Rule(
            "self.operation in ['Erase', 'Redact'] || !has(self.subject)",
            "subject is allowed only when operation is Erase or Redact",
            ".subject",
        ),
        Rule(
            "!(self.operation in ['Replay', 'Revert', 'Approve']) || "
            "(has(self.batchIds) ? 1 : 0) + (has(self.batchIdsFrom) ? 1 : 0) + (has(self.selector) ? 1 : 0) == 1 || "
            "(self.operation == 'Replay' && has(self.replacement) && has(self.replacement.keyColumns) && "
            "!has(self.batchIds) && !has(self.batchIdsFrom) && !has(self.selector))",
            "exactly one of batchIds, batchIdsFrom and selector is required when operation is Replay, Revert or Approve, at most "
            "one with replacement.keyColumns",
            ".batchIds",
        ),
        Rule(
            "!(self.operation in ['Erase', 'Redact']) || (has(self.rows) ? 1 : 0) + (has(self.batchIds) ? 1 : 0) "
            "+ (has(self.batchIdsFrom) ? 1 : 0) + (has(self.selector) ? 1 : 0) + (has(self.subject) ? 1 : 0) == 1",
            "exactly one of rows, batchIds, batchIdsFrom, selector and subject is required when operation is Erase or Redact",
            ".rows",
        ),
        Rule(
            "!(self.operation in ['Redact', 'Undo']) || !has(self.selector)",
            "selector is allowed only when operation is Replay, Revert, Erase or Approve",
            ".selector",
        ),
        Rule(
            "self.operation != 'Undo' || (!has(self.batchIds) && !has(self.batchIdsFrom))",
            "batchIds and batchIdsFrom are not allowed when operation is Undo, which undoes the whole Restatement "
            "that undoes names",
            ".batchIds",
        ),
        Rule(
            "self.operation != 'Approve' || (!has(self.unknownBatches) && !has(self.evictBySeconds))",
            "unknownBatches and evictBySeconds are not allowed when operation is Approve, which deletes no rows",
        ),
        Rule(
            "self.operation != 'Redact' || !has(self.unknownBatches)",
            "unknownBatches is not allowed when operation is Redact, whose batches must be in the table",
            ".unknownBatches",
        ),
        Rule(
            "!has(self.unknownBatches) || has(self.batchIds) || has(self.batchIdsFrom)",
            "unknownBatches is allowed only with batchIds or batchIdsFrom",
            ".unknownBatches",
        ),
        Rule(
            "!has(self.replacement) || !has(self.batchIds) || !(self.replacement.batchId in self.batchIds)",
            "replacement.batchId must be a new id, it cannot be one of the replaced batchIds",
            ".replacement.batchId",
        ),
    )

    dataset_ref: DatasetRef | None = None
    dataset_selector: Selector | None = None
    """The Datasets from which the subject is erased, or in which it is redacted. The operator makes a Restatement for each of
    them that declares one of the subject's identities. Datasets that are selected later, while the erasure is not verified yet,
    join.
    """
    operation: Operation
    """Replay replaces the batches by spec.replacement, in one commit. Revert deletes the batches. Erase deletes records
    or batches permanently. Redact replaces values in records or batches permanently. Undo restores the batches of a Revert,
    as long as none of its rows was purged. Approve lets the next consolidation promote batches that a check of the Dataset
    holds.
    """
    batch_ids: Annotated[tuple[Text, ...], items(1, 1000, kind="set")] = ()
    """The batches to replace, revert, erase, redact or approve."""
    batch_ids_from: BatchIdsFrom | None = None
    selector: BatchSelector | None = None
    # No default: the API server would write it into stored objects, and their keys in the ledger would change.
    unknown_batches: UnknownBatches | None = None
    """What happens if the ledger, the data files and the buffer know one of the batch ids not. Refuse, also if unset: the
    Restatement fails with the reason UnknownBatches, and changes nothing. Allow: the ids are reported and recorded, and a
    batch that arrives later with such an id is not promoted.
    """
    replacement: ReplacementSpec | None = None
    undoes: RestatementRef | None = None
    rows: RowsSpec | None = None
    subject: SubjectSpec | None = None
    redact: RedactSpec | None = None
    reason: Annotated[str, length(maximum=1024)] = ""
    """The reason, as free text. It is stored with the tombstones. Do not write personal data here."""
    ticket: Annotated[str, length(maximum=256)] = ""
    """A reference to a ticket or case. It is stored in the ledger and in the erasure record. Do not write personal data
    here.
    """
    evict_by_seconds: Annotated[int, between(0, 315_360_000)] | None = None
    """The bytes of the deleted rows, or of the redacted values, must be gone from storage this many seconds after the
    commit. If unset, they are removed when a VacuumPolicy starts a vacuum.
    """
    dry_run: bool = False
    """Change nothing, and report in status.plan what would be done, from the ledger and the bounds of data files. The
    condition Succeeded then has the reason Planned, and the ledger does not record the Restatement.
    """
    deadline_seconds: Annotated[int, between(1, 315_360_000)] | None = None
    """Fail with the reason DeadlineExceeded if the Restatement is not committed this many seconds after its creation.
    Time in which it is suspended, or in which its Dataset cannot be changed, counts.
    """
    suspend: bool = False
    """Do not start until this is false again. An active run continues, and is not retried."""
    cancel: bool = False
    """Cancel the Restatement if it is not committed yet. A committed change stays; undo it with another Restatement. A
    run that is shared with other Restatements continues for them, and its result says whether the cancellation was too
    late.
    """
    ttl_seconds_after_finished: Annotated[int, between(0, 315_360_000)] | None = None
    """Delete this resource this many seconds after it succeeded or failed, but not before its erasure is verified
    (condition Erased), if there is one. If unset, the resource is kept. The ledger keeps the result in any case.
    """

    @property
    def reference(self) -> str:
        """The run whose batches it concerns; "": it names batches or records."""
        return self.selector.reference if self.selector is not None else ""

    @property
    def dataset(self) -> str:
        """Name of the Dataset to restate; "": it erases or redacts a subject in several."""
        return self.dataset_ref.name if self.dataset_ref is not None else ""
