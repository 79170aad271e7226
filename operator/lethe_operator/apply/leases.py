"""Holds Leases: that of the release, which its leader holds, and that of each watched namespace, which one release holds. I/O.

Each write carries the version that was read: of two operators that take a Lease at the same moment, only one succeeds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

from lethe_operator.decide import leadership
from lethe_operator.decide.leadership import CLAIM, CLAIM_LEASE, CLAIM_READ_SECONDS, LeaseTerms, Turn
from lethe_operator.kube import LEASES, AlreadyExists, Conflict, Document, Kube, KubeError, NotFound

log = logging.getLogger(__name__)


def boot_seconds() -> float:
    """Seconds since the machine started, including those in which it slept. No change of the wall clock affects them."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass
class LeaseHolder:
    """One Lease that this operator holds or waits for. One thread renews it; any thread may ask whether it is held."""

    kube: Kube
    namespace: str
    name: str
    # The identity of this operator.
    own: str
    terms: LeaseTerms
    # Seconds.
    clock: Callable[[], float] = boot_seconds
    # The holder as last read or written; None: not known yet; "": nobody.
    holder: str | None = None
    # Which of its holders' terms this is: how often the Lease was taken. None: another operator holds it.
    term: int | None = None
    # When the API server answered last; None: not yet.
    answered: float | None = None
    # The Lease as last read or written; {}: it does not exist.
    _lease: Document = field(default_factory=dict)
    # When this version was first read; None: nothing was read yet.
    _since: float | None = None
    # When the last renewal that succeeded began; None: another operator holds it.
    _renewed: float | None = None

    def held(self) -> bool:
        """Whether this operator holds the Lease, and renewed it recently enough to act."""
        renewed = self._renewed
        return renewed is not None and self.clock() - renewed < self.terms.act_within_seconds

    def renew(self) -> None:
        """Renew the Lease, take it, or see who holds it. While this operator holds it, this is one request. Raises: KubeError."""
        if self._renewed is not None:
            try:
                self._write()
            except (Conflict, NotFound):  # somebody changed it, or the last answer was lost: read it
                pass
            else:
                return
        self._read()
        match leadership.turn(self._lease, self.own, self._unchanged_seconds(), self.terms):
            case Turn.WAIT:
                self._lose()
            case Turn.RENEW | Turn.TAKE:
                try:
                    self._write()
                except (Conflict, AlreadyExists):  # another operator was faster; the next call reads its Lease
                    self._lose()
            case turn:
                assert_never(turn)

    def due_in(self, read_every_seconds: float) -> float:
        """Seconds until the next call of `renew`: after a success, for as long as nothing else is known."""
        if self._renewed is not None:
            return self._renewed + self.terms.renew_every_seconds - self.clock()
        if not self._lease or self._since is None or self.answered is None:
            return read_every_seconds
        left = leadership.duration_of(self._lease, self.terms) - self._unchanged_seconds()
        if read_every_seconds < self.terms.renew_every_seconds:
            return min(read_every_seconds, left)
        return min(leadership.read_in(self.answered - self._since, self.terms), left)

    def _unchanged_seconds(self) -> float:
        return 0.0 if self._since is None else self.clock() - self._since

    def release(self) -> None:
        """Give the Lease up, so that another operator need not wait until it expires. Raises: KubeError."""
        if self._renewed is None:
            return
        self._lose()
        version = self._lease["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": leadership.released()}
        self.kube.patch(LEASES, self.namespace, self.name, patch)

    def _read(self) -> None:
        began = self.clock()
        try:
            lease = self.kube.get(LEASES, self.namespace, self.name)
        except NotFound:
            lease = {}
        if _version(lease) != _version(self._lease) or self._since is None:
            self._since = began
        self._lease, self.answered = lease, began
        self.holder = leadership.holder_of(lease)

    def _write(self) -> None:
        # The time before the request: the API server may have stored it that early.
        began = self.clock()
        spec = leadership.held_since(self._lease, self.own, datetime.now(UTC), self.terms)
        metadata = {"name": self.name, "namespace": self.namespace}
        if self._lease:
            metadata = {"resourceVersion": _version(self._lease)}
            self._lease = self.kube.patch(LEASES, self.namespace, self.name, {"metadata": metadata, "spec": spec})
        else:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self._lease = self.kube.create(LEASES, self.namespace, {**kind, "metadata": metadata, "spec": spec})
        self._since, self.holder = began, self.own
        self.term = leadership.transitions_of(self._lease)
        self._renewed = self.answered = began

    def _lose(self) -> None:
        self._renewed = None
        self.term = None


def _version(lease: Document) -> str:
    return str((lease.get("metadata") or {}).get("resourceVersion", ""))


class Claims:
    """The Leases of the watched namespaces, each held by one of the releases that watch it."""

    def __init__(
        self,
        kube: Kube,
        namespaces: Sequence[str],
        own: str,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """
        Args:
            own: The identity of the release in a Lease, the same for all its pods.
        """
        self.own = own
        self._clock = clock
        self._of = {n: LeaseHolder(kube, n, CLAIM_LEASE, own, CLAIM, clock) for n in namespaces}
        self._due = dict.fromkeys(namespaces, float("-inf"))
        # The holder, and whether it is this release, as last logged.
        self._logged: dict[str, tuple[str, bool]] = {}

    def acts_in(self, namespace: str) -> bool:
        """Whether this release may act in the namespace now. Any thread may call it."""
        found = self._of.get(namespace)
        return found is not None and found.held()

    def renew(self, all_now: bool = False) -> None:
        """Renew or take the Leases that are due. Never raises: a Lease that cannot be renewed expires.

        Args:
            all_now: Treat all as due.
        """
        for namespace, lease in self._of.items():
            if not all_now and self._clock() < self._due[namespace]:
                continue
            try:
                lease.renew()
            except KubeError as e:
                log.warning("cannot renew the Lease %s/%s: %s", namespace, CLAIM_LEASE, e)
                pause = CLAIM.retry_seconds
            else:
                pause = lease.due_in(CLAIM_READ_SECONDS)
                self._log_holder(namespace, lease)
            self._due[namespace] = self._clock() + pause

    def _log_holder(self, namespace: str, lease: LeaseHolder) -> None:
        holder = lease.holder or ""
        seen = (holder, lease.held())
        if not holder or seen == self._logged.get(namespace):
            return
        self._logged[namespace] = seen
        where = f"see the Lease {CLAIM_LEASE}"
        if lease.held():
            log.info("namespace %s: this release (%s) acts here, %s", namespace, self.own, where)
        elif holder != self.own:
            log.warning(
                "namespace %s: the operator %s acts here, %s. This operator (%s) does nothing in it. Remove the namespace from "
                "the chart's value watchNamespaces of one of the two releases.",
                namespace,
                holder,
                where,
                self.own,
            )
