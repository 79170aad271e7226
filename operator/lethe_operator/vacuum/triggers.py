"""When a vacuum is due: by a trigger of its VacuumPolicy, by an evictBy, and within the policy's window. Pure.

Nothing is remembered between evaluations. A wrong clock only makes a trigger fire too early or too late.

The schedule of a window is cron's, in local time of the time zone. An opening within the hour that is skipped in spring comes
right after it; a fixed time within the hour that is repeated in autumn counts once. The duration of the window is elapsed time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from lethe.base.errors import Verdict
from lethe.contract.kubernetes import written
from lethe.contract.result import VacuumResult
from lethe.contract.run import RetentionSpec
from lethe.contract.status import RetentionStatus, VacuumSpeed
from lethe.contract.vacuum_policy import Triggers, VacuumPolicySpec, Window
from lethe.files.bounds import due_time
from lethe.ledger.ledger import Ledger

from lethe_operator.actions import earliest
from lethe_operator.conditions import timestamp
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import TableView

MIB: Final = 1024 * 1024
# Assumed for a table without a vacuum of at least MEASURED_FROM_SECONDS.
BYTES_PER_SECOND: Final = 20 * MIB
EXPIRY_SECONDS: Final = 600.0
MEASURED_FROM_SECONDS: Final = 60.0
# Until the driver and the executors of a run have started.
START_SECONDS: Final = 300.0
# Reserve for a failed attempt, a busy cluster, or a clock that is wrong by up to an hour.
MARGIN_SECONDS: Final = 3600.0
NEEDED_AT_MOST_SECONDS: Final = 10 * 365 * 86_400.0


def bytes_per_second(speed: VacuumSpeed) -> float:
    """How fast vacuums rewrite files, as measured."""
    return speed.bytes / speed.seconds if speed.bytes and speed.seconds else float(BYTES_PER_SECOND)


def measured_after(speed: VacuumSpeed, job: str, result: VacuumResult) -> VacuumSpeed:
    """The measurements including those of a run; unchanged if they already include it. Older ones count less."""
    if job == speed.run:
        return speed
    updated = speed.model_copy(update={"run": job})
    if result.purge_seconds >= MEASURED_FROM_SECONDS and result.bytes_rewritten:
        read, seconds = (speed.bytes or 0) / 2, (speed.seconds or 0) / 2
        added = {"bytes": round(read + result.bytes_rewritten), "seconds": ceil(seconds + result.purge_seconds)}
        updated = updated.model_copy(update=added)
    expiry, took = speed.expiry_seconds, result.expiry_seconds
    if took:
        known = took if expiry is None else max(took, (expiry + took) / 2)
        updated = updated.model_copy(update={"expiry_seconds": ceil(known)})
    return updated


UNMEASURED: Final = VacuumSpeed()


@dataclass(frozen=True)
class Deadline:
    """The times that follow from the first evictBy of a table."""

    evict_by: datetime
    """Bytes must be gone by then."""
    starts_by: datetime
    """A vacuum is due from then on."""
    possible_until: datetime
    """A vacuum that starts later is not expected to finish in time."""
    work: str
    """The estimate, in words."""


def first_evict_by(ledger: Ledger) -> datetime | None:
    """The first evictBy of tombstones and of rows of Erases that are not purged yet."""
    return earliest(ledger.next_evict_by, *(e.evict_by for e in ledger.unpurged_erasures))


def deadline(evict_by: datetime, bytes: int, speed: VacuumSpeed, policy: VacuumPolicySpec) -> Deadline:
    """Compute the deadline of a vacuum that rewrites `bytes`."""
    limits = policy.limits
    purge_seconds = bytes / bytes_per_second(speed)
    runs = max(
        1,
        ceil(bytes / limits.max_bytes_per_run) if limits.max_bytes_per_run else 1,
        ceil(purge_seconds / limits.max_run_seconds) if limits.max_run_seconds else 1,
    )
    expiry = EXPIRY_SECONDS if speed.expiry_seconds is None else speed.expiry_seconds
    needed = timedelta(seconds=min(purge_seconds + runs * START_SECONDS + expiry, NEEDED_AT_MOST_SECONDS))
    latest = evict_by - needed
    starts_by = min(
        latest - timedelta(seconds=MARGIN_SECONDS), evict_by - timedelta(seconds=policy.triggers.evict_by_lead_seconds)
    )
    rate = written(int(bytes_per_second(speed)))
    work = f"{written(bytes)} at {rate} per second, {runs} run{'s' if runs > 1 else ''} and the expiry of snapshots"
    return Deadline(evict_by, starts_by, latest, work)


@dataclass(frozen=True)
class Fired(Verdict):
    """A vacuum is due now. Its message has no final period."""

    urgent: bool = field(default=False, kw_only=True)
    """An evictBy is due, so the window does not apply."""


@dataclass(frozen=True)
class Later(Verdict):
    """No vacuum is due now."""

    look_again: datetime | None = None
    """When that changes if the table does not; None: it does not."""


def aged(
    rule: RetentionSpec, known: RetentionStatus | None, view: TableView, now: datetime, holds: str = ""
) -> Fired | Later:
    """Whether a vacuum is due because rows are too old.

    The operator reads no entries of data files. The last vacuum says when other rows of its snapshot will be too old. If the
    table has changed since, the next vacuum is due on the next day. Files that holds keep are not left over: a vacuum is due when
    the holds have changed.

    Args:
        known: What the last vacuum found; None: nothing is known.
        holds: The digest of the active holds.
    """
    text = f"rows with a time before {rule.cutoff} are too old"
    if view.head_id is None:
        return Later(Reason.BELOW_TRIGGERS, text)
    if known is None or known.rule != rule.rule:
        return Fired(Reason.ROWS_TOO_OLD, f"{text}, and no vacuum has looked for them")
    if known.left:
        return Fired(Reason.ROWS_TOO_OLD, f"{text}, and the last vacuum left some")
    if known.files_held and (known.holds or "") != holds:
        return Fired(Reason.ROWS_TOO_OLD, f"{text}, and the holds that kept {_files(known.files_held)} have changed")
    has_changed = known.snapshot_id != view.head_id
    is_new_day = (known.cutoff or "") < rule.cutoff.isoformat()
    if is_new_day and has_changed:
        return Fired(Reason.ROWS_TOO_OLD, f"{text}, and the table has changed since a vacuum looked for them")
    if is_new_day and known.next_time is not None and known.next_time <= now:
        return Fired(Reason.ROWS_TOO_OLD, f"{text}, and the table has some since {timestamp(known.next_time)}")
    look_again = due_time(rule.cutoff + timedelta(days=1), rule.max_age_days) if has_changed else known.next_time
    if known.problem:
        return Later(Reason.INVALID_RETENTION, f"no row is removed for its age: {known.problem}", look_again)
    after = f", the next vacuum looks for them at {timestamp(look_again)}" if look_again is not None else ""
    has = f"holds keep {_files(known.files_held)} with such rows" if known.files_held else "the table has none"
    return Later(Reason.BELOW_TRIGGERS, f"{text}, and {has}{after}", look_again)


def _files(number: int) -> str:
    return f"{number} data file{'' if number == 1 else 's'}"


def fired(
    triggers: Triggers, view: TableView, deadline: Deadline | None, now: datetime, aged: Fired | Later | None = None
) -> Fired | Later:
    """Evaluate the policy's triggers, the most urgent first.

    Args:
        aged: Whether rows are too old; None: the policy has no retention.
    """
    texts: list[str] = []
    times: list[datetime] = []
    if deadline is not None:
        text = f"bytes must be gone by {timestamp(deadline.evict_by)}"
        if deadline.starts_by <= now:
            return Fired(Reason.EVICT_BY_NEAR, text, urgent=True)
        texts.append(f"{text}, so a vacuum starts at {timestamp(deadline.starts_by)}")
        times.append(deadline.starts_by)
    if isinstance(aged, Fired):
        return aged
    if aged is not None:
        texts.append(aged.message.removesuffix("."))
        times += [aged.look_again] if aged.look_again is not None else []
    active, statistics = len(view.ledger.tombstones), view.ledger.statistics
    if (limit := triggers.active_tombstones) is not None:
        text = f"{active} active tombstones, the limit is {limit}"
        if active >= limit:
            return Fired(Reason.TOO_MANY_TOMBSTONES, text)
        texts.append(text)
    if (percent := triggers.tombstoned_rows_percent) is not None:
        share = hidden_percent(view)
        hidden = "an unknown share" if share is None else f"{share:.1f}%"
        text = f"{hidden} of the rows hidden, the limit is {percent}%"
        if active and share is not None and share >= percent:
            return Fired(Reason.TOO_MANY_HIDDEN_ROWS, text)
        texts.append(text)
    if (age := triggers.oldest_tombstone_age_seconds) is not None and statistics.oldest_added_on is not None:
        old_at = statistics.oldest_added_on + timedelta(seconds=age)
        text = f"the oldest tombstone was added at {timestamp(statistics.oldest_added_on)}, the limit is {age} s"
        if old_at <= now:
            return Fired(Reason.TOMBSTONE_TOO_OLD, text)
        texts.append(text)
        times.append(old_at)
    message = "; ".join(texts) or "There is nothing to purge, or no trigger is set for it"
    reason = aged.reason if aged is not None else Reason.BELOW_TRIGGERS
    return Later(reason, f"{message[:1].upper()}{message[1:]}.", min(times, default=None))


def hidden_percent(view: TableView) -> float | None:
    """The share of the table's rows that tombstones hide, 0 to 100; None: unknown."""
    rows, total = view.ledger.statistics.tombstoned_rows, view.total_records
    if rows is None or total is None:
        return None
    return min(100.0 * rows / total, 100.0) if total else 0.0


FIELDS: Final = 5
# Overlapping windows count as one long window; at most this many are joined.
JOINED_AT_MOST: Final = 50


@dataclass(frozen=True)
class Hours:
    """When a window opens and closes, as seen from one moment, in UTC."""

    closes: datetime | None
    """When the open window closes; None: it is closed."""
    opens: datetime
    """When it opens next, after now."""


def hours(window: Window, now: datetime) -> Hours | Verdict:
    """When the window closes and opens next, in UTC. `now` must be an aware time."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (ValueError, OSError, LookupError):
        text = f"spec.window.timeZone {window.time_zone!r} is not an IANA time zone. Set one such as Europe/Berlin."
        return Verdict(Reason.INVALID_WINDOW, text)
    local, schedule = now.astimezone(zone), window.schedule
    if (wrong := _wrong(schedule, local)) is not None:
        return wrong
    opens = next(_openings(schedule, local), None)
    if opens is None:
        return _never(schedule)
    closes = _opened(schedule, local)
    if closes is not None:
        closes += timedelta(seconds=window.duration_seconds)
    if closes is None or closes <= now:
        return Hours(None, opens)
    return Hours(_joined(window, local, closes), opens)


def _wrong(schedule: str, local: datetime) -> Verdict | None:
    fields = schedule.split()
    if len(fields) != FIELDS:
        text = f"{len(fields)} fields, expected {FIELDS}: minute, hour, day of month, month, weekday."
        return Verdict(Reason.INVALID_WINDOW, f"spec.window.schedule {schedule!r} has {text}")
    try:
        CronSim(schedule, local)
        return None
    except CronSimError as e:
        error = str(e)
    try:  # the day exists, but in none of these months
        CronSim(" ".join([*fields[:3], "*", fields[4]]), local)
    except CronSimError:
        field = error.removeprefix("Bad ")
        text = f"its {field} is invalid. Set five cron fields, such as '0 1 * * *'."
        return Verdict(Reason.INVALID_WINDOW, f"spec.window.schedule {schedule!r}: {text}")
    return _never(schedule)


def _never(schedule: str) -> Verdict:
    text = (
        f"spec.window.schedule {schedule!r} names a day that does not exist, so the window never opens. Only an evictBy or the "
        "annotation lethe.dev/vacuum-now starts a vacuum. Correct the schedule."
    )
    return Verdict(Reason.WINDOW_NEVER_OPENS, text)


# By so much clocks are put back at most in autumn, and a little more.
PUT_BACK: Final = timedelta(hours=2)


def _openings(schedule: str, local: datetime) -> Iterator[datetime]:
    """When the window opens, after now, in UTC.

    In the second pass of a repeated hour, CronSim begins with the openings of the first pass.
    """
    return (at for opens in CronSim(schedule, local) if (at := opens.astimezone(UTC)) > local)


def _opened(schedule: str, local: datetime) -> datetime | None:
    """When the window opened last, in UTC; None: never.

    CronSim goes back on the clock. In the second pass of a repeated hour, the clock may be before an opening of the first pass.
    """
    now = local.astimezone(UTC)
    ahead = timedelta(minutes=1) + (PUT_BACK if _is_put_back(now, local.tzinfo) else timedelta())
    for before in CronSim(schedule, (now + ahead).astimezone(local.tzinfo), reverse=True):
        if (opened := before.astimezone(UTC)) <= now:
            return opened
    return None


def _is_put_back(now: datetime, zone: tzinfo | None) -> bool:
    """Whether the clocks of a zone are put back within the last or the next few hours."""
    before, after = ((now + d).astimezone(zone).utcoffset() for d in (-PUT_BACK, PUT_BACK))
    return before is not None and after is not None and after < before


def _joined(window: Window, local: datetime, closes: datetime) -> datetime:
    """When a window closes that opens again before it closes, after at most `JOINED_AT_MOST` openings."""
    for _, opens in zip(range(JOINED_AT_MOST), _openings(window.schedule, local), strict=False):
        if opens > closes:
            break
        closes = opens + timedelta(seconds=window.duration_seconds)
    return closes
