"""Hands runs to a process of the namespace: the committer, or the warm driver. Each step may be repeated. I/O."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import assert_never

from lethe.contract.run import DatasetRef, MailboxEntry
from lethe.contract.run_fields import log_fields
from lethe.logs import about

from lethe_operator.apply import intent
from lethe_operator.apply.dataset_objects import DatasetObjects
from lethe_operator.apply.launch import Launched
from lethe_operator.build import mailbox, names
from lethe_operator.decide.actions import Launch
from lethe_operator.kube import CONFIG_MAPS, Kube
from lethe_operator.resources.common import DISPATCH_KEY, PROGRESS_KEY, RESULT_KEY, RUN_KEY
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import Attempt, NoTable, TableView, Unavailable
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def dispatch(
    kube: Kube,
    wanted: Launch,
    table: TableView | NoTable | Unavailable,
    now: datetime,
    settings: Settings,
    objects: DatasetObjects | None = None,
) -> Launched:
    """Store the run and the note which process has it, then write the mailbox. After a crash in between, `remind` writes it.

    Args:
        objects: Remembers which rights exist; None: nothing does.
    Raises: NameTaken, NoPlaceForRun, KubeError.
    """
    run = wanted.run
    (objects or DatasetObjects()).ensure(kube, run.dataset, settings, certainly=run.attempt > 1)
    asked = mailbox.dispatch(run, wanted.generation, wanted.for_uid, wanted.engine, now)
    prefix = names.key_prefix(run.run_id)
    data: dict[str, str | None] = dict.fromkeys((prefix + PROGRESS_KEY, prefix + RESULT_KEY))
    data[prefix + RUN_KEY] = intent.document(run, table)
    data[prefix + DISPATCH_KEY] = asked.model_dump_json(by_alias=True)
    kube.patch(CONFIG_MAPS, run.dataset.namespace, names.shared(run.dataset.name), {"data": data})
    entry = mailbox.entry(run.dataset, run.run_id, run.family, run.attempt, now)
    _write_mailbox(kube, run.dataset.namespace, wanted.engine, {prefix: entry}, settings)
    with about(**log_fields(run)):
        log.info("%s: %s by the %s: %s", run.dataset.claim, asked.name, wanted.engine, wanted.why)
    return Launched(asked.name, created=True)


def remind(kube: Kube, dataset: DatasetRef, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Write mailbox entries again that a crash may have prevented. Raises: KubeError."""
    for engine, mine in _by_engine(attempts):
        found = (mailbox.entry(dataset, a.run_id, a.kind.family, a.number, a.created) for a in mine)
        _write_mailbox(kube, dataset.namespace, engine, {e.prefix: e for e in found}, settings)


def cancel(kube: Kube, dataset: DatasetRef, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Ask for the end of attempts. The process delivers a result for each, also if it had not begun. Raises: KubeError."""
    for engine, mine in _by_engine(attempts):
        found = (mailbox.entry(dataset, a.run_id, a.kind.family, a.number, a.created, cancelled=True) for a in mine)
        _write_mailbox(kube, dataset.namespace, engine, {e.prefix: e for e in found}, settings)


def withdraw(kube: Kube, namespace: str, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Remove mailbox entries that no process will carry out. Raises: KubeError."""
    for engine, mine in _by_engine(attempts):
        keys = [names.key_prefix(a.run_id) for a in mine]
        _write_mailbox(kube, namespace, engine, dict.fromkeys(keys), settings)


def _by_engine(attempts: Iterable[Attempt]) -> Iterable[tuple[Engine, list[Attempt]]]:
    found: dict[Engine, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.engine, []).append(attempt)
    return found.items()


def _write_mailbox(
    kube: Kube, namespace: str, engine: Engine, entries: Mapping[str, MailboxEntry | None], settings: Settings
) -> None:
    if entries:
        data = {key: None if entry is None else entry.to_json() for key, entry in entries.items()}
        kube.patch(CONFIG_MAPS, namespace, _mailbox_of(engine, settings), {"data": data})


def _mailbox_of(engine: Engine, settings: Settings) -> str:
    match engine:
        case Engine.COMMITTER:
            return settings.committer.name
        case Engine.WARM_DRIVER:
            return settings.warm_drivers.name
        case Engine.JOB:
            raise AssertionError("a Job has no mailbox")
        case _:
            assert_never(engine)
