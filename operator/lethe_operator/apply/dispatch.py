"""Hands runs to the committer of a namespace. Each step may be repeated. I/O."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from lethe.contract.run import DatasetRef, MailboxEntry

from lethe_operator.apply import intent
from lethe_operator.apply.launch import Launched, ensure_dataset_objects
from lethe_operator.build import mailbox, names
from lethe_operator.decide.actions import Launch
from lethe_operator.kube import CONFIG_MAPS, Kube
from lethe_operator.resources.common import DISPATCH_KEY, PROGRESS_KEY, RESULT_KEY, RUN_KEY
from lethe_operator.resources.observed import Attempt, NoTable, TableView, Unavailable
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def dispatch(
    kube: Kube, wanted: Launch, table: TableView | NoTable | Unavailable, now: datetime, settings: Settings
) -> Launched:
    """Store the run and the note that the committer has it, then write the mailbox. After a crash in between, `remind` writes it.

    Raises: NameTaken, NoPlaceForRun, KubeError.
    """
    run = wanted.run
    ensure_dataset_objects(kube, run.dataset, settings)
    asked = mailbox.dispatch(run, wanted.generation, wanted.for_uid, now)
    prefix = names.key_prefix(run.run_id)
    data: dict[str, str | None] = dict.fromkeys((prefix + PROGRESS_KEY, prefix + RESULT_KEY))
    data[prefix + RUN_KEY] = intent.document(run, table)
    data[prefix + DISPATCH_KEY] = asked.model_dump_json(by_alias=True)
    kube.patch(CONFIG_MAPS, run.dataset.namespace, names.shared(run.dataset.name), {"data": data})
    entry = mailbox.entry(run.dataset, run.run_id, run.family, run.attempt, now)
    _write_mailbox(kube, run.dataset.namespace, {prefix: entry}, settings)
    log.info("%s: %s by the committer: %s", run.dataset.claim, asked.name, wanted.why)
    return Launched(asked.name, created=True)


def remind(kube: Kube, dataset: DatasetRef, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Write mailbox entries again that a crash may have prevented. Raises: KubeError."""
    found = (mailbox.entry(dataset, a.run_id, a.kind.family, a.number, a.created) for a in attempts)
    _write_mailbox(kube, dataset.namespace, {e.prefix: e for e in found}, settings)


def withdraw(kube: Kube, namespace: str, keys: Iterable[str], settings: Settings) -> None:
    """Remove mailbox entries that no committer will carry out. Raises: KubeError."""
    _write_mailbox(kube, namespace, dict.fromkeys(keys), settings)


def _write_mailbox(kube: Kube, namespace: str, entries: Mapping[str, MailboxEntry | None], settings: Settings) -> None:
    if entries:
        data = {key: None if entry is None else entry.to_json() for key, entry in entries.items()}
        kube.patch(CONFIG_MAPS, namespace, settings.committer.name, {"data": data})
