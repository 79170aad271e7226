"""The entries of the mailbox, and which one is next, when. Keeps state, no I/O; times are seconds of a monotonic clock.

Invariants: at most one run or upkeep of a Dataset is in progress. The runs of a Dataset go in the order of their entries. An
entry is removed only after its result was delivered, so the entries of a process that dies remain for the next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from lethe.contract.run import CONTRACT_VERSION, MailboxEntry
from pydantic import ValidationError

U = TypeVar("U")

# The least time between two upkeeps of a Dataset.
UPKEEP_EVERY_SECONDS: Final = 30.0
# An upkeep that has waited for this time goes before runs.
UPKEEP_LATE_SECONDS: Final = 90.0
# At most this many upkeeps at once, so that threads remain for runs.
UPKEEPS_AT_ONCE: Final = 2
# An event that was sent before a key was removed may still contain the key.
SETTLED_FOR_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Post:
    """A key of the mailbox and its entry."""

    key: str
    # The entry as stored in the mailbox.
    text: str
    entry: MailboxEntry

    @property
    def order(self) -> tuple[float, str]:
        return self.entry.created_time.timestamp(), self.key


@dataclass(frozen=True)
class Upkeep(Generic[U]):
    """Work for a Dataset after its runs: expiring snapshots, removing files, the table of batches."""

    dataset_uid: str
    work: U


@dataclass
class _DueUpkeep(Generic[U]):
    work: U
    # When it was first requested.
    since: float
    # The earliest time to do it.
    due: float


@dataclass
class Mailbox(Generic[U]):
    _posts: dict[str, Post] = field(default_factory=dict)
    # Finished entries by key: their text, and until when to ignore them.
    _settled: dict[str, tuple[str, float]] = field(default_factory=dict)
    # Postponed entries by key: the earliest time of the next attempt.
    _not_before: dict[str, float] = field(default_factory=dict)
    # Datasets in progress by uid: True for an upkeep, False for a run.
    _busy: dict[str, bool] = field(default_factory=dict)
    # Waiting upkeeps by Dataset.
    _upkeep: dict[str, _DueUpkeep[U]] = field(default_factory=dict)
    # Time of the last upkeep by Dataset.
    _kept_up: dict[str, float] = field(default_factory=dict)

    def put(self, data: Mapping[str, str]) -> dict[str, str]:
        """Take the new content of the mailbox. Returns: the unreadable keys, and why each is."""
        posts: dict[str, Post] = {}
        unreadable: dict[str, str] = {}
        for key, text in data.items():
            known = self._posts.get(key)
            if known is not None and known.text == text:
                posts[key] = known
                continue
            try:
                entry = MailboxEntry.model_validate_json(text)
            except ValidationError as e:
                fields = sorted({".".join(map(str, p["loc"])) for p in e.errors(include_input=False)})
                unreadable[key] = f"not a {CONTRACT_VERSION} entry ({', '.join(fields[:5])})"
                continue
            if entry.api_version != CONTRACT_VERSION:
                unreadable[key] = f"the entry has version {entry.api_version}, this image supports {CONTRACT_VERSION}"
                continue
            posts[key] = Post(key, text, entry)
        self._posts = posts
        self._settled = {k: s for k, s in self._settled.items() if k in posts and posts[k].text == s[0]}
        self._not_before = {k: t for k, t in self._not_before.items() if k in posts}
        return unreadable

    def take(self, now: float) -> Post | Upkeep[U] | None:
        """The next run or upkeep; its Dataset is busy until it ends. None: nothing is due now."""
        late = self._next_upkeep(now, wanted_for=UPKEEP_LATE_SECONDS)
        chosen = late or self._next_post(now) or self._next_upkeep(now)
        if isinstance(chosen, Upkeep):
            del self._upkeep[chosen.dataset_uid]
            self._kept_up[chosen.dataset_uid] = now
            self._busy[chosen.dataset_uid] = True
        elif chosen is not None:
            self._busy[chosen.entry.dataset_uid] = False
        return chosen

    def next_due(self, now: float) -> float | None:
        """Seconds until something may be due without a change of the mailbox. None: nothing until a change."""
        times = [*(until for _, until in self._settled.values()), *self._not_before.values()]
        times += [u.due for i, u in self._upkeep.items() if i not in self._busy]
        return max(0.0, min(t for t in times if t > now) - now) if any(t > now for t in times) else None

    def settled(self, post: Post, now: float, upkeep: U | None = None) -> None:
        """Record that the run is done, its result delivered, and its key removed. `upkeep` replaces a waiting upkeep of the
        Dataset."""
        uid = post.entry.dataset_uid
        self._settled[post.key] = (post.text, now + SETTLED_FOR_SECONDS)
        self._busy.pop(uid, None)
        if upkeep is not None:
            before = self._upkeep.get(uid)
            since = before.since if before else now
            due = max(now, self._kept_up.get(uid, -UPKEEP_EVERY_SECONDS) + UPKEEP_EVERY_SECONDS)
            self._upkeep[uid] = _DueUpkeep(upkeep, since, due)

    def put_off(self, post: Post, until: float) -> None:
        """Postpone a run that failed or whose result could not be delivered. Later runs of its Dataset wait for it."""
        self._not_before[post.key] = until
        self._busy.pop(post.entry.dataset_uid, None)

    def cancelled(self, now: float) -> list[Post]:
        """The runs that the operator has cancelled, whether or not they have begun. They are never taken."""
        return [p for p in self._posts.values() if p.entry.cancelled and not self._is_settled(p, now)]

    def wants(self, key: str) -> bool:
        """Whether the mailbox has this key, and its run is not cancelled."""
        post = self._posts.get(key)
        return post is not None and not post.entry.cancelled

    def is_empty(self, now: float) -> bool:
        """Whether every run that the mailbox names is finished."""
        return all(self._is_settled(p, now) for p in self._posts.values())

    def kept_up(self, dataset_uid: str) -> None:
        self._busy.pop(dataset_uid, None)

    @property
    def runs_in_progress(self) -> int:
        return sum(not is_upkeep for is_upkeep in self._busy.values())

    def waiting(self, now: float) -> int:
        """The number of runs that have not begun."""
        return max(0, len(self._unsettled(now)) - self.runs_in_progress)

    def oldest_time(self, now: float) -> datetime | None:
        """When the oldest entry was made that is not done; None: there is none."""
        return min((p.entry.created_time for p in self._unsettled(now)), default=None)

    @property
    def under_way(self) -> int:
        """The number of Datasets with a run or upkeep in progress."""
        return len(self._busy)

    def _next_post(self, now: float) -> Post | None:
        firsts: dict[str, Post] = {}
        for post in sorted(self._posts.values(), key=lambda p: p.order):
            if not post.entry.cancelled and not self._is_settled(post, now):
                firsts.setdefault(post.entry.dataset_uid, post)
        free = (p for uid, p in firsts.items() if uid not in self._busy and self._not_before.get(p.key, now) <= now)
        return min(free, key=lambda p: p.order, default=None)

    def _next_upkeep(self, now: float, wanted_for: float = 0.0) -> Upkeep[U] | None:
        if sum(self._busy.values()) >= UPKEEPS_AT_ONCE:
            return None
        due = [
            (u.since, uid)
            for uid, u in self._upkeep.items()
            if uid not in self._busy and u.due <= now and now - u.since >= wanted_for
        ]
        return Upkeep(uid, self._upkeep[uid].work) if due and (uid := min(due)[1]) else None

    def _unsettled(self, now: float) -> list[Post]:
        return [p for p in self._posts.values() if not self._is_settled(p, now)]

    def _is_settled(self, post: Post, now: float) -> bool:
        text, until = self._settled.get(post.key, ("", 0.0))
        return text == post.text and now < until
