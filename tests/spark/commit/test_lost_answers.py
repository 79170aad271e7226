"""A catalog that carries a commit out, or does not, and whose answer never arrives: everything happens exactly once, and no
file that a snapshot needs is removed."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from lethe.base.errors import TransientError
from lethe.contract.settings import UnknownBatches
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs
from tests.spark.support.story import ALL_GONE, Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.faults import Fault, Switch

MakeStory = Callable[[str], tuple[Story, Switch]]

CUT = {"landed": Fault(landed=True), "lost": Fault(landed=False)}
# A gateway may answer for the server behind it; 503 with Retry-After makes Iceberg's client send the commit again.
HTTP = {
    **{f"landed-{s or 'cut'}": Fault(landed=True, answer=s) for s in (0, 400, 403, 404, 503, 504)},
    **{f"lost-{s or 'cut'}": Fault(landed=False, answer=s) for s in (0, 400, 502)},
}
FAULTS = [
    *(("pg", name, fault) for name, fault in CUT.items()),
    *(("rest", name, fault) for name, fault in HTTP.items()),
]
# The catalog says nothing, or refuses what it has carried out.
QUICK = {("pg", "lost"), ("rest", "landed-404")}
CASES = [
    pytest.param(catalog, fault, id=f"{catalog}-{name}", marks=() if (catalog, name) in QUICK else pytest.mark.long)
    for catalog, name, fault in FAULTS
]


def of_two(quick: tuple[str, bool]) -> pytest.MarkDecorator:
    """Both catalogs, each of which has carried a commit out, or not. Only the case `quick` is not long."""
    return pytest.mark.parametrize(("catalog", "landed"), pairs(("pg", "rest"), (True, False), quick))


@pytest.fixture
def make_story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> MakeStory:
    """A story on a catalog of that name, and the switch of the proxy before it."""

    def begin(catalog: str) -> tuple[Story, Switch]:
        switch: Switch = request.getfixturevalue(catalog)
        make_session(catalog)  # tells the running session about this catalog, too
        return Story.begin(spark, lake, catalog=catalog), switch

    return begin


def runs(story: Story) -> Counter[str]:
    """How many snapshots of the head's history each run has."""
    return Counter(story.keys(s).get("lethe.run-id", "") for s in story.snapshots())


def check_every_snapshot(story: Story) -> None:
    """All that retained snapshots name is there: a manifest or a data file that was removed would be missed here."""
    table = story.table()
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io):
                assert Path(local(entry.data_file.file_path)).stat().st_size == entry.data_file.file_size_in_bytes


@pytest.mark.parametrize(("catalog", "fault"), CASES)
def test_a_commit_whose_answer_is_lost_happens_exactly_once(make_story: MakeStory, catalog: str, fault: Fault) -> None:
    """New data, tombstones alone, both together, and files replaced by others: each by the path of its own job."""
    story, switch = make_story(catalog)
    story.put("A", "B", "C")
    story.consolidate("A")

    story.consolidate("B", "C", after_stage=lambda: switch.arm(fault))
    assert switch.struck == 1
    assert story.rows_at() == of_batches("A", "B", "C")
    assert set(runs(story).values()) == {1}
    check_every_snapshot(story)

    result = story.restate(a_request("revert", batch_ids=("B",)), before_commit=lambda: switch.arm(fault))
    assert (switch.struck, result.succeeded, result.tombstones_added) == (1, True, 1)
    assert story.rows_at() == of_batches("A", "C")
    assert story.states() == {"A": "promoted", "B": "reverted", "C": "promoted"}
    assert set(runs(story).values()) == {1}
    check_every_snapshot(story)

    group = story.restatement(
        story.a_replay("C", by="C2"), a_request("unknown", batch_ids=("D",), unknown_batches=UnknownBatches.ALLOW)
    )
    reported = story.run(group, before_commit=lambda: switch.arm(fault)).requests
    assert (switch.struck, [(r.succeeded, r.group_size) for r in reported]) == (1, [(True, 2), (True, 2)])
    assert {r.snapshot_id for r in reported} == {story.head().snapshot_id}
    assert story.rows_at() == of_batches("A") + of_batches("C2", rows=3)
    assert set(runs(story).values()) == {1}
    check_every_snapshot(story)

    story.vacuum(before_commit=lambda: switch.arm(fault))
    assert switch.struck == 1
    assert story.rows_at() == of_batches("A") + of_batches("C2", rows=3)
    assert story.in_files() == {"A": 4, "C2": 3}
    assert not story.ledger().tombstones
    check_every_snapshot(story)
    story.check_reads()


@of_two(("rest", False))
def test_an_expiry_whose_answer_is_lost_takes_nothing_that_is_needed(
    make_story: MakeStory, catalog: str, landed: bool
) -> None:
    story, switch = make_story(catalog)
    story.filled("AB")
    story.revert("A")

    try:
        story.vacuum(ALL_GONE, after_commit=lambda: switch.arm(Fault(landed)))
    except TransientError:
        story.vacuum(ALL_GONE)
    story.vacuum(ALL_GONE, key="2")

    assert switch.struck == 1
    story.check_reads(of_batches("B"))
    check_every_snapshot(story)
    assert len(story.table().snapshots()) == 1
    print(catalog, landed, "left", len(story.data_folder()), "live", len(story.files()))
