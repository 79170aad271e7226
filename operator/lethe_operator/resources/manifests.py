"""The resources that the commands create. Pure."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from lethe.contract.kubernetes import API_VERSION
from lethe.contract.settings import Operation, RedactionMethod, UnknownBatches

from lethe_operator.resources.vacuum_policy import BATCHES

_NAME_AT_MOST: Final = 200


@dataclass(frozen=True)
class Note:
    """What a Restatement says about itself."""

    name: str = ""
    """Empty: made from the spec, so that repeating a command creates nothing new."""
    reason: str = ""
    ticket: str = ""
    evict_by_seconds: int | None = None
    """None: no deadline."""
    allow_unknown: bool = False
    """Accept batches that the Dataset does not know."""


def revert(dataset: str, batch_ids: Sequence[str], note: Note, reference: str = "") -> dict[str, Any]:
    """A Restatement that deletes the rows of batches. Their bytes stay until a vacuum.

    Args:
        dataset: Its name.
        batch_ids: The batches.
        note: What it says about itself.
        reference: Instead of ids: of the run of another program that delivered the batches.
    """
    return _restatement(dataset, Operation.REVERT, _batches(batch_ids, reference), note)


def approve(dataset: str, batch_ids: Sequence[str], note: Note, reference: str = "") -> dict[str, Any]:
    """A Restatement that lets the next consolidation promote batches that checks hold. `reference` as in `revert`."""
    return _restatement(dataset, Operation.APPROVE, _batches(batch_ids, reference), note)


def erase_batches(dataset: str, batch_ids: Sequence[str], note: Note, reference: str = "") -> dict[str, Any]:
    """A Restatement that deletes the rows of batches, which then must leave the storage. `reference` as in `revert`."""
    return _restatement(dataset, Operation.ERASE, _batches(batch_ids, reference), note)


def _batches(batch_ids: Sequence[str], reference: str) -> dict[str, Any]:
    return {"selector": {"reference": reference}} if reference else {"batchIds": list(batch_ids)}


def erase_records(dataset: str, column: str, secret: str, key: str, note: Note) -> dict[str, Any]:
    """A Restatement that erases the rows whose column has one of the values in a key of a Secret."""
    rows = {"column": column, "valuesFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return _restatement(dataset, Operation.ERASE, {"rows": rows}, note)


@dataclass(frozen=True)
class SubjectValues:
    """Where the values of an identity are."""

    identity: str
    """Its name in spec.identities of Datasets."""
    secret: str
    key: str


def subject_request(
    identities: Sequence[SubjectValues],
    selector: Mapping[str, Any],
    note: Note,
    delete_values: bool = False,
    redact: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A Restatement that erases a subject from the Datasets of a namespace, or redacts it there.

    Args:
        identities: At least one.
        selector: Of Datasets, as in the API; empty selects all of them.
        note: What it says about itself.
        delete_values: Delete the Secrets when the erasure is verified.
        redact: As `redaction`; None: erase the rows.
    """
    subject = subject_of(identities, delete_values)
    spec = {"datasetSelector": dict(selector), "operation": Operation.ERASE.value, "subject": subject}
    return _noted(
        spec if redact is None else {**spec, "operation": Operation.REDACT.value, "redact": dict(redact)}, note
    )


def subject_of(identities: Sequence[SubjectValues], delete_values: bool) -> dict[str, Any]:
    """The field spec.subject of a Restatement."""
    every = [
        {"identity": i.identity, "valuesFrom": {"secretKeyRef": {"name": i.secret, "key": i.key}}} for i in identities
    ]
    subject: dict[str, Any] = dict(every[0]) if len(every) == 1 else {"anyOf": every}
    return {**subject, "deleteValues": True} if delete_values else subject


def values_secret(name: str, values: Mapping[str, str], owner: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The Secret with the values of an Erase. It cannot change: a run that repeats another one finds the same values.

    Args:
        name: Of the Secret.
        values: By key, one per line.
        owner: The Restatement, as the API server has it, with which it is deleted. None: of a dry run.
    """
    owners = {"ownerReferences": [owner_reference(owner)]} if owner is not None else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, **owners},
        "immutable": True,
        "data": {key: b64encode(text.encode()).decode() for key, text in values.items()},
    }


def owner_reference(restatement: Mapping[str, Any]) -> dict[str, Any]:
    """What makes Kubernetes delete an object together with a Restatement."""
    metadata = restatement["metadata"]
    return {"apiVersion": API_VERSION, "kind": "Restatement", "name": metadata["name"], "uid": metadata["uid"]}


def redact_batches(dataset: str, batch_ids: Sequence[str], redact: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """A Restatement that redacts the rows of batches.

    Args:
        redact: As `redaction`.
    """
    return _restatement(dataset, Operation.REDACT, {"batchIds": list(batch_ids), "redact": dict(redact)}, note)


def redact_records(
    dataset: str, column: str, secret: str, key: str, redact: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    """A Restatement that redacts the rows whose column has one of the values in a key of a Secret.

    Args:
        redact: As `redaction`.
    """
    rows = {"column": column, "valuesFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return _restatement(dataset, Operation.REDACT, {"rows": rows, "redact": dict(redact)}, note)


REDACTION_FORM: Final = "COLUMN=null, COLUMN=constant:TEXT or COLUMN=hash:SECRET/KEY"


def redaction(texts: Iterable[str]) -> dict[str, Any]:
    """`spec.redact` from texts of REDACTION_FORM, one for each column.

    Raises:
        ValueError: A text has another form, or two texts name different keys. Its text says so.
    """
    columns: list[dict[str, str]] = []
    keys: set[tuple[str, str]] = set()
    for text in texts:
        column, _, how = text.partition("=")
        kind, has_value, value = how.partition(":")
        secret, has_key, key = value.partition("/")
        match kind:
            case "null" if column and not has_value:
                columns.append({"column": column, "method": RedactionMethod.SET_NULL.value})
            case "constant" if column and has_value:
                columns.append({"column": column, "method": RedactionMethod.CONSTANT.value, "value": value})
            case "hash" if column and secret and has_key and key:
                columns.append({"column": column, "method": RedactionMethod.KEYED_HASH.value})
                keys.add((secret, key))
            case _:
                raise ValueError(f"{text!r} is not of the form {REDACTION_FORM}")
    if not columns:
        raise ValueError(f"name at least one column: {REDACTION_FORM}")
    if len(keys) > 1:
        raise ValueError("all hashes of a Redact have the same key")
    found: dict[str, Any] = {"columns": columns}
    for secret, key in keys:
        found["hashKeyFrom"] = {"secretKeyRef": {"name": secret, "key": key}}
    return found


def undo(dataset: str, restatement: str, note: Note) -> dict[str, Any]:
    """A Restatement that takes back another one, which it names."""
    return _restatement(dataset, Operation.UNDO, {"undoes": {"name": restatement}}, note)


def replay(
    dataset: str,
    batch_ids: Sequence[str],
    new_batch: str,
    uri: str,
    key_columns: Sequence[str],
    note: Note,
    reference: str = "",
) -> dict[str, Any]:
    """A Restatement that replaces batches, or the rows with equal values in key columns, with a new batch.

    `reference` as in `revert`.
    """
    replacement: dict[str, Any] = {"batchId": new_batch, "uri": uri}
    if key_columns:
        replacement["keyColumns"] = list(key_columns)
    ids = _batches(batch_ids, reference) if batch_ids or reference else {}
    return _restatement(dataset, Operation.REPLAY, {**ids, "replacement": replacement}, note)


def _restatement(dataset: str, operation: Operation, what: dict[str, Any], note: Note) -> dict[str, Any]:
    return _noted({"datasetRef": {"name": dataset}, "operation": operation.value, **what}, note)


def _noted(spec: dict[str, Any], note: Note) -> dict[str, Any]:
    unknown = UnknownBatches.ALLOW.value if note.allow_unknown else None
    for field, value in (
        ("unknownBatches", unknown),
        ("reason", note.reason),
        ("ticket", note.ticket),
        ("evictBySeconds", note.evict_by_seconds),
    ):
        if value not in ("", None):
            spec[field] = value
    return restatement(spec, note.name)


def restatement(spec: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """A Restatement with a spec as the API has it.

    Args:
        spec: With `operation`, and `datasetRef` or `subject`.
        name: Empty: made from the spec, so that the same again creates nothing new.
    """
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:10]
    of = str((spec.get("datasetRef") or {"name": "subject"})["name"])
    made = f"{spec['operation'].lower()}-{of[:_NAME_AT_MOST]}-{digest}"
    return {
        "apiVersion": API_VERSION,
        "kind": "Restatement",
        "metadata": {"name": name or made},
        "spec": dict(spec),
    }


def without_defaults(spec: Any) -> Any:
    """A spec without the defaults that the API server adds, all of which are false."""
    if isinstance(spec, Mapping):
        return {k: without_defaults(v) for k, v in spec.items() if v is not False}
    return [without_defaults(v) for v in spec] if isinstance(spec, list) else spec


def vacuum_now(now: datetime, batch_ids: Sequence[str]) -> str:
    """A value of the annotation lethe.dev/vacuum-now: a new one for each second."""
    batches = [f"{BATCHES}{','.join(quote(i, safe='') for i in batch_ids)}"] if batch_ids else []
    return " ".join([f"{now:%Y-%m-%dT%H:%M:%SZ}", *batches])
