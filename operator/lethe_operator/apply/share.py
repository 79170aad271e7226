"""Starts offered runs: one Job for several Datasets, or one Job for a Dataset that shares with no other. I/O."""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime

from lethe_operator.apply import events
from lethe_operator.apply.dataset_objects import NameTaken
from lethe_operator.apply.launch import Launched, launch, launch_shared
from lethe_operator.apply.offers import Offer, Offers
from lethe_operator.decide.actions import Event
from lethe_operator.kube import Kube, KubeError
from lethe_operator.reasons import Reason
from lethe_operator.resources.members import SharedJob
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def start_gathered(
    kube: Kube, namespace: str, offers: Offers, there: Collection[SharedJob], now: datetime, settings: Settings
) -> datetime | None:
    """Start the runs that have waited long enough. A run that could not be started stays on offer.

    Args:
        there: The shared Jobs of the namespace. One of them may already carry out a run, if the answer to its creation was lost.
    Returns: When to look again; None: when another run is offered.
    Raises: the first NameTaken or KubeError, after all else was tried.
    """
    failures: list[Exception] = []
    started = {(m.uid, m.run_id, m.attempt) for job in there for m in job.members if m.uid in job.needed_by}
    with offers.taken(namespace, now, settings.shared_runs) as (gathered, by_dataset):
        for names in gathered.groups:
            group = [by_dataset[name] for name in names]
            group = [o for o in group if not _is_in(o, started)]
            try:
                launched = _start(kube, group, settings) if group else None
            except (NameTaken, KubeError) as e:
                reason = Reason.NAME_TAKEN if isinstance(e, NameTaken) else Reason.LAUNCH_FAILED
                _post(kube, namespace, group, reason, str(e), warning=True)
                failures.append(e)
                continue
            for name in names:
                offers.withdraw(namespace, name)
            if launched is not None and launched.created:
                company = f", shared by {len(group)} Datasets" if len(group) > 1 else ""
                _post(kube, namespace, group, Reason.RUN_STARTED, f"Consolidation {launched.job} started{company}")
    if failures:
        raise failures[0]
    return gathered.look_again


def _is_in(offer: Offer, started: Collection[tuple[str, str, int]]) -> bool:
    run = offer.prepared.wanted.run
    return (run.dataset.uid, run.run_id, run.attempt) in started


def _start(kube: Kube, group: Sequence[Offer], settings: Settings) -> Launched:
    if len(group) == 1:
        return launch(kube, group[0].prepared, settings)
    return launch_shared(kube, [o.prepared for o in group], settings)


def _post(kube: Kube, namespace: str, group: Sequence[Offer], reason: str, text: str, warning: bool = False) -> None:
    for offer in group:
        wanted = offer.prepared.wanted
        message = text if warning else f"{text}: {wanted.why}."
        event = Event("Dataset", offer.dataset, reason, message, warning)
        events.post(kube, namespace, (event,), {("Dataset", offer.dataset): wanted.run.dataset.uid})
