"""A Restatement that somebody composes in a form. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base.names import lines_of
from lethe.contract.settings import Operation
from lethe_operator.resources import manifests
from lethe_operator.resources.manifests import Note

from lethe_gateway.console import text

BY_RECORDS: Final = "EraseRecords"  # in the form it looks like an operation of its own
CHOICES: Final = (*(o.value for o in Operation), BY_RECORDS)
PLAN_SUFFIX: Final = "-plan"
IDS_AT_MOST: Final = 1000  # in the form; a list of more belongs into a file, see spec.batchIdsFrom
_DAY_SECONDS: Final = 86_400
_DAYS: Final = re.compile(r"[0-9]{1,9}")
# A name of a resource is also part of the name of a downloaded file, which is a header.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAME_AT_MOST: Final = 253


@dataclass(frozen=True)
class Draft:
    """What the fields of the form contain."""

    operation: str = Operation.REVERT.value
    """One of CHOICES."""
    batch_ids: tuple[str, ...] = ()
    new_batch: str = ""
    uri: str = ""
    key_columns: tuple[str, ...] = ()
    undoes: str = ""
    column: str = ""
    secret: str = ""
    secret_key: str = ""
    redactions: tuple[str, ...] = ()
    """As `manifests.redaction`."""
    evict_by_days: str = ""
    """Empty: no deadline."""
    reason: str = ""
    ticket: str = ""
    name: str = ""
    """Empty: made from the content."""
    allow_unknown: bool = False
    errors: Mapping[str, str] = field(default_factory=dict)
    """By field: what was expected."""


def draft_of(form: Mapping[str, Sequence[str]]) -> Draft:
    """Read a form, and say what is wrong with it."""
    one = {name: values[0].strip() for name, values in form.items() if values}
    errors: dict[str, str] = {}
    ids = _ids(form, errors)
    draft = Draft(
        operation=one.get("operation", Operation.REVERT.value),
        batch_ids=ids,
        new_batch=one.get("new_batch", ""),
        uri=one.get("uri", ""),
        key_columns=tuple(c.strip() for c in one.get("key_columns", "").split(",") if c.strip()),
        undoes=one.get("undoes", ""),
        column=one.get("column", ""),
        secret=one.get("secret", ""),
        secret_key=one.get("secret_key", ""),
        redactions=tuple(_lines(one.get("redactions", ""))),
        evict_by_days=one.get("evict_by_days", ""),
        reason=one.get("reason", ""),
        ticket=one.get("ticket", ""),
        name=one.get("name", ""),
        allow_unknown=bool(one.get("allow_unknown")),
        errors=errors,
    )
    errors |= {name: message for name, message in _missing(draft).items() if name not in errors}
    return draft


def manifest(draft: Draft, namespace: str, dataset: str) -> dict[str, Any]:
    """The Restatement of a draft without errors."""
    seconds = int(draft.evict_by_days) * _DAY_SECONDS if draft.evict_by_days else None
    may_be_unknown = bool(draft.batch_ids) and draft.operation != Operation.REDACT
    note = Note(draft.name, draft.reason, draft.ticket, seconds, draft.allow_unknown and may_be_unknown)
    body = _body(draft, dataset, note)
    body["metadata"] = {"name": body["metadata"]["name"], "namespace": namespace}
    return body


def planned(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same Restatement as a dry run."""
    metadata = {**body["metadata"], "name": f"{body['metadata']['name']}{PLAN_SUFFIX}"}
    return {**body, "metadata": metadata, "spec": {**body["spec"], "dryRun": True}}


def carried_out(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The Restatement that a dry run has planned."""
    spec = {k: v for k, v in resource["spec"].items() if k != "dryRun"}
    metadata = {
        "name": str(resource["metadata"]["name"]).removesuffix(PLAN_SUFFIX),
        "namespace": resource["metadata"]["namespace"],
    }
    return {"apiVersion": manifests.API_VERSION, "kind": "Restatement", "metadata": metadata, "spec": spec}


def _body(draft: Draft, dataset: str, note: Note) -> dict[str, Any]:
    ids = draft.batch_ids
    match draft.operation:
        case Operation.REVERT:
            return manifests.revert(dataset, ids, note)
        case Operation.ERASE:
            return manifests.erase_batches(dataset, ids, note)
        case Operation.APPROVE:
            return manifests.approve(dataset, ids, note)
        case Operation.REPLAY:
            return manifests.replay(dataset, ids, draft.new_batch, draft.uri, draft.key_columns, note)
        case Operation.UNDO:
            return manifests.undo(dataset, draft.undoes, note)
        case Operation.REDACT:
            redact = manifests.redaction(draft.redactions)
            if ids:
                return manifests.redact_batches(dataset, ids, redact, note)
            return manifests.redact_records(dataset, draft.column, draft.secret, draft.secret_key, redact, note)
        case _:
            return manifests.erase_records(dataset, draft.column, draft.secret, draft.secret_key, note)


def _ids(form: Mapping[str, Sequence[str]], errors: dict[str, str]) -> tuple[str, ...]:
    """The ids that were chosen in a list, then those that were typed, one in each line."""
    typed = [line for values in form.get("batch_ids", ()) for line in _lines(values)]
    try:
        chosen = [text.decoded(value) for value in form.get("batch", ()) if value]
    except UnicodeDecodeError:
        errors["batch_ids"] = "Choose the batches again: an id is damaged."
        return ()
    ids = tuple(dict.fromkeys([*chosen, *typed]))
    if len(ids) > IDS_AT_MOST:
        errors["batch_ids"] = f"At most {IDS_AT_MOST:,} ids. Put more into a file, and name it in spec.batchIdsFrom."
    return ids[:IDS_AT_MOST]


def _lines(typed: str) -> Iterator[str]:
    """The lines that are not blank."""
    return (line.strip() for line in lines_of(typed) if line.strip())


_RECORDS: Final[Mapping[str, str]] = {
    "column": "Name the column.",
    "secret": "Name the Secret that contains the values.",
    "secret_key": "Name the key in the Secret.",
}


def _wrong_redaction(draft: Draft) -> dict[str, str]:
    texts: dict[str, str] = {}
    try:
        manifests.redaction(draft.redactions)
    except ValueError as e:
        texts["redactions"] = f"{str(e)[:1].upper()}{str(e)[1:]}."
    if draft.batch_ids and draft.column:
        texts["column"] = "Name batches, or a column with values."
    return texts


def _missing(draft: Draft) -> dict[str, str]:
    """What the operation needs, by field. What else is wrong, the API server says."""
    texts: dict[str, str] = {}
    wanted: Mapping[str, str] = {}
    match draft.operation:
        case Operation.REVERT | Operation.ERASE | Operation.APPROVE:
            wanted = {"batch_ids": "Name at least one batch."}
        case Operation.REPLAY:
            wanted = {"new_batch": "Name the new batch.", "uri": "Give the folder of the new batch's files."}
            if not draft.key_columns:
                wanted["batch_ids"] = "Name the batches that are replaced, or key columns."
        case Operation.UNDO:
            wanted = {"undoes": "Name the Restatement to take back."}
        case Operation.REDACT:
            texts |= _wrong_redaction(draft)
            wanted = {} if draft.batch_ids else _RECORDS
        case _ if draft.operation == BY_RECORDS:
            wanted = _RECORDS
        case _:
            texts["operation"] = f"Choose one of {', '.join(CHOICES)}."
    texts |= {name: message for name, message in wanted.items() if not getattr(draft, name)}
    days = draft.evict_by_days
    if days and not (_DAYS.fullmatch(days) and 0 < int(days) <= 3650):
        texts["evict_by_days"] = "A number of days from 1 to 3,650, or nothing."
    if draft.name and (len(draft.name) > _NAME_AT_MOST or not _NAME.fullmatch(draft.name)):
        texts["name"] = "Lowercase letters, digits, hyphens and dots, or nothing."
    return texts
