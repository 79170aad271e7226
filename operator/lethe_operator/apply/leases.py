"""Holds the Lease of each watched namespace, so that of several operators one acts. I/O.

Each step is one request with the version that was read: of two operators that take a Lease at the same moment, one succeeds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lethe_operator.decide import leadership
from lethe_operator.decide.leadership import LEASE, RENEW_EVERY_SECONDS, RENEW_WITHIN_SECONDS, Turn
from lethe_operator.kube import LEASES, AlreadyExists, Conflict, Document, Kube, KubeError, NotFound

log = logging.getLogger(__name__)


@dataclass
class _LeaseState:
    """What this operator knows of the Lease of a namespace."""

    version: str = ""  # of the Lease, as it was read last
    since: float = 0.0  # when this version was read first, by the monotonic clock
    renewed: float | None = None  # when this operator renewed it last; None: another one holds it
    holder: str | None = None  # None: not known yet


@dataclass
class Leases:
    """`own`: what this operator is called in a Lease, the same for each pod of a release; `shown` hears of each namespace whether
    this operator acts in it; `monotonic` counts seconds."""

    kube: Kube
    namespaces: Sequence[str]
    own: str
    shown: Callable[[str, bool], None] = lambda _namespace, _acts: None
    monotonic: Callable[[], float] = time.monotonic
    _seen: dict[str, _LeaseState] = field(default_factory=dict)

    def acts_in(self, namespace: str) -> bool:
        """Whether this operator may act there now. Any thread may ask."""
        seen = self._seen.get(namespace)
        renewed = seen.renewed if seen is not None else None
        return renewed is not None and self.monotonic() - renewed < RENEW_WITHIN_SECONDS

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            await asyncio.to_thread(self.renew)

    def renew(self) -> None:
        """Renew or take the Lease of each namespace. Never raises: what cannot be renewed expires."""
        for namespace in self.namespaces:
            try:
                self._renew(namespace, self._seen.setdefault(namespace, _LeaseState()))
            except KubeError as e:
                log.warning("Lease %s/%s: %s", namespace, LEASE, e)
            self.shown(namespace, self.acts_in(namespace))

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
                self._say(namespace, seen, leadership.holder_of(lease))
            case Turn.RENEW | Turn.TAKE:
                try:
                    written = self._write(namespace, lease)
                except (Conflict, AlreadyExists):  # another operator was faster; its Lease is read next time
                    seen.renewed = None
                    return
                seen.version, seen.since = str(written["metadata"]["resourceVersion"]), began
                # From before the request: the time of the server may be as early.
                seen.renewed = began
                self._say(namespace, seen, self.own)

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

    def _say(self, namespace: str, seen: _LeaseState, holder: str) -> None:
        if holder == seen.holder:
            return
        seen.holder = holder
        if holder == self.own:
            log.info("namespace %s: this operator (%s) acts here, see the Lease %s", namespace, self.own, LEASE)
        else:
            log.warning(
                "namespace %s: the operator %s acts here, see the Lease %s. This operator (%s) does nothing in it. Take the "
                "namespace out of watchNamespaces of one of the two releases.",
                namespace,
                holder,
                LEASE,
                self.own,
            )
