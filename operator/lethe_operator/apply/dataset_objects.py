"""Creates the objects that runs need beside their Job: the ConfigMap of their Dataset, ServiceAccounts and rights. I/O.

The objects of a Dataset are a dozen requests, and seldom change. So the operator remembers for a while that they are as wanted.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lethe.contract.run import DatasetRef

from lethe_operator.build.dataset_objects import dataset_objects, marks_to_set
from lethe_operator.kube import BY_NAME, SERVICE_ACCOUNTS, AlreadyExists, Kube
from lethe_operator.reasons import Reason
from lethe_operator.settings import Settings

# How long the objects of a Dataset are not looked at again. Somebody else's change of them lasts at most this long.
AGAIN_SECONDS: Final = 600.0


class NameTaken(Exception):
    """An object with the needed name exists and is not this Dataset's."""

    reason = Reason.NAME_TAKEN


@dataclass(frozen=True)
class _KnownObjects:
    uid: str
    """Of the Dataset."""
    until: Mapping[str, float]
    """By the digest of the objects: until when they are not looked at, by the clock."""


class DatasetObjects:
    """The objects of all Datasets. One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], _KnownObjects] = {}

    def ensure(
        self, kube: Kube, dataset: DatasetRef, settings: Settings, with_executors: bool = False, certainly: bool = False
    ) -> None:
        """Create the ConfigMap, ServiceAccounts, Roles and RoleBindings of a Dataset, or correct them if they were changed.

        Args:
            certainly: Look at them also if they were as wanted a short time ago.

        Raises:
            NameTaken: An object with the needed name exists and is not this Dataset's.
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        marks = settings.boundaries.of(dataset.namespace).service_accounts
        documents = dataset_objects(dataset, settings.reporters, with_executors, marks)
        digest = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()
        key, now = (dataset.namespace, dataset.name), self._clock()
        with self._lock:
            known = self._known.get(key)
            until = known.until if known is not None and known.uid == dataset.uid else {}
        if until.get(digest, now) > now and not certainly:
            return
        self.forget(*key)
        _ensure(kube, documents, dataset)
        valid = {d: t for d, t in until.items() if t > now and not certainly}
        with self._lock:
            self._known[key] = _KnownObjects(dataset.uid, {**valid, digest: now + AGAIN_SECONDS})

    def forget(self, namespace: str, name: str) -> None:
        """Look at the objects of a Dataset the next time."""
        with self._lock:
            self._known.pop((namespace, name), None)

    def forget_all(self, namespaces: Collection[str]) -> None:
        """The same for all Datasets of some namespaces: another process may have changed them."""
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if key[0] not in namespaces}


def _ensure(kube: Kube, documents: Iterable[Mapping[str, Any]], dataset: DatasetRef) -> None:
    """Create the objects of a Dataset, or correct them if they were changed.

    Raises:
        NameTaken: An object with the needed name exists and is not this Dataset's.
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    for document in documents:
        kind, name = BY_NAME[document["kind"]], document["metadata"]["name"]
        namespace = document["metadata"]["namespace"]
        try:
            kube.create(kind, namespace, document)
            continue
        except AlreadyExists:
            found = kube.get(kind, namespace, name)
        require_owner(found, dataset)
        for field in ("rules", "subjects", "automountServiceAccountToken"):
            if field in document and not _same(found.get(field), document[field]):
                kube.patch(kind, namespace, name, {field: document[field]})
        marks = marks_to_set(found, document) if kind is SERVICE_ACCOUNTS else {}
        if marks:
            kube.patch(kind, namespace, name, {"metadata": marks})


def require_owner(found: Mapping[str, Any], dataset: DatasetRef) -> None:
    """Require that an object belongs to the Dataset.

    Raises:
        NameTaken: Unless the object belongs to this Dataset.
    """
    metadata = found["metadata"]
    owners = [o.get("uid") for o in metadata.get("ownerReferences") or ()]
    if dataset.uid not in owners:
        raise NameTaken(
            f"{found.get('kind', 'Object')} {metadata['name']}: Dataset {dataset.claim} needs this name, but the object has "
            "another owner, or belongs to a deleted Dataset of the same name that Kubernetes is still cleaning up. Delete or "
            "rename the object."
        )


def _same(found: Any, wanted: Any) -> bool:
    """Whether both say the same, apart from defaults that the API server added, such as the apiGroup of a subject."""
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_same(found.get(k), v) for k, v in wanted.items())
    return bool(found == wanted)
