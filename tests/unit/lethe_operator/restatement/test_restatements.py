"""What the operator knows of Restatements: as the watch told it last, and never older than what it wrote itself."""

import json
from datetime import timedelta
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.contract.status import RestatementResult
from lethe.kube import RESTATEMENTS, Document, ListPage, ResourceKind
from lethe_operator.cluster.cache import KindListing
from lethe_operator.probes import OperatorHealth
from lethe_operator.resources.common import is_newer
from lethe_operator.resources.restatement import parse_restatement
from lethe_operator.restatement import status as restatement_status
from lethe_operator.restatement.observe import RestatementCache, RestatementsOfDataset
from lethe_operator.restatement.outcome import Assessment, RestatementPhase

from tests.support.builders import NOW, ago
from tests.support.fake_cluster import Client, FakeCluster
from tests.support.resources import a_restatement, a_restatement_body
from tests.support.statuses import a_condition, document

RESULT = RestatementResult(snapshot_id=7423456789012345678)
ENDED = document(
    restatement_status.status(
        a_restatement(),
        Assessment(RestatementPhase.SUCCEEDED, "True", Verdict("Succeeded", "3 rows deleted."), result=RESULT),
        ago(seconds=100),
    )
)


def version(number: int, **meta: Any) -> dict[str, Any]:
    return {"resourceVersion": str(number), **meta}


def names(found: RestatementsOfDataset) -> list[str]:
    return [r.meta.name for r in found.restatements]


class WatchStory:
    """A server, whose watch tells of nothing unless `tell` is called, and what is known."""

    def __init__(self, *names: str) -> None:
        self.server = FakeCluster()
        self.client = Client(self.server)
        self.known = RestatementCache()
        self.is_listed = False
        for name in names:
            self.create(name)

    def create(self, name: str, **spec: Any) -> Document:
        body = a_restatement_body(name, **spec)
        del body["metadata"]["resourceVersion"]
        return self.server.create(RESTATEMENTS, "ns", body)

    def end(self, name: str) -> Document:
        return self.server.patch(RESTATEMENTS, "ns", name, {"status": ENDED}, "status")

    def tell(self, body: Document, deleted: bool = False) -> bool:
        metadata = body["metadata"]
        if deleted:
            return self.known.drop("ns", metadata["name"], metadata["uid"], metadata["resourceVersion"])
        return self.known.put(body).is_news

    def found(self, dataset: str = "flights") -> RestatementsOfDataset:
        if not self.is_listed:
            self.list()
        return self.known.of("ns", dataset, NOW)

    def list(self) -> None:
        self.is_listed = True
        list(KindListing(self.client, RESTATEMENTS, "ns").compare(self.known, OperatorHealth(lambda: 0.0, 600)))  # type: ignore[arg-type]


def test_a_listing_that_nobody_waits_for_leaves_the_api_server_most_of_the_time() -> None:
    """Of a second, it asks for a fifth; and it ends before the API server forgets its place."""
    now, slept = [0.0], list[float]()

    class Paged:
        def page(
            self, _kind: ResourceKind, _namespace: str, _labels: str, after: str, _metadata_only: bool
        ) -> ListPage:
            now[0] += 0.25
            number = int(after or 0)
            return ListPage([], str(number + 1) if number < 999 else "", "1")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    paged: Any = Paged()
    finds = OperatorHealth(lambda: 0.0, 600)
    clock = lambda: now[0]  # noqa: E731
    list(
        KindListing(paged, RESTATEMENTS, "ns", unhurried=True, sleep=sleep, clock=clock).compare(
            RestatementCache(), finds
        )
    )
    paused = len(slept)
    list(KindListing(paged, RESTATEMENTS, "ns", sleep=sleep, clock=clock).compare(RestatementCache(), finds))

    assert set(slept) == {1.0}
    assert 150 < paused < 300 - 1000 * 0.25 + 200
    assert len(slept) == paused


def test_each_dataset_has_its_own() -> None:
    story = WatchStory("a")
    story.create("other", datasetRef={"name": "trains"})

    assert (names(story.found()), names(story.found("trains"))) == (["a"], ["other"])
    assert story.known.datasets("ns") == {"flights", "trains"}


def test_one_that_is_deleted_is_gone_and_its_successor_is_not() -> None:
    story = WatchStory("a")
    old = story.server.get(RESTATEMENTS, "ns", "a")
    story.found()
    story.server.delete(RESTATEMENTS, "ns", "a")
    new = story.create("a", meta={"uid": "another"}, datasetRef={"name": "trains"})

    story.tell(new)
    told_late = story.tell(old, deleted=True)

    assert not told_late
    assert (names(story.found()), names(story.found("trains"))) == ([], ["a"])
    assert story.tell(new, deleted=True)
    assert story.known.datasets("ns") == frozenset()


def test_what_the_operator_wrote_counts_at_once_and_is_no_news_when_the_watch_tells_it() -> None:
    story = WatchStory("a")
    story.found()
    queued = story.server.patch(RESTATEMENTS, "ns", "a", {"status": {"phase": "Queued"}}, "status")
    running = story.server.patch(RESTATEMENTS, "ns", "a", {"status": {"phase": "Running"}}, "status")

    story.known.put(running)

    assert story.found().restatements[0].status.phase == "Running"
    assert (story.tell(queued), story.tell(running)) == (False, False)
    assert story.found().restatements[0].status.phase == "Running"
    assert story.tell(story.server.patch(RESTATEMENTS, "ns", "a", {"spec": {"suspend": True}}))


def test_the_answer_to_a_write_does_not_bring_back_what_was_deleted_meanwhile() -> None:
    story = WatchStory("a")
    story.found()
    answer = story.server.patch(RESTATEMENTS, "ns", "a", {"status": {"phase": "Queued"}}, "status")

    story.tell(answer, deleted=True)
    story.known.put(answer)

    assert names(story.found()) == []


def test_a_listing_finds_what_the_watch_forgot() -> None:
    story = WatchStory("a", "b", "c")
    story.found()
    story.server.delete(RESTATEMENTS, "ns", "b")
    story.create("d")
    story.server.patch(RESTATEMENTS, "ns", "a", {"spec": {"suspend": True}})

    story.list()

    assert sorted(names(story.found())) == ["a", "c", "d"]
    assert next(r for r in story.found().restatements if r.meta.name == "a").spec.suspend
    assert story.known.versions("ns").keys() == {"uid-a", "uid-c", "uid-d"}


def test_what_happens_while_a_namespace_is_listed_is_right_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows one that is deleted before it is taken in, and another shows one before it is changed; what is created behind
    the back of a page is in none."""
    story = WatchStory("a", "b")
    story.found()

    def page(kind: ResourceKind, namespace: str, *_: Any) -> ListPage:
        page = ListPage(story.server.list(kind, namespace), "")
        story.tell(story.server.get(kind, namespace, "a"), deleted=True)
        story.tell(story.server.patch(kind, namespace, "b", {"spec": {"suspend": True}}))
        story.tell(story.create("new"))
        return page

    monkeypatch.setattr(story.client, "page", page)
    story.list()

    assert sorted((r.meta.name, r.spec.suspend) for r in story.found().restatements) == [("b", True), ("new", False)]


def test_an_invalid_restatement_is_reported_until_it_is_valid() -> None:
    story = WatchStory("a")
    story.found()
    broken = story.server.patch(RESTATEMENTS, "ns", "a", {"spec": {"evictBySeconds": "soon"}})
    story.tell(broken)

    (invalid,) = story.found().invalid
    assert (invalid.meta.name, names(story.found())) == ("a", [])
    assert "spec.evictBySeconds" in invalid.message
    story.tell(story.server.patch(RESTATEMENTS, "ns", "a", {"spec": {"evictBySeconds": 5}}))
    assert (story.found().invalid, names(story.found())) == ((), ["a"])


@pytest.mark.parametrize(("version", "than", "newer"), [("10", "9", True), ("9", "10", False), ("9", "9", False)])
def test_versions_are_compared_as_numbers(version: str, than: str, newer: bool) -> None:
    assert is_newer(version, than) is newer
    assert is_newer(f"v{version}", f"v{than}") is (version != than)


# --- those that are done -------------------------------------------------------------------------------------------------


def test_a_succeeded_restatement_is_only_returned_on_request() -> None:
    story = WatchStory("a", "b")
    story.found()
    story.tell(story.end("a"))

    assert names(story.found()) == ["b"]
    assert [document(r.status) for r in story.known.done("ns", "flights")] == [ENDED]


def test_a_failed_restatement_is_still_observed() -> None:
    """Its run may have committed after all, which the ledger tells later."""
    story = WatchStory("a")
    failed = restatement_status.status(
        a_restatement(), Assessment(RestatementPhase.FAILED, "False", Verdict("R", "m"), stalled=True), NOW
    )
    story.server.patch(RESTATEMENTS, "ns", "a", {"status": document(failed)}, "status")

    assert names(story.found()) == ["a"]


def test_an_edited_restatement_is_observed_until_its_status_has_the_new_generation() -> None:
    story = WatchStory("a")
    story.end("a")
    edited = story.server.patch(
        RESTATEMENTS, "ns", "a", {"metadata": {"generation": 2}, "spec": {"ttlSecondsAfterFinished": 9}}
    )

    assert names(story.found()) == ["a"]
    told = restatement_status.changes(
        [
            (
                story.found().restatements[0],
                Assessment(RestatementPhase.SUCCEEDED, "True", Verdict("Succeeded", "3 rows deleted.")),
            )
        ],
        NOW,
    )
    assert told.statuses["a"].observed_generation == edited["metadata"]["generation"]


def test_a_restatement_that_an_undo_names_is_observed() -> None:
    story = WatchStory("a", "b")
    story.end("a")
    story.end("b")
    story.create("undo", operation="Undo", batchIds=[], undoes={"name": "a"})

    assert sorted(names(story.found())) == ["a", "undo"]


def test_an_expired_restatement_is_observed_and_the_next_expiry_is_known() -> None:
    story = WatchStory()
    for name, ttl in (("over", 100), ("later", 101), ("never", None)):
        story.create(name, **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}))
        story.end(name)

    found = story.found()

    assert names(found) == ["over"]
    assert found.next_expiry == NOW + timedelta(seconds=1)


# --- those whose rows are still to go -------------------------------------------------------------------------------


def owed(reason: str, told: Any = None) -> dict[str, Any]:
    """The status of a succeeded Restatement with this state of its erasure."""
    status = "True" if reason == "Erased" else "False"
    condition = document(a_condition("Erased", status, reason))
    return {**ENDED, "conditions": [*ENDED["conditions"], condition], "erasure": told or {}}


def test_a_succeeded_restatement_is_observed_again_when_the_state_of_its_erasure_changes() -> None:
    story = WatchStory("a", "b", "c", "d")
    keys = {r.meta.name: r.key for r in story.found().restatements}
    reasons = {"a": "ErasureBlocked", "b": "ErasureBlocked", "c": "Erased", "d": "ErasureNotWatched"}
    for name, reason in reasons.items():
        body = story.server.patch(RESTATEMENTS, "ns", name, {"status": owed(reason, {"blockedByCount": 1})}, "status")
        story.tell(body)
    same = 'False ErasureBlocked {"blocked_by_count":1}'

    assert names(story.found()) == []
    assert owing(story, {keys["a"]: same, keys["b"]: same}) == []
    assert owing(story, {keys["a"]: same, keys["b"]: "False ErasureOverdue {}"}) == ["b"]
    assert owing(story, {keys["b"]: same}) == ["a"]  # no obligation any more: it was verified, or undone


def owing(story: WatchStory, told: dict[str, str]) -> list[str]:
    return [r.meta.name for r in story.known.with_outdated_erasure("ns", "flights", told)]


def test_finished_and_deleted_restatements_are_not_observed() -> None:
    story = WatchStory("a", "b")
    for name in ("a", "b"):
        story.tell(story.server.patch(RESTATEMENTS, "ns", name, {"status": owed("RowsInTable")}, "status"))
    before = owing(story, {})

    story.tell(story.server.patch(RESTATEMENTS, "ns", "a", {"status": owed("Erased")}, "status"))
    story.tell(story.server.get(RESTATEMENTS, "ns", "b"), deleted=True)

    assert (before, owing(story, {})) == (["a", "b"], [])


def test_thousands_of_succeeded_restatements_are_not_unpacked_to_compare_their_erasures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither those whose rows need not go, nor those that say what there is to say."""
    known = RestatementCache()
    told = {}
    for n in range(2000):
        body = a_restatement_body(f"r{n}", status=owed("RowsInTable") if n % 2 else ENDED)
        known.put(body)
        told[parse_restatement(body).key] = "False RowsInTable {}"

    def unpacked(_: bytes) -> dict[str, Any]:
        raise AssertionError("a body was unpacked")

    monkeypatch.setattr(json, "loads", unpacked)

    assert known.with_outdated_erasure("ns", "flights", told) == ()


def test_the_time_to_live_of_one_whose_rows_are_still_to_go_does_not_begin() -> None:
    story = WatchStory()
    for name, reason in (("a", "RowsInTable"), ("b", "Erased")):
        story.create(name, ttlSecondsAfterFinished=0)
        story.server.patch(RESTATEMENTS, "ns", name, {"status": owed(reason)}, "status")

    found = story.found()

    assert (names(found), found.next_expiry) == (["b"], None)
