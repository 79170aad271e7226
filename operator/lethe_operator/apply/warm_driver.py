"""Starts the warm driver of a namespace. Safe to repeat. I/O."""

import logging

from lethe_operator.build import warm_driver
from lethe_operator.kube import CONFIG_MAPS, JOBS, AlreadyExists, Document, Kube, NotFound
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def start(kube: Kube, namespace: str, settings: Settings) -> bool:
    """Make its Job, unless it is active. A Job that has ended is removed first.

    Returns: False: a Job of this name is being deleted, so start it again later. Raises: KubeError.
    """
    name = settings.warm_drivers.name
    try:
        mailbox = kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return True  # without a mailbox there are no runs for it
    document = warm_driver.job(namespace, str(mailbox["metadata"]["uid"]), settings)
    try:
        kube.create(JOBS, namespace, document)
    except AlreadyExists:
        return _make_room(kube, namespace, name)
    log.info("%s: started the warm driver", namespace)
    return True


def replace_outdated(kube: Kube, found: Document | None, settings: Settings) -> None:
    """Delete the Job if it was made with other settings or another image. Its run may finish within the grace period; the runs
    that wait start the next one.

    Args:
        found: The Job of a namespace; None: there is none.
    Raises: KubeError.
    """
    if found is None:
        return
    metadata = found["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    wanted = warm_driver.job(namespace, "", settings)["metadata"]["annotations"][warm_driver.ANNOTATION_DIGEST]
    has = (metadata.get("annotations") or {}).get(warm_driver.ANNOTATION_DIGEST)
    if "deletionTimestamp" not in metadata and has != wanted:
        log.info("%s: the warm driver has other settings and is replaced", namespace)
        kube.delete(JOBS, namespace, name, policy="Foreground", uid=str(metadata["uid"]))


def _make_room(kube: Kube, namespace: str, name: str) -> bool:
    try:
        found = kube.get(JOBS, namespace, name)
    except NotFound:
        return False
    if "deletionTimestamp" in found["metadata"]:
        return False
    conditions = (found.get("status") or {}).get("conditions") or ()
    if not any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions):
        return True
    kube.delete(JOBS, namespace, name, uid=str(found["metadata"]["uid"]))
    return False
