"""The order of the queue: priorities, turns of namespaces, the longest overdue first, and no key without its turn."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe_operator.cluster.schedule import AGED_EVERY, AGED_SECONDS, Intervals, Key, Priority, Schedule, Start

CHANGED, DUE, PERIODIC = Priority


def key(name: object, namespace: str = "ns") -> Key:
    return Key("Dataset", namespace, str(name))


def a_schedule(workers: int = 1, per_namespace: int | None = None) -> Schedule:
    return Schedule(workers, workers if per_namespace is None else per_namespace)


def started(schedule: Schedule, now: float) -> Start:
    """The next reconcile, which ends at once."""
    start = schedule.take(now)
    assert start is not None
    schedule.finish(start.key, now)
    return start


def names(schedule: Schedule, now: float, count: int) -> list[str]:
    return [started(schedule, now).key.name for _ in range(count)]


def test_changes_go_before_due_times_and_those_before_periodic_looks() -> None:
    schedule = a_schedule()
    for priority, due in ((PERIODIC, 0.0), (DUE, 1.0), (CHANGED, 2.0)):
        schedule.add(key(priority.name), priority, due)

    assert [schedule.depth(p) for p in Priority] == [0, 0, 0]
    assert names(schedule, 3.0, 1) == ["CHANGED"]
    assert [schedule.depth(p) for p in Priority] == [0, 1, 1]
    assert names(schedule, 3.0, 2) == ["DUE", "PERIODIC"]


def test_the_longest_overdue_of_a_namespace_goes_first() -> None:
    schedule = a_schedule()
    dues = random.Random(1).sample(range(100), 30)
    for due in dues:
        schedule.add(key(due), DUE, due)

    assert names(schedule, 100.0, 30) == [str(d) for d in sorted(dues)]


def test_the_first_of_a_tenant_waits_for_one_of_each_other_tenant_not_for_all() -> None:
    """However long they have waited."""
    schedule = a_schedule()
    for tenant in ("big", "bigger"):
        for n in range(3_000):
            schedule.add(key(n, tenant), CHANGED, 0.0)
    names(schedule, 10.0, 100)
    schedule.add(key("first", "small"), CHANGED, 10.0)

    starts = [started(schedule, 10.0).key for _ in range(3)]

    assert key("first", "small") in starts


def test_tenants_that_wait_get_equally_many_starts() -> None:
    schedule = a_schedule()
    for tenant, count in (("a", 1000), ("b", 50), ("c", 100)):
        for n in range(count):
            schedule.add(key(n, tenant), DUE, float(n))

    starts = Counter(started(schedule, 2000.0).key.namespace for _ in range(150))

    assert starts == {"a": 50, "b": 50, "c": 50}


def test_a_tenant_leaves_workers_to_others_and_keeps_its_turn() -> None:
    schedule = a_schedule(workers=8, per_namespace=6)
    for n in range(10):
        schedule.add(key(n, "big"), CHANGED, 0.0)

    running = [schedule.take(1.0) for _ in range(7)]
    assert [s is not None for s in running] == [True] * 6 + [False]
    schedule.add(key("x", "small"), PERIODIC, 1.0)
    assert schedule.take(1.0) == Start(key("x", "small"), PERIODIC, 0.0)
    assert schedule.take(1.0) is None
    schedule.finish(key(0, "big"), 2.0)
    following = schedule.take(2.0)

    assert following is not None
    assert following.key == key(6, "big")


def test_a_periodic_look_starts_although_changes_never_end() -> None:
    """It has the bound that the module states: here m = 2 namespaces and n = 3 older ones."""
    schedule = a_schedule()
    now = 0.0
    for n in range(4):
        schedule.add(key(f"idle-{n}", "a"), PERIODIC, float(n))
    schedule.add(key("idle", "b"), PERIODIC, 0.0)
    bound = AGED_EVERY * 2 * (3 + 1)
    starts_since_aged = 0
    late = None
    for step in range(1000):
        now += 0.1
        for tenant in ("a", "b"):
            schedule.add(key(step, tenant), CHANGED, now)
        starts_since_aged += now >= 3.0 + AGED_SECONDS
        start = started(schedule, now)
        if start.key.name == "idle-3":
            late = starts_since_aged
            break
        assert start.priority is CHANGED or now >= AGED_SECONDS

    assert late is not None
    assert late <= bound


def test_old_periodic_looks_take_one_start_of_eight_from_changes() -> None:
    schedule = a_schedule()
    for n in range(1000):
        schedule.add(key(f"idle-{n}"), PERIODIC, 0.0)
        schedule.add(key(n), CHANGED, AGED_SECONDS + 1)

    starts = Counter(started(schedule, AGED_SECONDS + 2).priority for _ in range(800))

    assert starts == {CHANGED: 700, PERIODIC: 100}


step = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 5), st.sampled_from(Priority), st.floats(0, 60)),
    st.tuples(st.just("finish"), st.integers(0, 5), st.floats(0, 5)),
    st.tuples(st.just("wait"), st.floats(0, 40)),
)


@given(st.lists(step, max_size=80))
def test_in_whatever_order_requests_come(steps: list[tuple[object, ...]]) -> None:
    """No key runs twice at once, or again while an older one of its namespace waits; limits hold; every request is answered."""
    schedule, now = a_schedule(workers=3, per_namespace=2), 0.0
    running: dict[Key, None] = {}
    model: dict[Key, dict[Priority, float]] = {}  # what waits
    rests: dict[Key, float] = {}

    def start_all() -> None:
        while (start := schedule.take(now)) is not None:
            assert start.key not in running
            ready = {k: r for k, r in model.items() if k not in running and min(r.values()) <= now}
            mine = ready[start.key]
            assert start.late_seconds == pytest.approx(now - mine[start.priority])
            for other, requests in ready.items():
                older = [p for p, due in requests.items() if due < mine[start.priority] and due <= now]
                assert other.namespace != start.key.namespace or all(p > start.priority for p in older)
            del model[start.key]
            running[start.key] = None
            assert len(running) <= 3
            assert max(Counter(k.namespace for k in running).values()) <= 2
        waiting = {k for k, r in model.items() if k not in running and min(r.values()) <= now}
        full = {n for n, count in Counter(k.namespace for k in running).items() if count == 2}
        assert len(running) == 3 or all(k.namespace in full for k in waiting)

    def finish(k: Key, rest: float) -> None:
        schedule.finish(k, now + rest)
        del running[k]
        rests[k] = now + rest
        if k in model:
            model[k] = {p: max(due, now + rest) for p, due in model[k].items()}
        else:
            del rests[k]

    for kind, *arguments in steps:
        match kind, arguments:
            case "add", [int(tenant), int(name), Priority() as priority, float(delay)]:
                k = key(name, f"ns{tenant}")
                due = max(now + delay, rests.get(k, 0.0) if k in model and k not in running else 0.0)
                schedule.add(k, priority, now + delay)
                model.setdefault(k, {})[priority] = min(due, model.get(k, {}).get(priority, due))
            case "finish", [int(number), float(rest)] if running:
                finish(list(running)[number % len(running)], rest)
            case "wait", [float(seconds)]:
                now += seconds
        start_all()
    for _ in range(1000):
        if not model and not running:
            break
        now += 10.0
        for k in list(running):
            finish(k, 0.0)
        start_all()
    assert not model


def test_what_is_replaced_or_needed_no_more_is_not_kept_for_ever() -> None:
    schedule = a_schedule(workers=8, per_namespace=6)
    keys = [key(n, f"ns{n % 100}") for n in range(1_000)]
    for k in keys:
        schedule.add(k, PERIODIC, 300.0)
    for k in keys:
        schedule.add(k, CHANGED, 0.3)
    count = 0
    while (start := schedule.take(1.0)) is not None:
        schedule.add(start.key, PERIODIC, 301.0)
        schedule.finish(start.key, 1.0)
        count += 1

    assert count == 1_000
    assert len(schedule._later._items) <= 2 * 1_000


def test_the_interval_grows_while_idle_up_to_its_limit() -> None:
    intervals = Intervals(15, 300)
    pauses = [intervals.pause(key("a"), n) for n in range(8)]

    assert pauses[0] == 15
    growth = [p / pauses[1] for p in pauses[1:]]
    assert growth == pytest.approx([1, 4, 16, 20, 20, 20, 20])
    assert 0.8 * 15 <= pauses[1] <= 15


def test_a_dataset_may_limit_its_interval_but_not_below_the_shortest() -> None:
    intervals = Intervals(15, 300)

    assert intervals.pause(key("a"), 9, within_seconds=60) == intervals.pause(key("a"), 2)
    assert intervals.pause(key("a"), 9, within_seconds=0) == intervals.pause(key("a"), 1)
    assert intervals.pause(key("a"), 9, within_seconds=900) == intervals.pause(key("a"), 9)


def test_keys_that_were_created_together_do_not_stay_together() -> None:
    """10,000 looks are spread over a fifth of the interval, and always the same way."""
    pauses = [Intervals().pause(key(f"d{n}"), 9) for n in range(10_000)]
    tenths = Counter(int((p - 240) / 6) for p in pauses)

    assert set(tenths) == set(range(10))
    assert max(tenths.values()) < 1.3 * min(tenths.values())
    assert pauses == [Intervals().pause(key(f"d{n}"), 9) for n in range(10_000)]
