"""Signs erasure records: reads the record, compares it with the ledger, and writes a signature beside it. I/O.

Runs have the credentials of the table, so they could change a record later; they never have the key.
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
    """A record does not match the ledger. It gets no signature, and its erasure is not shown as verified."""


@dataclass(frozen=True)
class Signed:
    actions: Actions  # without the statuses of erasures whose record has no signature
    events: tuple[Event, ...] = ()
    failures: tuple[Exception, ...] = ()


def sign(dataset: Dataset, world: World, actions: Actions, settings: Settings) -> Signed:
    """Sign the records that the statuses will name. Without a key, nothing is signed."""
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
            why = str(e) if isinstance(e, NotSigned | LetheError) else f"the storage failed with {type(e).__name__}"
            text = f"The operator did not sign the erasure record: {why}. The operator retries."
            log.warning("%s: %s", restatement.meta.full_name, text)
            events.append(Event("Restatement", name, Reason.RECORD_NOT_SIGNED, text, warning=True))
            failures.append(e)
            del statuses[name]
    # None of these Restatements is deleted meanwhile: the time to live starts when the status shows the end.
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
        raise NotSigned(f"the ledger names {uri}, which does not exist")
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotSigned(f"the SHA-256 of {uri} differs from the one in the ledger ({digest})")
    try:
        document = json.loads(content)
        key, table = document["restatement"]["key"], document["table"]["uuid"]
        verified = document["verified"]["time"]
    except (ValueError, KeyError, TypeError):
        raise NotSigned(f"{uri} is not a valid erasure record") from None
    if (key, table) != (restatement.key, view.uuid):
        raise NotSigned(f"{uri} is the record of another erasure")
    statement = Statement(view.uuid, restatement.key, digest, datetime.fromisoformat(verified))
    if signer.sign(statement) != erasure["signature"].partition(":")[2]:
        raise NotSigned(f"the verification time in {uri} differs from the one in the ledger")
    write_once(f"{uri}{SUFFIX}", signer.file(statement), io, properties, settings.record_retention)
