"""The batches of a table, the history of a batch, and a revert: through an operator where there is one."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import lethe
import lethe_spark
import pytest
from lethe import batches_table
from lethe.base import names
from lethe.base.errors import InputError, LetheError, TransientError
from lethe.buffer.batch_rows import BUFFERED, BatchRow
from lethe.kube import DATASETS, RESTATEMENTS
from lethe.ledger.ledger import BatchState
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import NOW, a_batch, a_request_entry
from tests.support.fake_cluster import FakeCluster
from tests.support.places import NAMESPACE, Places
from tests.support.resources import a_dataset_body
from tests.support.tables import commit_delta, head, new_table, rows, tombstone, values

NAME = "lite.air.flights"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places.none(tmp_path / "home", monkeypatch)


@pytest.fixture
def catalog(places: Places) -> Catalog:
    return places.configured()


@pytest.fixture
def flights(catalog: Catalog) -> Table:
    """A was promoted, then reverted; B is there."""
    table = new_table(catalog)
    table.append(rows("A", "B"))
    commit_delta(table, set_batches=(a_batch("A"), a_batch("B", rows=1)))
    table.append(rows("B", start=5))  # a writer that knows no ledger
    entry = replace(a_batch("A", BatchState.REVERTED), run="f" * 32, restatement="ns/revert-a/1")
    marks = {"lethe.dev/requested-by": "ana"}
    asked = {"reason": "sent twice", "ticket": "LAKE-7", "marks": marks}
    request = a_request_entry("ns/revert-a/1", batch_ids=("A",), provenance=asked)
    commit_delta(table, add_tombstones=(tombstone(table, "A"),), set_batches=(entry,), set_requests=(request,))
    return table


def test_the_batches_are_those_of_the_ledger(flights: Table) -> None:
    for found in (lethe.batches(NAME), lethe.batches(flights), lethe.table(NAME).batches()):
        assert found.schema.equals(batches_table.ARROW)
        assert {(b["batch_id"], b["state"], b["rows"], b["requested_by"]) for b in found.to_pylist()} == {
            ("A", "reverted", 3, "ana"), ("B", "promoted", 1, None),
        }  # fmt: skip


def test_batches_that_wait_are_those_of_a_table_of_batches_that_is_up_to_date(flights: Table, catalog: Catalog) -> None:
    waiting = batches_table.TrackingUpdate(create=True, waiting=[BatchRow("W", BUFFERED, NOW)])
    batches_table.bring_up_to_date(catalog, "air.flights", "batch_id", waiting)

    assert {b["batch_id"] for b in lethe.batches(NAME).to_pylist()} == {"A", "B", "W"}
    commit_delta(flights, set_batches=(a_batch("C"),))
    assert {b["batch_id"] for b in lethe.batches(NAME).to_pylist()} == {"A", "B", "C"}


def test_the_history_of_a_batch_has_a_row_for_each_change(flights: Table) -> None:
    commit_delta(flights, remove_tombstones=frozenset([tombstone(flights, "A").key]))  # a vacuum has purged the rows

    found = lethe.history(NAME, "A")

    assert [(c["state"], c["tombstoned"], c["restatement"]) for c in found.to_pylist()] == [
        ("promoted", False, None),
        ("reverted", True, "ns/revert-a/1"),
        ("reverted", False, "ns/revert-a/1"),
    ]
    assert [(c["reason"], c["ticket"], c["requested_by"]) for c in found.to_pylist()] == [
        (None, None, None),
        *[("sent twice", "LAKE-7", "ana")] * 2,
    ]
    assert found["snapshot_id"].to_pylist()[-1] == head(flights)
    assert [c["state"] for c in lethe.table(NAME).history("B").to_pylist()] == ["promoted"]


def test_the_history_of_a_batch_shows_the_redacts_that_name_it(flights: Table) -> None:
    """The state stays, and what happens later follows."""
    asked = {"reason": "wrong consent", "ticket": "LAKE-8", "marks": {"lethe.dev/requested-by": "bo"}}
    redact = a_request_entry("ns/redact-b/1", operation="Redact", redaction={"batchIds": ["B"]}, provenance=asked)
    commit_delta(flights, set_requests=(redact,))
    at = head(flights)
    of_records = a_request_entry("ns/redact-2/1", operation="Redact", redaction={"batchIds": []})
    commit_delta(flights, set_requests=(of_records,))
    commit_delta(flights, add_tombstones=(tombstone(flights, "B"),), set_batches=(a_batch("B", BatchState.REVERTED),))

    found = lethe.history(NAME, "B").to_pylist()

    assert [(c["state"], c["restatement"]) for c in found] == [
        ("promoted", None),
        ("redacted", "ns/redact-b/1"),
        ("reverted", None),
    ]
    shown = found[1]
    assert (shown["snapshot_id"], shown["rows"], shown["tombstoned"]) == (at, 1, False)
    assert (shown["reason"], shown["ticket"], shown["requested_by"]) == ("wrong consent", "LAKE-8", "bo")


def test_a_batch_without_a_history_is_an_error(flights: Table) -> None:
    with pytest.raises(InputError, match="has no batch 'nope'") as raised:
        lethe.history(flights, "nope")
    assert raised.value.reason == "UnknownBatch"


def test_a_table_reads_what_is_there_at_each_call(flights: Table) -> None:
    found = lethe.table(NAME)
    assert values(found.scan()) == [1, 5]

    flights.append(rows("B", start=7))

    assert values(found.scan()) == [1, 5, 7]
    assert found.scan(columns=["v"], filter="v > 5").to_arrow().to_pylist() == [{"v": 7}]


@pytest.mark.usefixtures("flights")
def test_a_table_is_shown_by_its_name_and_columns() -> None:
    found = lethe.table("air.flights")

    assert (repr(found), found.schema.names) == ("lethe.table('lite.air.flights')", ["v", "batch_id"])
    assert "<b>Table</b> lite.air.flights<table>" in found._repr_html_()


# --- reverts --------------------------------------------------------------------------------------------------------------


class Operator(FakeCluster):
    """Answers each Restatement as an operator would after its run."""

    def __init__(self, status: dict[str, Any]) -> None:
        super().__init__()
        self.status = status

    def get(self, kind: Any, namespace: str, name: str) -> Any:
        found = super().get(kind, namespace, name)
        return (
            {**found, "metadata": {**found["metadata"], "generation": 1}, "status": self.status}
            if kind == RESTATEMENTS
            else found
        )


DONE = {"observedGeneration": 1, "phase": "Succeeded", "result": {"snapshotId": 77, "rowsDeleted": 3}}
STALLED = {
    "observedGeneration": 1,
    "phase": "Failed",
    "conditions": [{"type": "Ready", "status": "False", "reason": "AlreadyReplaced", "message": "B was replaced."}],
}
RUNNING = {"observedGeneration": 1, "phase": "Running", "progress": "committing"}


def operated(places: Places, status: dict[str, Any]) -> FakeCluster:
    operator = Operator(status)
    dataset = a_dataset_body("delays", table={"catalog": "lite", "name": "air.flights"})
    operator.create(DATASETS, NAMESPACE, {**dataset, "metadata": {"name": "delays", "namespace": NAMESPACE}})
    places.use(operator)
    return operator


@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize("name", [NAME, "delays"])
def test_the_operator_of_the_dataset_reverts(places: Places, name: str) -> None:
    cluster = operated(places, DONE)

    done = lethe.revert(name, ["B", "B"], reason="loaded too early")
    again = lethe.table(name).revert("B", reason="loaded too early", through="operator")

    assert (done.through, done.snapshot_id, done.rows_deleted) == ("operator", 77, 3)
    (restatement,) = cluster.list(RESTATEMENTS, NAMESPACE)
    assert restatement["metadata"]["name"] == done.restatement == again.restatement
    assert restatement["spec"] == {
        "datasetRef": {"name": "delays"}, "operation": "Revert", "batchIds": ["B"], "reason": "loaded too early",
    }  # fmt: skip
    by_run = lethe.revert(name, reference="run 1")
    assert cluster.get(RESTATEMENTS, NAMESPACE, by_run.restatement)["spec"]["selector"] == {"reference": "run 1"}


@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize(
    ("status", "kind", "reason", "says"),
    [
        (
            STALLED,
            InputError,
            "NotRestated",
            "is Failed: AlreadyReplaced B was replaced. This says why: lethe why restatement/",
        ),
        (RUNNING, TransientError, "NotRestatedYet", "Running committing. It goes on"),
    ],
)
def test_a_revert_that_the_operator_has_not_done_is_an_error(
    places: Places, status: dict[str, Any], kind: type[LetheError], reason: str, says: str
) -> None:
    operated(places, status)

    with pytest.raises(kind) as raised:
        lethe.revert(NAME, "B", wait_seconds=0)

    assert raised.value.reason == reason
    assert says in raised.value.message


@pytest.mark.usefixtures("flights")
def test_another_revert_of_the_same_name_is_refused(places: Places) -> None:
    operated(places, DONE)
    lethe.revert(NAME, "B", name="mine")

    with pytest.raises(InputError) as raised:
        lethe.revert(NAME, "A", name="mine")
    assert raised.value.reason == "AlreadyExists"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of `lethe_spark.revert`, which tests/spark tests."""
    calls: list[tuple[Any, ...]] = []

    def revert(*arguments: Any, **options: Any) -> Any:
        calls.append((*arguments, options))
        return SimpleNamespace(restatement="sdk/revert/1", snapshot_id=5, rows_deleted=1)

    # With the signatures of the real ones.
    session = create_autospec(lethe_spark.make_session, side_effect=lambda name: f"a session with {name}")
    real = create_autospec(lethe_spark.revert, side_effect=revert)
    monkeypatch.setattr(lethe_spark, "revert", real, raising=False)
    monkeypatch.setattr(lethe_spark, "make_session", session, raising=False)
    return calls


@pytest.mark.usefixtures("flights")
def test_without_an_operator_this_process_commits(places: Places, spark: list[tuple[Any, ...]]) -> None:
    assert places.cluster().list(DATASETS, NAMESPACE) == []

    done = lethe.revert("air.flights", "B", reason="why", spark="mine")
    lethe.revert(NAME, ("B",), name="once")
    lethe.revert(NAME, reference="run 1", spark="mine")

    assert done == lethe.Reverted("sdk/revert/1", "commit", 5, 1)
    assert spark == [
        ("mine", NAME, ("B",), {"reference": "", "reason": "why", "name": None}),
        ("a session with lite", NAME, ("B",), {"reference": "", "reason": "", "name": "once"}),
        ("mine", NAME, (), {"reference": "run 1", "reason": "", "name": None}),
    ]


@pytest.mark.usefixtures("places")
def test_a_claimed_table_is_not_reverted_beside_its_operator_by_accident(
    catalog: Catalog, spark: list[tuple[Any, ...]]
) -> None:
    """The operator cannot be asked now; that does not mean that there is none."""
    new_table(catalog, **{names.CLAIM: "ns/flights"}).append(rows("A"))

    with pytest.raises(InputError, match=r"Dataset ns/flights has claimed it, .*NoCluster") as raised:
        lethe.revert(NAME, "A")
    assert (raised.value.reason, spark) == ("NoOperator", [])
    assert lethe.revert(NAME, "A", through="commit").through == "commit"


@pytest.mark.usefixtures("flights")
def test_what_a_revert_lacks_is_named(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    places.cluster()
    for options, reason in (
        ({"batch_ids": []}, "NoBatchIds"),
        ({"batch_ids": "A", "reference": "run 1"}, "NoBatchIds"),
        ({"batch_ids": "A", "through": "magic"}, "InvalidRead"),
        ({"batch_ids": "A", "through": "operator"}, "NoOperator"),
    ):
        with pytest.raises(InputError) as raised:
            lethe.revert(NAME, **options)  # type: ignore[arg-type]
        assert raised.value.reason == reason
    monkeypatch.setitem(sys.modules, "lethe_spark", None)
    with pytest.raises(InputError, match=r"pip install 'lethe-lake\[spark\]'") as raised:
        lethe.revert(NAME, "A")
    assert raised.value.reason == "NotInstalled"
