"""Manifests are rewritten with the ledger, and nobody's rows, tombstones or increments change by it."""

from collections import Counter
from collections.abc import Callable

import lethe
import pytest
from lethe_spark.jobs.vacuum.job import rewrite_manifests
from pyspark.sql import SparkSession

from tests.spark.parameters import named
from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import added_by, maintain, maintaining, manifests, table_of
from tests.spark.support.story import Row, Story, of_batches
from tests.support.lake import Lake

FOREIGN_BATCHES = [f"x{n:02}" for n in range(12)]
THEIR_ROWS: Counter[Row] = Counter({(i, 500, 1 + n % 3): 1 for n, i in enumerate(FOREIGN_BATCHES)})


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in the table, and a manifest of each of twelve commits of another writer's."""
    story = Story.begin(spark, lake).filled("AB")
    for n, batch in enumerate(FOREIGN_BATCHES):
        story.append_as_foreign_writer(batch, day=1 + n % 3)
    return story


def test_many_small_manifests_become_one_and_the_snapshot_carries_the_ledger(story: Story) -> None:
    story.revert("A")
    before, files, since = manifests(story), added_by(story), story.head().snapshot_id

    done = rewrite_manifests(story.context(maintaining(story)), table_of(story))

    assert (done.outcome, manifests(story)) == (before, 1)
    keys = story.keys()
    assert (story.operation(), "tombstone.vacuum.file" in keys) == ("replace", False)
    assert (story.tombstones(), added_by(story)) == ({"A"}, files)
    assert lethe.scan(story.full_name, since=since).to_arrow().num_rows == 0
    story.check_reads(of_batches("B") + THEIR_ROWS)


@pytest.mark.long
def test_a_vacuum_rewrites_manifests_if_it_is_asked_to_and_only_once(story: Story) -> None:
    assert story.vacuum().manifests_rewritten == 0

    first, second = (maintain(story, key=key, rewrite_manifests=True) for key in ("2", "3"))

    assert (first.outcome, first.manifests_rewritten > 0, first.message) == ("Committed", True, "")
    assert (second.outcome, second.manifests_rewritten) == ("NothingToDo", 0)
    story.check_reads(of_batches("A", "B") + THEIR_ROWS)


# --- races and deaths -----------------------------------------------------------------------------------------------

Act = Callable[[Story], object]
MEANWHILE: dict[str, tuple[Act, Counter[Row], set[str]]] = {
    "a revert": (lambda s: s.revert("A"), of_batches("B") + THEIR_ROWS, {"A"}),
    "an append": (
        lambda s: s.append_as_foreign_writer("late", start=900),
        of_batches("A", "B") + THEIR_ROWS + Counter({("late", 900, 1): 1}),
        set(),
    ),
    "a rewrite by another engine": (
        lambda s: s.sql("CALL {catalog}.system.rewrite_manifests('{name}')"),
        of_batches("A", "B") + THEIR_ROWS,
        set(),
    ),
}


@pytest.mark.parametrize(("act", "rows", "deleted"), named(MEANWHILE, "a revert"))
def test_what_others_commit_while_manifests_are_rewritten_is_not_lost(
    story: Story, act: Act, rows: Counter[Row], deleted: set[str]
) -> None:
    """A ledger that was read before and written after would bring A's rows back."""
    maintain(story, {"before_commit": lambda: act(story)}, rewrite_manifests=True)

    assert (manifests(story), story.tombstones()) == (1, deleted)
    story.check_reads(rows)
