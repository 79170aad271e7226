"""The committer continues the trace of the reconcile that gave it a run."""

from pathlib import Path

import pytest
from lethe import tracing
from pyspark.sql import SparkSession

from tests.spark.committer.runs import a_revert, begun
from tests.spark.support.mailbox import serving
from tests.spark.support.story import Story
from tests.support import trace_collector
from tests.support.lake import Lake
from tests.support.mailbox import Namespace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.long
def test_a_run_and_its_commit_are_sent_when_the_process_ends(
    spark: SparkSession, lake: Lake, another: Namespace, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = begun(Story.begin(spark, lake))
    spec = a_revert(story, "A", traceparent=f"00-{TRACE}-{SPAN}-01")
    with trace_collector.running() as collector:
        monkeypatch.setenv(tracing.ENDPOINT, collector.url)
        with serving(another.server, lake, log_file) as process:
            result = another.carried_out(spec)
            process.terminate()
            assert process.wait() == 0

    run, commit = collector.named("run Restatement"), collector.named("commit")
    assert (run.service, run.trace, run.parent) == ("lethe-committer", TRACE, SPAN)
    assert (commit.parent, commit.attributes["lethe.snapshot.id"]) == (run.id, result.snapshot_id)
    assert run.attributes["lethe.run.outcome"] == "Committed"
