"""Runs for the committer."""

from lethe.contract.run import RunSpec
from lethe.contract.settings import UnknownBatches

from tests.spark.support.story import Story
from tests.support.builders import a_request

ALL = ("A", "B", "C")


def begun(story: Story) -> Story:
    story.put(*ALL)
    story.consolidate(*ALL)
    return story


def a_revert(
    story: Story, *batch_ids: str, name: str = "revert", unknown: str = "Refuse", **changes: object
) -> RunSpec:
    request = a_request(name, batch_ids=batch_ids, unknown_batches=UnknownBatches(unknown))
    return story.restatement(request, **changes)


def an_undo(story: Story, of: str = "revert", name: str = "undo") -> RunSpec:
    return story.restatement(a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0"))
