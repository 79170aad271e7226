"""Starts a run: creates its rights, its intent and its Job, in this order. Each step may be repeated. I/O."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.contract.run import DatasetRef, RunSpec
from lethe.contract.run_fields import log_fields
from lethe.logs import about

from lethe_operator.apply import intent
from lethe_operator.apply.dataset_objects import DatasetObjects, account_marks, ensure, require_owner
from lethe_operator.build import job as build
from lethe_operator.build import names, pod
from lethe_operator.build.dataset_objects import shared_job_objects
from lethe_operator.build.launcher import run_object
from lethe_operator.build.sizing import Size, merged, size, within
from lethe_operator.decide.actions import Launch
from lethe_operator.kube import (
    BY_NAME,
    CONFIG_MAPS,
    JOBS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    AlreadyExists,
    Kube,
)
from lethe_operator.resources.common import EXECUTOR_KEY, PROGRESS_KEY, RESULT_KEY, RUN_KEY
from lethe_operator.resources.dataset import Dataset, RunTemplate
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launched:
    job: str  # its name
    created: bool  # False: it existed already


@dataclass(frozen=True)
class Prepared:
    """A run whose intent is stored."""

    wanted: Launch
    size: Size
    template: RunTemplate  # of the chart and the Dataset, merged and within the boundary


def prepare(
    kube: Kube,
    dataset: Dataset,
    wanted: Launch,
    table: TableView | NoTable | Unavailable,
    settings: Settings,
    objects: DatasetObjects | None = None,
) -> Prepared:
    """Create the rights and the intent of a run; safe to repeat.

    Args:
        objects: Remembers which rights exist; None: nothing does.
    Raises: NameTaken, NoPlaceForRun, KubeError.
    """
    run = wanted.run
    asked = merged(settings.run_template, dataset.spec.run_template)
    template = within(asked, settings.boundaries.of(dataset.meta.namespace))
    chosen = size(wanted.bytes, template)
    certainly = run.attempt > 1  # their absence may be why the last attempt failed
    (objects or DatasetObjects()).ensure(kube, run.dataset, settings, chosen.executors > 0, certainly)
    _store_intent(kube, run, intent.document(run, table), pod.executor(run, chosen, template.pod_template, settings))
    return Prepared(wanted, chosen, template)


def launch(kube: Kube, prepared: Prepared, settings: Settings) -> Launched:
    """Create the run's Job or SparkApplication exactly once; safe to repeat after any crash. Raises: NameTaken, KubeError."""
    wanted, run = prepared.wanted, prepared.wanted.run
    record = build.AttemptRecord(wanted.generation, wanted.for_uid, wanted.failures)
    document = run_object(run, prepared.size, prepared.template, record, settings, wanted.secrets)
    launched = _create(kube, document, [run.dataset])
    if launched.created:
        with about(**log_fields(run)):
            log.info(
                "%s: %s with %s executors: %s", run.dataset.claim, launched.job, prepared.size.executors, wanted.why
            )
    return launched


def launch_shared(kube: Kube, together: Sequence[Prepared], settings: Settings) -> Launched:
    """The same for runs of several Datasets that share a driver, in one Job."""
    first = together[0]
    runs = [(p.wanted.run, p.wanted.generation) for p in together]
    datasets = [r.dataset for r, _ in runs]
    ensure(kube, shared_job_objects([r for r, _ in runs], account_marks(datasets[0], settings)), datasets)
    document = build.shared_job(runs, first.size, first.template.pod_template, settings)
    launched = _create(kube, document, datasets)
    if launched.created:
        log.info("%s for %s", launched.job, ", ".join(r.dataset.claim for r, _ in runs))
    return launched


def _create(kube: Kube, document: Mapping[str, Any], datasets: Sequence[DatasetRef]) -> Launched:
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    kind = BY_NAME[document["kind"]]
    try:
        kube.create(kind, namespace, document)
    except AlreadyExists:
        found = kube.get(kind, namespace, name)
        for dataset in datasets:
            require_owner(found, dataset)
        return Launched(name, created=False)
    return Launched(name, created=True)


def delete_shared(kube: Kube, namespace: str, job: str) -> None:
    """Delete a Job that several Datasets shared. Its driver's rights go first, so that none remain after a crash.

    Raises: KubeError.
    """
    for kind in (ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS):
        kube.delete(kind, namespace, job)
    kube.delete(JOBS, namespace, job, policy="Foreground")


def _store_intent(kube: Kube, run: RunSpec, run_json: str, executor: Mapping[str, Any]) -> None:
    prefix = names.key_prefix(run.run_id)
    data = {
        f"{prefix}{RUN_KEY}": run_json,
        f"{prefix}{EXECUTOR_KEY}": json.dumps(executor),
        f"{prefix}{PROGRESS_KEY}": None,
        f"{prefix}{RESULT_KEY}": None,
    }
    kube.patch(CONFIG_MAPS, run.dataset.namespace, names.shared(run.dataset.name), {"data": data})
