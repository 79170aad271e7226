"""Starts a run: creates its rights, its intent and its Job, in this order. Each step may be repeated. I/O."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lethe.contract.run import RunSpec
from lethe.contract.run_fields import log_fields
from lethe.logs import about

from lethe_operator.apply import intent
from lethe_operator.apply.dataset_objects import DatasetObjects, require_owner
from lethe_operator.build import job as build
from lethe_operator.build import names, pod
from lethe_operator.build.launcher import run_object
from lethe_operator.build.sizing import merged, size, within
from lethe_operator.decide.actions import Launch
from lethe_operator.kube import BY_NAME, CONFIG_MAPS, AlreadyExists, Kube
from lethe_operator.resources.common import EXECUTOR_KEY, PROGRESS_KEY, RESULT_KEY, RUN_KEY
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launched:
    job: str  # its name
    created: bool  # False: it existed already


def launch(
    kube: Kube,
    dataset: Dataset,
    wanted: Launch,
    table: TableView | NoTable | Unavailable,
    settings: Settings,
    objects: DatasetObjects | None = None,
) -> Launched:
    """Create the rights and the intent of a run, then its Job or SparkApplication, exactly once; safe to repeat after any crash.

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
    record = build.AttemptRecord(wanted.generation, wanted.for_uid, wanted.failures)
    document = run_object(run, chosen, template, record, settings, wanted.secrets)
    launched = _create(kube, document, run)
    if launched.created:
        with about(**log_fields(run)):
            log.info("%s: %s with %s executors: %s", run.dataset.claim, launched.job, chosen.executors, wanted.why)
    return launched


def _create(kube: Kube, document: Mapping[str, Any], run: RunSpec) -> Launched:
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    kind = BY_NAME[document["kind"]]
    try:
        kube.create(kind, namespace, document)
    except AlreadyExists:
        require_owner(kube.get(kind, namespace, name), run.dataset)
        return Launched(name, created=False)
    return Launched(name, created=True)


def _store_intent(kube: Kube, run: RunSpec, run_json: str, executor: Mapping[str, Any]) -> None:
    prefix = names.key_prefix(run.run_id)
    data = {
        f"{prefix}{RUN_KEY}": run_json,
        f"{prefix}{EXECUTOR_KEY}": json.dumps(executor),
        f"{prefix}{PROGRESS_KEY}": None,
        f"{prefix}{RESULT_KEY}": None,
    }
    kube.patch(CONFIG_MAPS, run.dataset.namespace, names.shared(run.dataset.name), {"data": data})
