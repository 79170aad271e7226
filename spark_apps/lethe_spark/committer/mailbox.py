"""What lies in the mailbox, what is done next, and when. Pure but for remembering; times are those of a monotonic clock.

Invariants: at most one thing is done for a Dataset at a time; its runs go in the order in which they were asked for. What is in
the mailbox is not done: it is taken out by whoever has delivered its result, and a process that ends before that leaves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from lethe.contract.run import CONTRACT_VERSION, MailboxEntry
from pydantic import ValidationError

U = TypeVar("U")

# Tidying up after a Dataset's runs: no more often, and not put off for longer than this by runs of others.
UPKEEP_EVERY_SECONDS: Final = 30.0
UPKEEP_LATE_SECONDS: Final = 90.0
# So that threads are left for runs.
UPKEEPS_AT_ONCE: Final = 2
# A key that was taken out may show once more, in news that was under way.
SETTLED_FOR_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Post:
    """A key of the mailbox with what it says; `text` as it was put in."""

    key: str
    text: str
    entry: MailboxEntry

    @property
    def place(self) -> tuple[float, str]:
        return self.entry.created_time.timestamp(), self.key


@dataclass(frozen=True)
class Upkeep(Generic[U]):
    """What is left to do for a Dataset after its runs."""

    dataset_uid: str
    work: U


@dataclass
class _Wanted(Generic[U]):
    work: U
    since: float
    due: float


@dataclass
class Mailbox(Generic[U]):
    _posts: dict[str, Post] = field(default_factory=dict)
    _settled: dict[str, tuple[str, float]] = field(default_factory=dict)  # key -> text, until
    _not_before: dict[str, float] = field(default_factory=dict)  # by key
    _busy: dict[str, bool] = field(default_factory=dict)  # by Dataset: whether with upkeep
    _upkeep: dict[str, _Wanted[U]] = field(default_factory=dict)  # by Dataset
    _kept_up: dict[str, float] = field(default_factory=dict)

    def put(self, data: Mapping[str, str]) -> dict[str, str]:
        """The mailbox is now this. Returns: the keys that nobody can read, and why."""
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
                unreadable[key] = f"of {entry.api_version}, this image speaks {CONTRACT_VERSION}"
                continue
            posts[key] = Post(key, text, entry)
        self._posts = posts
        self._settled = {k: s for k, s in self._settled.items() if k in posts and posts[k].text == s[0]}
        self._not_before = {k: t for k, t in self._not_before.items() if k in posts}
        return unreadable

    def take(self, now: float) -> Post | Upkeep[U] | None:
        """The next thing to do, whose Dataset is busy from now on; None when there is nothing, or nothing yet."""
        late = self._next_upkeep(now, wanted_for=UPKEEP_LATE_SECONDS)
        chosen = late or self._next_post(now) or self._next_upkeep(now)
        if isinstance(chosen, Upkeep):
            del self._upkeep[chosen.dataset_uid]
            self._kept_up[chosen.dataset_uid] = now
            self._busy[chosen.dataset_uid] = True
        elif chosen is not None:
            self._busy[chosen.entry.dataset_uid] = False
        return chosen

    def look_again(self, now: float) -> float | None:
        """In how many seconds something may be there to do, if nothing happens before; None: not before something does."""
        times = [*(until for _, until in self._settled.values()), *self._not_before.values()]
        times += [u.due for i, u in self._upkeep.items() if i not in self._busy]
        return max(0.0, min(t for t in times if t > now) - now) if any(t > now for t in times) else None

    def settled(self, post: Post, now: float, upkeep: U | None = None) -> None:
        """The post is done, told, and taken out. `upkeep`: what is left to do for the Dataset, in place of what was before."""
        uid = post.entry.dataset_uid
        self._settled[post.key] = (post.text, now + SETTLED_FOR_SECONDS)
        self._busy.pop(uid, None)
        if upkeep is not None:
            before = self._upkeep.get(uid)
            since = before.since if before else now
            due = max(now, self._kept_up.get(uid, -UPKEEP_EVERY_SECONDS) + UPKEEP_EVERY_SECONDS)
            self._upkeep[uid] = _Wanted(upkeep, since, due)

    def put_off(self, post: Post, until: float) -> None:
        """The post could not be done or told now; it stays, and what is behind it for its Dataset waits with it."""
        self._not_before[post.key] = until
        self._busy.pop(post.entry.dataset_uid, None)

    def kept_up(self, dataset_uid: str) -> None:
        self._busy.pop(dataset_uid, None)

    @property
    def under_way(self) -> int:
        """How many Datasets something is done for."""
        return len(self._busy)

    def _next_post(self, now: float) -> Post | None:
        firsts: dict[str, Post] = {}
        for post in sorted(self._posts.values(), key=lambda p: p.place):
            if not self._is_settled(post, now):
                firsts.setdefault(post.entry.dataset_uid, post)
        free = (p for uid, p in firsts.items() if uid not in self._busy and self._not_before.get(p.key, now) <= now)
        return min(free, key=lambda p: p.place, default=None)

    def _next_upkeep(self, now: float, wanted_for: float = 0.0) -> Upkeep[U] | None:
        if sum(self._busy.values()) >= UPKEEPS_AT_ONCE:
            return None
        due = [
            (u.since, uid)
            for uid, u in self._upkeep.items()
            if uid not in self._busy and u.due <= now and now - u.since >= wanted_for
        ]
        return Upkeep(uid, self._upkeep[uid].work) if due and (uid := min(due)[1]) else None

    def _is_settled(self, post: Post, now: float) -> bool:
        text, until = self._settled.get(post.key, ("", 0.0))
        return text == post.text and now < until
