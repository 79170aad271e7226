"""Signs erasure records: reads the record, compares it with the ledger, and writes a signature beside it. I/O.

A record is signed once. If it has a valid signature by the current key or an earlier one, that one is shown.

Runs have the credentials of the table, so they could change a record later; they never have the key.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from lethe.base import names
from lethe.base.errors import InputError, LetheError, Verdict
from lethe.contract.status import ErasureStatus, RestatementStatus
from lethe.erasure.record import SUFFIX, Signable, Signer, Statement, fault, signed_by
from lethe.iceberg import catalogs
from lethe.restatement.plan import recalled
from lethe.storage.file_io import file_io
from lethe.storage.object_store import TAKEN, read, write_once
from lethe.storage.vended import of_table
from pyiceberg.io import FileIO

from lethe_operator import conditions
from lethe_operator.actions import Actions, Event
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Observation, TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.json")


class NotSigned(Exception):
    """A record does not match the ledger. It gets no signature, and its erasure is not shown as verified."""


@dataclass(frozen=True)
class Signed:
    """What is carried out after records were signed, with what went wrong."""

    actions: Actions
    """In which no erasure is shown as verified whose record has no signature."""
    events: tuple[Event, ...] = ()
    failures: tuple[Exception, ...] = ()


def sign(dataset: Dataset, world: Observation, actions: Actions, settings: Settings) -> Signed:
    """Sign the records that the statuses will name. Without a key, nothing is signed."""
    signer, view = settings.signer, world.table
    if signer is None or not isinstance(view, TableView):
        return Signed(actions)
    statuses, unsigned = dict(actions.restatement_statuses), set[str]()
    events: list[Event] = []
    failures: list[Exception] = []
    for restatement in world.restatements:
        name = restatement.meta.name
        new = statuses[name].erasure if name in statuses else None
        if new is None or not new.signature or new == restatement.status.erasure:
            continue
        try:
            signature = _sign(signer, dataset, view, restatement, new, settings)
            signed = new.model_copy(update={"signature": signature})
            statuses[name] = statuses[name].model_copy(update={"erasure": signed})
        except Exception as e:
            why = str(e) if isinstance(e, NotSigned | LetheError) else f"the storage failed with {type(e).__name__}"
            text = f"The operator did not sign the erasure record: {why}. The operator retries."
            log.warning("%s: %s", restatement.meta.full_name, text)
            events.append(Event("Restatement", name, Verdict(Reason.RECORD_NOT_SIGNED, text), warning=True))
            failures.append(e)
            unsigned.add(name)
            statuses[name] = _unsigned(statuses[name], restatement.status, text)
    # None of these Restatements is deleted meanwhile: the time to live starts when the status shows the end.
    shown = tuple(e for e in actions.events if not (e.name in unsigned and e.verdict.reason == Reason.ERASED))
    return Signed(replace(actions, restatement_statuses=statuses, events=shown), tuple(events), tuple(failures))


def _unsigned(status: RestatementStatus, before: RestatementStatus, text: str) -> RestatementStatus:
    """The status with an erasure that is not shown as verified, and why.

    Args:
        before: The status that the API server has.
    """
    known = before.condition(conditions.ERASED)
    changes: dict[str, object] = {
        "status": conditions.FALSE,
        "reason": str(Reason.RECORD_NOT_SIGNED),
        "message": text[: conditions.MESSAGE_AT_MOST],
    }
    if known is not None and known.status == conditions.FALSE:
        changes["last_transition_time"] = known.last_transition_time
    unsigned = [c.model_copy(update=changes) if c.type == conditions.ERASED else c for c in status.conditions or ()]
    return status.model_copy(update={"erasure": None, "conditions": tuple(unsigned)})


def _sign(
    signer: Signer,
    dataset: Dataset,
    view: TableView,
    restatement: Restatement,
    erasure: ErasureStatus,
    settings: Settings,
) -> str:
    """Sign a record.

    Returns:
        The signature, as a status shows it.

    Raises:
        NotSigned: A record does not match the ledger.
        LetheError: Another error of Lethe; its reason says which.
        Exception: What the storage raises.
    """
    uri, digest = str(erasure.record), str(erasure.record_sha256)
    folder, _, name = uri.rpartition("/")
    expected = f"{view.location.rstrip('/')}/{names.ERASURES_FOLDER}"
    if folder != expected or not _NAME.fullmatch(name):
        raise NotSigned(f"the ledger names {uri}, expected a record in {expected}/")
    properties = of_table(catalogs.properties(dataset.spec.table.catalog), dataset.spec.table.name)
    io = file_io(properties, uri)
    content = read(uri, io, properties)
    if content is None:
        raise NotSigned(f"the ledger names {uri}, which does not exist")
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotSigned(f"the SHA-256 of {uri} differs from the one in the ledger ({digest})")
    try:
        document = json.loads(content)
        key, table = document["restatement"]["key"], document["table"]["uuid"]
        verified = document["verified"]["time"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotSigned(f"{uri} is not a valid erasure record") from None
    if (key, table) != (restatement.key, view.uuid):
        raise NotSigned(f"{uri} is the record of another erasure")
    statement = Statement(view.uuid, restatement.key, digest, datetime.fromisoformat(verified))
    entry = view.ledger.requests.get(restatement.key)
    closed = recalled(entry).erasure if entry is not None else None
    if closed is None or closed.verified_time != statement.verified_time:
        raise NotSigned(f"the verification time in {uri} differs from the one in the ledger")
    return signature_beside(uri, statement, io, properties, settings, signer)


def signature_beside(
    uri: str, statement: Signable, io: FileIO, properties: Mapping[str, str], settings: Settings, signer: Signer
) -> str:
    """Write the signature of a record beside it, or keep the valid one that is there.

    Args:
        properties: Of the catalog, with PyIceberg's names.

    Returns:
        The signature, as a status shows it.

    Raises:
        NotSigned: Another file is in its place.
        LetheError: Another error of Lethe; its reason says which.
        Exception: What the storage raises.
    """
    keys, file = (signer.public, *settings.former_keys), f"{uri}{SUFFIX}"
    if (kept := read(file, io, properties)) is None:
        try:
            write_once(file, signer.file(statement), io, properties, settings.record_retention)
        except InputError as e:  # an operator with another key may have been faster
            kept = read(file, io, properties) if e.reason == TAKEN else None
            if kept is None:
                raise
        else:
            return signed_by(signer.file(statement))
    if (why := fault(kept, statement, keys)) is not None:
        raise NotSigned(
            f"{file} exists with another content, and it is never overwritten: {why}. If an earlier key made it, add that key "
            "to the Secret of the signing key, under any name that ends in .pem. Otherwise find out who wrote it"
        )
    return signed_by(kept)
