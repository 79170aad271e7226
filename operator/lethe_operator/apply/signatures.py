"""The operator signs records of erasures: it reads the record, compares it with the ledger, and puts a signature beside it. I/O.

Runs hold the credentials of the table, so they could write any record later; they never hold the key.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import LetheError
from lethe.erasure.signature import SUFFIX, Signer, Statement
from lethe.iceberg import catalogs
from lethe.storage.vended import of_table
from lethe.storage.write_once import read, write_once
from pyiceberg.io import load_file_io

from lethe_operator.decide.actions import Actions, Event
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.json")


class NotSigned(Exception):
    """A record is not what the ledger says: it gets no signature, and its erasure is not shown as verified."""


@dataclass(frozen=True)
class Signed:
    """`actions`: without the statuses that would show an erasure whose record has no signature."""

    actions: Actions
    events: tuple[Event, ...] = ()
    failures: tuple[Exception, ...] = ()


def sign(dataset: Dataset, world: World, actions: Actions, settings: Settings) -> Signed:
    """Put signatures beside the records that statuses are about to name. Without a key there are none."""
    signer, view = settings.signer, world.table
    if signer is None or not isinstance(view, TableView):
        return Signed(actions)
    statuses = dict(actions.restatement_statuses)
    events: list[Event] = []
    failures: list[Exception] = []
    for restatement in world.restatements:
        name = restatement.meta.name
        new = (statuses.get(name) or {}).get("erasure") or {}
        if not new.get("signature") or new == restatement.status.get("erasure"):
            continue
        try:
            _sign(signer, dataset, view, restatement, new, settings)
        except Exception as e:
            why = str(e) if isinstance(e, NotSigned | LetheError) else f"the storage answers {type(e).__name__}"
            text = f"The record of its erasure is not signed: {why}. It is tried again."
            log.warning("%s: %s", restatement.meta.full_name, text)
            events.append(Event("Restatement", name, Reason.RECORD_NOT_SIGNED, text, warning=True))
            failures.append(e)
            del statuses[name]
    # A time to live is over only once the end is shown, so that none of these is deleted meanwhile.
    return Signed(replace(actions, restatement_statuses=statuses), tuple(events), tuple(failures))


def _sign(
    signer: Signer,
    dataset: Dataset,
    view: TableView,
    restatement: Restatement,
    erasure: Mapping[str, Any],
    settings: Settings,
) -> None:
    """Raises: NotSigned, LetheError; what the storage raises."""
    uri, digest = str(erasure["record"]), str(erasure["recordSha256"])
    folder, _, name = uri.rpartition("/")
    expected = f"{view.location.rstrip('/')}/{names.ERASURES_FOLDER}"
    if folder != expected or not _NAME.fullmatch(name):
        raise NotSigned(f"the ledger names {uri}, expected a record in {expected}/")
    properties = of_table(catalogs.properties(dataset.spec.table.catalog), dataset.spec.table.name)
    io = load_file_io(dict(properties), uri)
    content = read(uri, io, properties)
    if content is None:
        raise NotSigned(f"the ledger names {uri}, and no file is there")
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotSigned(f"the SHA-256 of {uri} is not the one that the ledger says ({digest})")
    try:
        document = json.loads(content)
        key, table = document["restatement"]["key"], document["table"]["uuid"]
        verified = document["verified"]["time"]
    except (ValueError, KeyError, TypeError):
        raise NotSigned(f"{uri} is not readable as an erasure record") from None
    if (key, table) != (restatement.key, view.uuid):
        raise NotSigned(f"{uri} is the record of another erasure")
    statement = Statement(view.uuid, restatement.key, digest, datetime.fromisoformat(verified))
    if signer.sign(statement) != erasure["signature"].partition(":")[2]:
        raise NotSigned(f"{uri} says another time of its verification than the ledger")
    write_once(f"{uri}{SUFFIX}", signer.file(statement), io, properties, settings.record_retention)
