"""What a policy's triggers see of a real table, and that the vacuum which they ask for leaves them nothing to fire at."""

from datetime import UTC, datetime

import pytest
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import counted
from lethe_operator.actions import Actions
from lethe_operator.dataset.tables import view_of
from lethe_operator.resources.dataset import parse_dataset
from lethe_operator.resources.observed import Observation, TableView
from lethe_operator.resources.vacuum_policy import parse_vacuum_policy
from lethe_operator.settings import Settings
from lethe_operator.vacuum.triggers import hidden_percent

from tests.spark.support.story import Story, of_batches
from tests.support.statuses import decide

pytestmark = pytest.mark.long


def seen(story: Story) -> TableView:
    table = catalogs.load(story.catalog).load_table(story.name)
    return view_of(observe(table, "batch_id"), table.io)


def hidden(story: Story) -> tuple[int | None, float | None]:
    """Rows that tombstones hide, as the ledger counts them from commit to commit, and their share. Counted again, no other."""
    view = seen(story)
    assert view.ledger.statistics.tombstoned_rows == counted(view.ledger).tombstoned_rows
    return view.ledger.statistics.tombstoned_rows, hidden_percent(view)


def decided(story: Story, **triggers: int) -> Actions:
    policy = {
        "metadata": {"namespace": "air", "name": "p", "creationTimestamp": datetime.now(UTC).isoformat()},
        "spec": {"datasetSelector": {}, "triggers": triggers},
    }
    world = Observation(policies=(parse_vacuum_policy(policy),), table=seen(story))
    return decide(parse_dataset(story.dataset_resource()), world, datetime.now(UTC), Settings())


def test_the_share_of_hidden_rows_follows_reverts_undos_and_vacuums(story: Story) -> None:
    none = hidden(story)
    story.revert("A", "never seen", unknown="Allow")
    third = hidden(story)
    story.undo()
    back = hidden(story)
    story.revert("A", "B", name="again")
    two_thirds = hidden(story)

    story.vacuum()

    assert [none, third, back, two_thirds] == [(0, 0.0), (4, 100 / 3), (0, 0.0), (8, 200 / 3)]
    assert (hidden(story), seen(story).total_records) == ((0, 0.0), 4)


def test_a_share_that_is_reached_starts_a_vacuum_and_after_it_is_reached_no_more(story: Story) -> None:
    story.revert("A")
    below = decided(story, tombstonedRowsPercent=34).launches
    (launch,) = decided(story, tombstonedRowsPercent=33).launches

    result = story.run(launch.run)

    assert (below, result.outcome, result.tombstones_purged) == ((), "Committed", 1)
    assert decided(story, tombstonedRowsPercent=1).launches == ()
    assert story.rows_at() == of_batches("B", "D")
