"""The operator dies at any of its requests, or two of them work on one Dataset: no batch is given to two runs for that, and
what is deleted from a buffer was promoted.

What the runs do is stood in for by commits of a ledger; that real ones over the same batches promote each once is shown in
tests/spark.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import pytest
from lethe.base.objects import BufferedObject
from lethe.kube import Document
from lethe.storage.local_store import LocalStore
from lethe_operator.reconcile import utc_now

from tests.support.fake_cluster import Client
from tests.support.small_lake import FLIGHTS, SmallLake
from tests.support.steps import Killed, die

Begin = Callable[[], SmallLake]


def active(jobs: Iterable[Document]) -> list[Document]:
    return [j for j in jobs if not (j.get("status") or {}).get("conditions")]


def given(lake: SmallLake) -> Counter[str]:
    """How many of the stored runs have each batch."""
    return Counter(i for r in lake.runs() if r.consolidation for i in r.consolidation.batch_ids)


def settle(lake: SmallLake) -> list[str]:
    """Operators that each remember nothing, and the runs that they start, until nothing is left. The Jobs there were."""
    seen: dict[str, None] = {}
    for _ in range(9):
        lake.operator()(FLIGHTS)
        jobs = lake.jobs()
        seen.update(dict.fromkeys(j["metadata"]["name"] for j in jobs))
        if not active(jobs):
            return list(seen)
        for job in active(jobs):
            lake.end(job)
    raise AssertionError("there is always another Job")


def crashed(begin: Begin, prepare: Callable[[SmallLake], object]) -> Iterator[tuple[SmallLake, str]]:
    """Lakes whose operator died in a reconcile, each right after another one of its writes and before its answer came; and
    the name of that write."""
    whole = begin()
    prepare(whole)
    client = Client(whole.cluster)
    whole.operator(client)(FLIGHTS)
    writes = [n for n, r in enumerate(client.requests) if not r.startswith(("get", "list"))]
    for n in writes:
        lake = begin()
        prepare(lake)
        with pytest.raises(Killed):
            lake.operator(Client(lake.cluster, after={n: die}))(FLIGHTS)
        yield lake, client.requests[n]


def test_an_operator_killed_after_any_write_of_a_launch_leaves_one_run_to_its_successor(begin: Begin) -> None:
    """A batch that comes meanwhile does not make a stored intent another one: it goes into the next."""
    told: list[tuple[str, int, int]] = []
    for lake, write in crashed(begin, lambda lake: lake.put("A", "B")):
        told.append((write, len(lake.runs()), len(lake.jobs())))
        stored = bool(lake.runs())
        lake.put("C")
        lake.operator()(FLIGHTS)

        assert len(lake.jobs()) == 1, write
        assert given(lake) == Counter("AB" if stored else "ABC"), write
        assert len(settle(lake)) == (2 if stored else 1), write
        assert lake.states() == dict.fromkeys("ABC", "promoted"), write
    assert ("patch ConfigMap", 1, 0) in told  # the intent and no Job
    assert ("create Job", 1, 1) in told


def test_an_operator_killed_after_any_write_that_follows_a_commit_repeats_nothing_and_leaves_retention_to_its_successor(
    begin: Begin,
) -> None:
    def commit(lake: SmallLake) -> None:
        lake.put("A", "B")
        lake.operator()(FLIGHTS)
        lake.end(lake.jobs()[0])
        lake.put("C")

    told = []
    for lake, write in crashed(begin, commit):
        told.append((write, set(lake.buffered())))
        lake.operator()(FLIGHTS)

        assert {i: b.complete for i, b in lake.buffered().items()} == {"C": True}, write
        assert len(settle(lake)) == 2, write
        assert lake.states() == dict.fromkeys("ABC", "promoted"), write
    assert ("patch Dataset", {"A", "B", "C"}) in told


@pytest.mark.parametrize("deleted", range(5))
def test_an_operator_killed_while_it_deletes_promoted_objects_leaves_the_rest_to_its_successor(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """A folder of which only a part is left is no other batch, and is not promoted again."""
    lake = begin()
    lake.put("A", "B")
    lake.operator()(FLIGHTS)
    lake.end(lake.jobs()[0])
    delete = LocalStore.delete

    def delete_some(store: LocalStore, objects: Iterable[BufferedObject]) -> int:
        delete(store, list(objects)[:deleted])
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", delete_some)
        with pytest.raises(Killed):
            lake.operator()(FLIGHTS)

    assert len(settle(lake)) == 1
    assert lake.buffered() == {}
    assert lake.states() == dict.fromkeys("AB", "promoted")


def test_two_operators_that_look_at_different_moments_leave_each_batch_to_be_promoted_once(begin: Begin) -> None:
    """One is held before each of its requests while the other, whose clock goes an hour wrong and who finds one batch more,
    does all that it wants. There may be two Jobs then, over some of the same batches; there is never a third, and once their
    runs have ended both operators are content."""
    overlapping = 0
    for n in itertools.count():
        lake = begin()
        lake.put("A", "B")
        other = lake.operator(clock=lambda: utc_now() + timedelta(hours=1))

        def interfere(lake: SmallLake = lake, other: Callable[..., object] = other) -> None:
            lake.put("C")
            other(FLIGHTS)

        client = Client(lake.cluster, before={n: interfere})
        held = lake.operator(client)
        held(FLIGHTS)
        if len(client.requests) <= n:
            assert overlapping, "no moment led to two Jobs"  # how many there are depends on the pace of the machine
            return
        at = f"before {client.requests[n]}"
        held(FLIGHTS)
        other(FLIGHTS)
        jobs = lake.jobs()
        assert 1 <= len(jobs) <= 2, at
        overlapping += len(jobs) == 2 and max(given(lake).values()) == 2

        for job in jobs:
            lake.end(job)
        for _ in range(3):
            held(FLIGHTS)
            other(FLIGHTS)
            for job in active(lake.jobs()):
                lake.end(job)

        assert lake.states() == dict.fromkeys("ABC", "promoted"), at
        assert active(lake.jobs()) == [], at
        assert lake.status()["batches"]["promoted"] == 3, at
        before = len(client.requests)
        held(FLIGHTS)
        assert not [r for r in client.requests[before:] if r.startswith(("create", "delete"))], at


# --- groups of Restatements ----------------------------------------------------------------------------------------------


def asked(lake: SmallLake) -> Counter[str]:
    """How many of the stored runs have each Restatement as a member."""
    return Counter(r.name for run in lake.runs() if run.restatement for r in run.restatement.requests)


def test_an_operator_killed_after_any_write_of_a_groups_launch_leaves_it_as_it_is_to_its_successor(
    begin: Begin,
) -> None:
    """One that comes meanwhile does not make a stored group another one: it goes into the next."""
    told: list[tuple[str, int, int]] = []
    for lake, write in crashed(begin, lambda lake: lake.ask("a", "b")):
        told.append((write, len(lake.runs()), len(lake.jobs())))
        stored = bool(lake.runs())
        lake.ask("c")
        lake.operator()(FLIGHTS)

        assert len(lake.jobs()) == 1, write
        assert asked(lake) == Counter(["ns/a", "ns/b"] if stored else ["ns/a", "ns/b", "ns/c"]), write
        assert len(settle(lake)) == (2 if stored else 1), write
        assert lake.phases() == dict.fromkeys("abc", "Succeeded"), write
        sizes = {k.split("/")[1]: r.result["groupSize"] for k, r in lake.ledger.requests.items()}
        assert sizes == ({"a": 2, "b": 2, "c": 1} if stored else dict.fromkeys("abc", 3)), write
    assert ("patch ConfigMap", 1, 0) in told  # the intent and no Job
    assert ("create Job", 1, 1) in told


def test_an_operator_killed_after_any_write_that_follows_a_groups_commit_leaves_the_ends_to_its_successor(
    begin: Begin,
) -> None:
    """Each has its own, and none is carried out again: also the one that was refused, of which the ledger knows nothing."""

    def commit(lake: SmallLake) -> None:
        lake.ask("a", "b")
        lake.ask("refused", reason="refuse")
        lake.operator()(FLIGHTS)
        lake.end(lake.jobs()[0])

    told = []
    for lake, write in crashed(begin, commit):
        told.append((write, sorted(lake.phases().values())))
        assert len(settle(lake)) == 1, write
        assert lake.phases() == {"a": "Succeeded", "b": "Succeeded", "refused": "Failed"}, write
        lake.operator()(FLIGHTS)
        assert len(lake.jobs()) == 1, write
    assert ("patch Restatement", ["Queued", "Queued", "Succeeded"]) in told  # one of three was told
