"""RunEvents of OpenLineage: the official client, whose classes are generated from the published schema, writes the same JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lethe.base import names
from lethe.contract.settings import RunFamily
from lethe.ledger.ledger import BatchState
from lethe.storage.local_store import LocalStore
from lethe_operator.publish.changes import LineageCommit, run_event, run_uuid
from lethe_operator.publish.cursor_files import CursorFiles
from lethe_operator.publish.delivery import HttpSink, raw
from lethe_operator.publish.events import BatchPromoted, TableOf
from lethe_operator.publish.feed import FOLDER, FeedState, LineageVersions
from lethe_operator.resources.observed import ContentMode, EventsSettings, HttpSinkSettings, OpenLineageSettings
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    job_type_job,
    output_statistics_output_dataset,
    symlinks_dataset,
)
from openlineage.client.serde import Serde

from tests.support.builders import NOW, RUN, a_batch, a_request_entry, a_tombstone
from tests.support.publishing import LedgerHistory, RememberingSink, a_feed
from tests.support.publishing import publish as publish_events

BUFFER = "s3a://lake/buffer/flights/"


class Lineage:
    def __init__(self, home: Path) -> None:
        self.history = LedgerHistory(home)
        self.sink = RememberingSink()

    def commit(self, *entries: Any, kind: str, unfinished: bool = False, **delta: Any) -> None:
        head = self.history.commit(*entries, **delta)
        keys = {names.RUN_ID: RUN, names.RUN_KIND: kind} | ({names.UNFINISHED: "true"} if unfinished else {})
        self.history.snapshots[head].summary.update(keys)  # type: ignore[attr-defined]

    def publish(self) -> list[dict[str, Any]]:
        table = self.history.opened()
        lineage = LineageVersions(table.events, "lethe", BUFFER)  # type: ignore[arg-type]
        cursors = CursorFiles(LocalStore(), self.history.location, self.history.uuid, "ns/flights", FOLDER)
        a_feed(self.sink).publish(replace(table, events=lineage, cursors=cursors), FeedState())
        return [json.loads(e.data) for e in self.sink.received]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return Lineage(tmp_path)


def test_each_commit_of_a_run_is_one_run_event(lineage: Lineage) -> None:
    lineage.commit(a_batch("A", rows=3, bytes=30), a_batch("B", rows=4, bytes=40), kind="Consolidation")
    lineage.commit(
        a_batch("A", BatchState.REPLACED, replaced_by="A2", restatement="ns/p/1"),
        a_batch("A2", restatement="ns/p/1", rows=9),
        a_tombstone("A"),
        a_request_entry("ns/p/1", rows_added=9),
        kind="Restatement",
    )
    lineage.commit(remove_tombstones=frozenset({a_tombstone("A").key}), kind="Vacuum", unfinished=True)
    lineage.commit(kind="Vacuum")

    events = lineage.publish()

    assert [(e["eventType"], e["job"]["name"]) for e in events] == [
        ("COMPLETE", "ns.flights.consolidation"),
        ("COMPLETE", "ns.flights.restatement"),
        ("RUNNING", "ns.flights.vacuum"),
        ("COMPLETE", "ns.flights.vacuum"),
    ]
    statistics = [e["outputs"][0].get("outputFacets", {}).get("outputStatistics", {}) for e in events]
    assert [(s.get("rowCount"), s.get("size")) for s in statistics] == [(7, 70), (9, None), (None, None), (None, None)]
    assert events[0]["inputs"] == [{"namespace": "s3://lake", "name": "buffer/flights"}]
    assert events[1]["inputs"][0]["name"] == events[1]["outputs"][0]["name"]
    assert lineage.publish() == events  # nothing twice


def test_an_approved_batch_counts_as_one_that_a_consolidation_has_added(lineage: Lineage) -> None:
    """Its entry keeps the request that approved it, as that of a replacement keeps the request that added it."""
    lineage.commit(a_batch("A", BatchState.HELD, rows=None, bytes=None), kind="Consolidation")
    lineage.commit(
        a_batch("A", restatement="ns/approve/1", rows=3, bytes=30), a_batch("B", rows=4, bytes=40), kind="Consolidation"
    )

    statistics = lineage.publish()[-1]["outputs"][0]["outputFacets"]["outputStatistics"]

    assert (statistics["rowCount"], statistics["size"]) == (7, 70)


def test_lineage_and_status_events_have_cursors_of_their_own(lineage: Lineage) -> None:
    lineage.commit(a_batch("A"), kind="Consolidation")
    lineage.publish()
    sink = RememberingSink()

    publish_events(lineage.history, sink)

    assert [e.subject for e in sink.received] == ["", "A"]
    assert len(lineage.publish()) == 1


def test_a_commit_of_no_run_is_no_run_event(lineage: Lineage) -> None:
    lineage.history.commit(a_batch("A"))

    assert lineage.publish() == []


@pytest.mark.parametrize("family", RunFamily)
def test_the_official_client_writes_the_same(family: RunFamily) -> None:
    location = "s3://lake/warehouse/air/flights"
    commit = LineageCommit(
        "lethe",
        "ns",
        "flights",
        RUN,
        family,
        False,
        NOW,
        7,
        "air.flights",
        "lake",
        location,
        "s3a://lake/buffer/flights",
    )
    found = json.loads(run_event(commit, []))
    made_by: Any = {"producer": found["producer"]}
    symlinks = symlinks_dataset.SymlinksDatasetFacet(
        identifiers=[symlinks_dataset.Identifier(namespace="lake", name="air.flights", type="TABLE")], **made_by
    )
    table: Any = {"namespace": "s3://lake", "name": "warehouse/air/flights"}
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion="7", **made_by)
    buffer = InputDataset(namespace="s3://lake", name="buffer/flights")
    job_type = job_type_job.JobTypeJobFacet("BATCH", "LETHE", jobType=family.upper(), **made_by)
    expected = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=found["eventTime"],
        run=Run(runId=run_uuid(RUN)),
        job=Job(namespace="lethe", name=f"ns.flights.{family.lower()}", facets={"jobType": job_type}),
        inputs=[buffer if family is RunFamily.CONSOLIDATION else InputDataset(**table, facets={"symlinks": symlinks})],
        outputs=[OutputDataset(**table, facets={"symlinks": symlinks, "version": version})],
        **made_by,
    )

    assert _without_empty(found) == _without_empty(json.loads(Serde.to_json(expected)))


def test_the_official_client_writes_the_same_statistics() -> None:
    facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=7, size=70)
    found = json.loads(
        run_event(
            LineageCommit(
                "l", "ns", "d", RUN, RunFamily.CONSOLIDATION, False, NOW, 7, "a.b", "c", "file:///t", "file:///b"
            ),
            [_promoted(7, 70)],
        )
    )

    ours = found["outputs"][0]["outputFacets"]["outputStatistics"]
    expected = json.loads(Serde.to_json(facet))
    assert {**ours, "_producer": ""} == {**expected, "_producer": ""}
    assert (found["outputs"][0]["namespace"], found["outputs"][0]["name"]) == ("file", "/t")


def test_only_the_content_is_sent_to_a_receiver_of_openlineage(lineage: Lineage) -> None:
    lineage.commit(a_batch("A"), kind="Consolidation")
    lineage.publish()

    headers, body = raw(lineage.sink.received[0], ContentMode.BINARY)

    assert headers == {"content-type": "application/json"}
    assert json.loads(body)["eventType"] == "COMPLETE"
    HttpSink(HttpSinkSettings(url="http://x"), None, raw).close()


def test_openlineage_may_be_the_only_output() -> None:
    url = "https://marquez/api/v1/lineage"
    found = EventsSettings(enabled=True, open_lineage=OpenLineageSettings(url=url))

    assert found.open_lineage is not None
    assert found.open_lineage.namespace == "lethe"


def _promoted(rows: int, size: int) -> Any:
    table = TableOf(catalog="c", name="a.b", uuid="u")
    return BatchPromoted(table=table, ledger_version=1, batch_id="A", rows=rows, bytes=size)


def _without_empty(value: Any) -> Any:
    """The client also writes empty facets."""
    if isinstance(value, dict):
        return {k: found for k, v in value.items() if (found := _without_empty(v)) not in ({}, None)}
    return [_without_empty(v) for v in value] if isinstance(value, list) else value
