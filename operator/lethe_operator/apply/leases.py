"""Holds the Lease of each watched namespace, so that only one of several operators acts. I/O.

Each write carries the version that was read: of two operators that take a Lease at the same moment, only one succeeds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

from lethe_operator.decide import leadership
from lethe_operator.decide.leadership import LEASE, RENEW_EVERY_SECONDS, RENEW_WITHIN_SECONDS, Turn
from lethe_operator.kube import LEASES, AlreadyExists, Conflict, Document, Kube, KubeError, NotFound

log = logging.getLogger(__name__)


@dataclass
class _LeaseState:
    """What this operator knows of the Lease of a namespace."""

    version: str = ""  # of the Lease, as last read
    since: float = 0.0  # when this version was first read, by the monotonic clock
    renewed: float | None = None  # when this operator last renewed it; None: another operator holds it
    holder: str | None = None  # None: not known yet


@dataclass
class Leases:
    """The Leases of the watched namespaces."""

    kube: Kube
    namespaces: Sequence[str]
    # The identity of this operator in a Lease, the same for each pod of a release.
    own: str
    # Called with each namespace and whether this operator acts in it.
    on_renewal: Callable[[str, bool], None] = lambda _namespace, _acts: None
    # Seconds.
    monotonic: Callable[[], float] = time.monotonic
    _seen: dict[str, _LeaseState] = field(default_factory=dict)

    def acts_in(self, namespace: str) -> bool:
        """Whether this operator may act in the namespace now. Any thread may call it."""
        seen = self._seen.get(namespace)
        renewed = seen.renewed if seen is not None else None
        return renewed is not None and self.monotonic() - renewed < RENEW_WITHIN_SECONDS

    async def keep(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            await asyncio.to_thread(self.renew)

    def renew(self) -> None:
        """Renew or take the Lease of each namespace. Never raises: a Lease that cannot be renewed expires."""
        for namespace in self.namespaces:
            try:
                self._renew(namespace, self._seen.setdefault(namespace, _LeaseState()))
            except KubeError as e:
                log.warning("cannot renew the Lease %s/%s: %s", namespace, LEASE, e)
            self.on_renewal(namespace, self.acts_in(namespace))

    def _renew(self, namespace: str, seen: _LeaseState) -> None:
        began = self.monotonic()
        try:
            lease = self.kube.get(LEASES, namespace, LEASE)
        except NotFound:
            lease = {}
        version = str((lease.get("metadata") or {}).get("resourceVersion", ""))
        if version != seen.version:
            seen.version, seen.since = version, began
        match leadership.turn(lease, self.own, began - seen.since):
            case Turn.WAIT:
                seen.renewed = None
                self._log_holder(namespace, seen, leadership.holder_of(lease))
            case Turn.RENEW | Turn.TAKE:
                try:
                    written = self._write(namespace, lease)
                except (Conflict, AlreadyExists):  # another operator was faster; the next call reads its Lease
                    seen.renewed = None
                    return
                seen.version, seen.since = str(written["metadata"]["resourceVersion"]), began
                # The time before the request: the API server may have written it that early.
                seen.renewed = began
                self._log_holder(namespace, seen, self.own)
            case turn:
                assert_never(turn)

    def _write(self, namespace: str, lease: Document) -> Document:
        spec = leadership.held_since(lease, self.own, datetime.now(UTC))
        if not lease:
            return self.kube.create(
                LEASES,
                namespace,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": LEASE, "namespace": namespace},
                    "spec": spec,
                },
            )
        version = lease["metadata"]["resourceVersion"]
        return self.kube.patch(LEASES, namespace, LEASE, {"metadata": {"resourceVersion": version}, "spec": spec})

    def _log_holder(self, namespace: str, seen: _LeaseState, holder: str) -> None:
        if holder == seen.holder:
            return
        seen.holder = holder
        if holder == self.own:
            log.info("namespace %s: this operator (%s) acts here, see the Lease %s", namespace, self.own, LEASE)
        else:
            log.warning(
                "namespace %s: the operator %s acts here, see the Lease %s. This operator (%s) does nothing in it. Remove the "
                "namespace from the chart's value watchNamespaces of one of the two releases.",
                namespace,
                holder,
                LEASE,
                self.own,
            )
