"""Actions -> the world. I/O. One act that fails does not keep the others from being done."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from lethe.buffer.digest import BufferDigest
from lethe.contract.run import DatasetRef
from lethe.guards.claim import Holder, Owner, holder_of, rejected
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BufferedObject
from lethe.storage.buffer import open_buffer
from lethe.storage.surroundings import Adopted, take_claim

from lethe_operator.apply import events, status
from lethe_operator.apply.dispatch import dispatch, remind, withdraw
from lethe_operator.apply.intent import NoPlaceForRun
from lethe_operator.apply.launch import NameTaken, launch, prepare
from lethe_operator.apply.offers import Offer, Offers
from lethe_operator.apply.places import Places
from lethe_operator.apply.signatures import sign
from lethe_operator.apply.status_pool import write_all
from lethe_operator.build import names
from lethe_operator.build.sharing import company
from lethe_operator.decide.actions import Actions, Event, Launch
from lethe_operator.decide.vacuum import policy_status
from lethe_operator.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    RESTATEMENTS,
    VACUUM_POLICIES,
    Document,
    Kube,
    KubeError,
    NotFound,
)
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.members import member_label
from lethe_operator.resources.observed import World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)

# After somebody else took the last place; by then its Job is seen.
SOON = timedelta(seconds=1)


def carry_out(
    kube: Kube,
    dataset: Dataset,
    world: World,
    actions: Actions,
    settings: Settings,
    offers: Offers,
    places: Places,
    now: datetime,
    written: Callable[[Document], None],
) -> datetime | None:
    """Do everything that was decided for a Dataset. What starts does not wait for the statuses of Restatements, of which there
    may be thousands; a Job is cleaned up only after its outcome is shown.

    Args:
        offers: Where a run that may share a driver waits for company.
        places: Where a vacuum takes one.
        written: Hears of each Restatement whose status was written, as it is then.
    Returns: When to decide anew, since somebody else was faster; None: whenever something happens.
    Raises: the first KubeError, after all else was tried, so that the reconcile is repeated with a pause.
    """
    unshown: list[Exception] = []
    namespace, name = dataset.meta.namespace, dataset.meta.name
    uids = {("Dataset", name): dataset.meta.uid}
    uids |= {("Restatement", r.meta.name): r.meta.uid for r in world.restatements}

    def attempt(act: Callable[[], Any], failures: list[Exception]) -> None:
        try:
            act()
        except KubeError as e:
            log.warning("%s/%s: %s", namespace, name, e)
            failures.append(e)

    new = actions.dataset_status
    if new is not None:
        attempt(lambda: status.write(kube, DATASETS, namespace, name, dataset.status, new), unshown)
    for policy, entry in actions.policy_entries.items():
        attempt(lambda p=policy, e=entry: _set_entry(kube, namespace, p, e), unshown)  # type: ignore[misc]
    attempt(lambda: withdraw(kube, namespace, actions.withdraw, settings), unshown)
    started, failures, again = _start(kube, dataset, world, actions.launches, settings, offers, places, now)
    ref = DatasetRef(namespace=namespace, name=name, uid=dataset.meta.uid)
    attempt(lambda: remind(kube, ref, actions.remind, settings), failures)
    signed = sign(dataset, world, actions, settings)
    actions, failures = signed.actions, [*failures, *signed.failures]
    failed = write_statuses(kube, namespace, world.restatements, actions, written)
    if failed is not None:
        log.warning("%s/%s: %s", namespace, name, failed)
        unshown.append(failed)
    events.post(kube, namespace, (*actions.events, *started, *signed.events), uids)
    if actions.sweep and actions.owner is not None:
        _sweep(dataset, actions.sweep, actions.owner, _adopted(world))
    if not unshown:
        attempt(lambda: _drop_keys(kube, dataset, actions.drop_keys), failures)
        shared = {a.job for r in world.runs for a in r.attempts if a.shared}
        for job in actions.delete_jobs:
            attempt(lambda j=job: _delete_job(kube, dataset, j, j in shared), failures)  # type: ignore[misc]
        for restatement in to_delete(world.restatements, actions):
            attempt(lambda r=restatement: delete_restatement(kube, r), failures)  # type: ignore[misc]
    for failure in (*unshown, *failures):
        raise failure
    return again


def _start(
    kube: Kube,
    dataset: Dataset,
    world: World,
    launches: Iterable[Launch],
    settings: Settings,
    offers: Offers,
    places: Places,
    now: datetime,
) -> tuple[list[Event], list[Exception], datetime | None]:
    """Start runs, or offer them to company; what is to be told of it, what went wrong, and when to decide anew."""
    namespace, name = dataset.meta.namespace, dataset.meta.name
    told: list[Event] = []
    failures: list[Exception] = []
    offered = False
    again: datetime | None = None
    for wanted in launches:
        try:
            if wanted.by_committer:
                asked = dispatch(kube, wanted, world.table, now, settings)
                told.append(
                    Event(
                        "Dataset", name, Reason.RUN_STARTED, f"{wanted.run.family} {asked.job} started: {wanted.why}."
                    )
                )
                continue
            with places.taking(kube, namespace, wanted.place, dataset.meta.uid) as free:
                if not free:
                    again = now + SOON
                    continue
                prepared = prepare(kube, dataset, wanted, world.table, settings)
                with_whom = company(
                    wanted.run, wanted.bytes, prepared.size, prepared.template, world.runs, settings.shared_runs
                )
                if with_whom is not None:
                    offers.put(namespace, Offer(prepared, with_whom, now))
                    offered = True
                    continue
                launched = launch(kube, prepared, settings)
            if launched.created:
                text = f"{wanted.run.family} {launched.job} started: {wanted.why}."
                told.append(Event("Dataset", name, Reason.RUN_STARTED, text))
        except (NameTaken, NoPlaceForRun) as e:
            told.append(Event("Dataset", name, getattr(e, "reason", Reason.LAUNCH_FAILED), str(e), warning=True))
            failures.append(e)
        except KubeError as e:
            told.append(Event("Dataset", name, Reason.LAUNCH_FAILED, str(e), warning=True))
            failures.append(e)
        except Exception as e:  # the storage, say: what is known of others is told all the same
            failures.append(e)
    if not offered:
        offers.withdraw(namespace, name)
    return told, failures, again


def write_statuses(
    kube: Kube,
    namespace: str,
    restatements: Iterable[Restatement],
    actions: Actions,
    written: Callable[[Document], None],
) -> KubeError | None:
    """The statuses of Restatements; the first error, after the others were tried."""
    old = {r.meta.name: r.status for r in restatements}

    def write(name: str, new: Mapping[str, Any]) -> None:
        body = status.write(kube, RESTATEMENTS, namespace, name, old[name], new)
        if body is not None:
            written(body)

    return write_all([partial(write, name, new) for name, new in actions.restatement_statuses.items()])


def to_delete(restatements: Iterable[Restatement], actions: Actions) -> tuple[Restatement, ...]:
    """Those whose time to live is over."""
    wanted = set(actions.delete_restatements)
    return tuple(r for r in restatements if r.meta.name in wanted)


def delete_restatement(kube: Kube, restatement: Restatement) -> None:
    """By UID: one of the same name that was created meanwhile is another request."""
    meta = restatement.meta
    kube.delete(RESTATEMENTS, meta.namespace, meta.name, uid=meta.uid)


def _set_entry(kube: Kube, namespace: str, policy: str, entry: Mapping[str, Any]) -> None:
    status.change(kube, VACUUM_POLICIES, namespace, policy, lambda s: policy_status.with_entry(s, entry))


def _delete_job(kube: Kube, dataset: Dataset, job: str, shared: bool) -> None:
    """One that is shared goes when none of its Datasets finds it any more; this one leaves it."""
    if not shared:
        # In the foreground: the Job stays in view until its driver is really gone.
        kube.delete(JOBS, dataset.meta.namespace, job, policy="Foreground")
        return
    try:
        kube.patch(JOBS, dataset.meta.namespace, job, {"metadata": {"labels": {member_label(dataset.meta.uid): None}}})
    except NotFound:
        return


def _drop_keys(kube: Kube, dataset: Dataset, keys: tuple[str, ...]) -> None:
    if not keys:
        return
    name = names.shared(dataset.meta.name)
    try:
        kube.patch(CONFIG_MAPS, dataset.meta.namespace, name, {"data": dict.fromkeys(keys)})
    except NotFound:
        return


def _adopted(world: World) -> Adopted:
    """What lies in the buffer beside batches: a buffer that may not be claimed so is never swept."""
    found = world.buffer
    return Adopted(found.unrelated, found.unrelated_names) if isinstance(found, BufferDigest) else Adopted()


def _sweep(dataset: Dataset, objects: tuple[BufferedObject, ...], owner: Owner, adopted: Adopted) -> None:
    """Delete what was promoted long ago, from a buffer that is the Dataset's own. What is left is found again next time."""
    try:
        properties = catalogs.properties(dataset.spec.table.catalog)
        spec = dataset.spec
        claim = take_claim(spec.buffer.uri, properties, owner, spec.buffer.layout, adopted)
        if holder_of(claim, owner) is not Holder.OURS:
            log.warning("%s: %s", dataset.meta.full_name, rejected(claim, spec.buffer.uri))
            return
        buffer = open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout)
        gone = buffer.delete(objects)
        log.info("%s: %d of %d objects deleted from the buffer", dataset.meta.full_name, gone, len(objects))
    except Exception as e:
        log.warning("%s: the buffer could not be cleaned up: %s", dataset.meta.full_name, type(e).__name__)
