"""Decides whether this process acts, and holds the Leases that this depends on. I/O, in two threads.

It acts if it leads its release, has caught up with the API server, and its release holds the Lease of the namespace. A namespace
in which it may not read keeps it from acting in that one only. The Lease of the release is renewed in a thread of its own, so
that neither a long listing nor an unavailable namespace delays it. What follows from it is done in the other thread.

Each write of a Lease carries the version that was read: of two operators that take it at the same moment, only one succeeds.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, assert_never

from lethe.kube import LEASES, AlreadyExists, Conflict, Document, Kube, KubeError, NotFound, NotLeading

from lethe_operator.cluster import leadership
from lethe_operator.cluster.leadership import CLAIM, CLAIM_LEASE, CLAIM_READ_SECONDS, LEADER, LeaderTurn, LeaseTerms

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
    clock: Callable[[], float] = boot_seconds
    """Seconds."""
    holder: str | None = None
    """The holder as last read or written; None: not known yet; "": nobody."""
    term: int | None = None
    """Which of its holders' terms this is: how often the Lease was taken. None: another operator holds it."""
    answered: float | None = None
    """When the API server answered last; None: not yet."""
    _lease: Document = field(default_factory=dict)
    """The Lease as last read or written; {}: it does not exist."""
    _since: float | None = None
    """When this version was first read; None: nothing was read yet."""
    _renewed: float | None = None
    """When the last renewal that succeeded began; None: another operator holds it."""

    def held(self) -> bool:
        """Whether this operator holds the Lease, and renewed it recently enough to act."""
        renewed = self._renewed
        return renewed is not None and self.clock() - renewed < self.terms.act_within_seconds

    def renew(self) -> None:
        """Renew the Lease, take it, or see who holds it. While this operator holds it, this is one request.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        if self._renewed is not None:
            try:
                self._write()
            except (Conflict, NotFound):  # somebody changed it, or the last answer was lost: read it
                pass
            else:
                return
        self._read()
        match leadership.turn(self._lease, self.own, self._unchanged_seconds(), self.terms):
            case LeaderTurn.WAIT:
                self._lose()
            case LeaderTurn.RENEW | LeaderTurn.TAKE:
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
        """Give the Lease up, so that another operator need not wait until it expires.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
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
        """Create `Claims`.

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
        lease = self._of.get(namespace)
        return lease is not None and lease.held()

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


# How often the second thread looks whether anything changed, without requests.
TICK_SECONDS: Final = 0.5
# After a catch-up that failed.
AGAIN_SECONDS: Final = 1.0
# How often a leader looks whether it may read in the namespaces in which it was forbidden to.
FORBIDDEN_AGAIN_SECONDS: Final = 10.0
# How long the release of the Lease waits for requests that are under way.
WRITES_END_SECONDS: Final = 10.0
# A process that could neither read nor renew the Lease for this long is not ready.
SILENT_SECONDS: Final = 20.0
# The term of an operator that needs no election.
ONLY: Final = 0


def nothing(_namespaces: Collection[str]) -> Collection[str]:
    """There is nothing to catch up with."""
    return ()


def ignore(_namespaces: Collection[str]) -> None:
    """Nobody wants to know."""


@dataclass
class Leadership:
    """Whether this process acts. Any thread may ask."""

    namespaces: Sequence[str]
    lease: LeaseHolder | None = None
    """None: there is no election, this is the only process of its release."""
    claims: Claims | None = None
    """None: there is no other release."""
    catch_up: Callable[[Collection[str]], Collection[str]] = nothing
    """Makes the caches of these namespaces as new as the API server. Returns those in which this process may not read.

    Raises: KubeError.
    """
    on_change: Callable[[Collection[str]], None] = ignore
    """Called with namespaces in which this process may act from now on, or no longer: all their keys are to be reconciled."""
    on_leader: Callable[[bool], None] = lambda _leads: None
    """Called when this process becomes the leader, and when it is one no longer."""
    # The term in which this process has caught up; None: it has not.
    _caught_up: int | None = None
    # Namespaces in which this process may not read. It does not act in them.
    _behind: frozenset[str] = frozenset()
    _behind_since: float = 0.0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _news: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _acting: frozenset[str] = frozenset()
    # Namespaces whose keys were refused since their last `on_change`.
    _refused: set[str] = field(default_factory=set)
    _writes: int = 0
    _written: threading.Condition = field(default_factory=threading.Condition)
    _logged: bool | None = None

    def leads(self) -> bool:
        """Whether this process is the leader of its release and has caught up."""
        if self._stopping.is_set() or self._caught_up is None:
            return False
        return self._term() == self._caught_up

    def acts_in(self, namespace: str) -> bool:
        """Whether this process, and no other one, may act in the namespace now.

        A namespace for which the answer was no is reported to `on_change` as soon as the answer is yes.
        """
        acts = self._acts_in(namespace)
        if not acts:
            self._refused.add(namespace)
        return acts

    @property
    def acting(self) -> frozenset[str]:
        """The namespaces in which this process acts, as of the last renewal of its Leases.

        For metrics: unlike `acts_in`, reading it has no effect.
        """
        return self._acting

    def alive(self) -> bool:
        """Whether the threads still run."""
        return all(t.is_alive() for t in self._threads)

    def trouble(self) -> str | None:
        """Why this process could not become the leader, as a sentence; None: it leads, or would take over from the leader."""
        if self.lease is None:
            return None
        answered, where = self.lease.answered, f"the Lease {self.lease.namespace}/{self.lease.name}"
        if answered is None:
            return f"The API server has not yet answered about {where}."
        silent = self.lease.clock() - answered
        return (
            f"The API server last answered about {where} {silent:.0f} seconds ago." if silent > SILENT_SECONDS else None
        )

    def describe(self) -> str:
        """What this process does, as a sentence."""
        if self.leads():
            return "This process leads."
        return (
            f"This process stops: {self._writes} requests are under way."
            if self._writes
            else "This process is a standby."
        )

    @contextmanager
    def writing(self, namespace: str) -> Iterator[None]:
        """Enter it for each request that changes something.

        Raises:
            NotLeading: This process may not act there.
        """
        with self._written:
            self._writes += 1
        try:
            if not self.acts_in(namespace):
                raise NotLeading(namespace)
            yield
        finally:
            with self._written:
                self._writes -= 1
                self._written.notify_all()

    def start(self) -> None:
        """Start two threads: one renews the Lease of the release, the other catches up and claims the namespaces."""
        for target in (self._keep, self._follow):
            thread = threading.Thread(target=target, name=f"leadership{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop acting, wait for the requests under way, and release the Lease, so that another process takes it at once."""
        self._stopping.set()
        self._news.set()
        for thread in self._threads:
            thread.join()
        with self._written:
            ended = self._written.wait_for(lambda: self._writes == 0, WRITES_END_SECONDS)
        if self.lease is None or not ended:  # a request is still under way: the Lease expires
            return
        try:
            self.lease.release()
        except KubeError as e:
            log.warning("cannot release the Lease %s/%s: %s", self.lease.namespace, self.lease.name, e)

    def renew(self) -> float:
        """Renew the Lease of the release, take it, or see who holds it.

        Returns:
            Seconds until the next call.
        """
        lease = self.lease
        if lease is None:
            return float("inf")
        before = lease.term
        try:
            lease.renew()
        except KubeError as e:
            log.warning("cannot renew the Lease %s/%s: %s", lease.namespace, lease.name, e)
            return LEADER.retry_seconds if lease.term is not None else LEADER.renew_every_seconds
        if lease.term != before:
            self._news.set()
        return max(lease.due_in(LEADER.renew_every_seconds), 0.0)

    def follow(self) -> None:
        """Do what follows from the Lease: catch up, claim the namespaces, report changes.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        term = self._term()
        if term is not None and term != self._caught_up:
            self._catch_up(self.namespaces)
            if self.claims is not None:
                self.claims.renew(all_now=True)
            self._caught_up = term
        leads = self.leads()
        if leads and self.claims is not None:
            self.claims.renew()
        if leads and self._behind and self._clock() >= self._behind_since + FORBIDDEN_AGAIN_SECONDS:
            self._catch_up(self._behind)
        self._log(leads)
        acting = frozenset(n for n in self.namespaces if self._acts_in(n))
        begun = {n for n in acting if n not in self._acting or n in self._refused}
        ended = self._acting - acting
        self._acting = acting
        self._refused -= begun
        if begun or ended:
            self.on_change(frozenset(begun | ended))

    def _catch_up(self, namespaces: Collection[str]) -> None:
        self._behind_since = self._clock()
        self._behind = frozenset(self.catch_up(namespaces))

    def _clock(self) -> float:
        return boot_seconds() if self.lease is None else self.lease.clock()

    def _term(self) -> int | None:
        """The current term, if this process leads; None: it does not."""
        if self.lease is None:
            return ONLY
        return self.lease.term if self.lease.held() else None

    def _acts_in(self, namespace: str) -> bool:
        if not self.leads() or namespace in self._behind:
            return False
        return self.claims is None or self.claims.acts_in(namespace)

    def _keep(self) -> None:
        while not self._stopping.wait(min(self.renew(), threading.TIMEOUT_MAX)):
            pass

    def _follow(self) -> None:
        while not self._stopping.is_set():
            pause = TICK_SECONDS
            try:
                self.follow()
            except Exception as e:  # this thread must not end: the process would keep the Lease and do nothing
                text = "this process holds the Lease of its release and has not caught up yet: %s: %s"
                log.warning(text, type(e).__name__, e, exc_info=not isinstance(e, KubeError))
                pause = AGAIN_SECONDS
            self._news.wait(pause)
            self._news.clear()

    def _log(self, leads: bool) -> None:
        if leads == self._logged:
            return
        self._logged = leads
        self.on_leader(leads)
        if self.lease is None:
            return
        where = f"see the Lease {self.lease.namespace}/{self.lease.name}"
        if leads:
            log.info("%s leads, %s", self.lease.own, where)
        else:
            log.info("%s does not lead, %s", self.lease.own, where)
