"""What keeps a Dataset's runs from starting: reason, message and whether waiting can help."""

from typing import Any

import pytest
from lethe_operator.guards.preconditions import blocker
from lethe_operator.resources.boundaries import parse_boundaries
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.settings import Settings, pod_template_of

from tests.support.builders import ago
from tests.support.resources import SETTINGS, a_dataset, a_table, a_world

CREATE = {"catalog": "main", "name": "air.flights", "create": {"schema": "id INT"}}
FOREIGN = {"claim": None, "prepared": False}


def adopting() -> dict[str, Any]:
    return {"table": {"catalog": "main", "name": "air.flights", "adopt": True}}


def creating(format_version: int) -> dict[str, Any]:
    return {**CREATE, "create": {"schema": "id INT", "formatVersion": format_version}}


@pytest.mark.parametrize(
    ("spec", "table"),
    [
        ({}, a_table()),
        ({"table": CREATE}, NoTable()),
        ({}, a_table(claim=None)),  # prepared by hand
        (adopting(), a_table(**FOREIGN)),
        ({"buffer": {"uri": "s3://b/x", "layout": "File"}}, a_table()),
        ({}, a_table(prepared=False)),  # ours: the next run puts it right
        ({"consolidation": {"mode": "Register"}}, a_table()),
        ({"deletes": "DeletionVectors"}, a_table(format_version=3)),
        ({"deletes": "PositionDeletes"}, a_table(format_version=2)),
        ({"deletes": "Ledger"}, a_table(format_version=3)),
        ({"deletes": "DeletionVectors", "table": creating(3)}, NoTable()),
        ({"deletes": "DeletionVectors", "table": creating(2)}, a_table(format_version=3)),  # it was raised since
    ],
)
def test_nothing_is_in_the_way(spec: dict[str, Any], table: TableView | NoTable) -> None:
    assert None is blocker(a_dataset(**spec), a_world(table=table), SETTINGS)


@pytest.mark.parametrize(
    ("spec", "table", "reason", "transient", "said"),
    [
        ({}, NoTable(), "TableNotFound", True, "spec.table.create"),
        ({}, Unavailable("StorageUnavailable", "S3 is away"), "StorageUnavailable", True, "S3 is away"),
        ({}, Unavailable("UnknownCatalog", "no such", transient=False), "UnknownCatalog", False, "no such"),
        ({}, a_table(claim="ns/other"), "TableClaimed", False, "ns/other"),
        ({}, a_table(holds_batches=True, **FOREIGN), "TableHoldsBatches", False, "lethe.tracks"),
        ({}, a_table(batch_field_id=None), "BatchColumnMissing", False, "batch_id"),
        (
            {},
            a_table(unsafe="the table property x names a class."),
            "UnsafeProperty",
            False,
            "flights: the table property x",
        ),
        ({}, a_table(unsafe="it", claim="ns/other"), "TableClaimed", False, "ns/other"),
        ({}, a_table(**FOREIGN), "TableNotPrepared", False, "spec.table.adopt"),
        ({}, a_table(location="s3://lake/buffer"), "BufferOverlapsTable", False, "s3://lake/buffer/flights"),
        ({}, a_table(location="s3a://lake/buffer/flights/t"), "BufferOverlapsTable", False, "spec.buffer.uri"),
        (
            {"consolidation": {"mode": "Register"}, "buffer": {"uri": "s3://b/x", "format": "orc"}},
            a_table(),
            "NotSupported",
            False,
            "spec.consolidation.mode Register needs spec.buffer.format parquet, found orc",
        ),
        (
            {"runTemplate": {"podTemplate": {"spec": {"hostPID": True, "hostIPC": True}}}},
            a_table(),
            "PodTemplateNotAllowed",
            False,
            "spec.runTemplate.podTemplate.spec.hostIPC may not be set. More fields that are not allowed: 1.",
        ),
    ],
)
def test_what_is_in_the_way_is_named(
    spec: dict[str, Any], table: TableView | NoTable | Unavailable, reason: str, transient: bool, said: str
) -> None:
    found = blocker(a_dataset(**spec), a_world(table=table), SETTINGS)

    assert found is not None
    assert (reason, transient) == (found.reason, found.transient)
    assert said in found.message


def test_a_secret_on_the_chart_s_list_is_allowed() -> None:
    template = {"podTemplate": {"spec": {"volumes": [{"name": "k", "secret": {"secretName": "kms"}}]}}}
    dataset = a_dataset(runTemplate=template)

    assert blocker(dataset, a_world(), SETTINGS).reason == "PodTemplateNotAllowed"  # type: ignore[union-attr]
    assert None is blocker(dataset, a_world(), Settings(allowed_secrets=("kms",)))


def test_a_list_of_the_namespace_s_boundary_replaces_the_chart_s() -> None:
    variable = {"name": "spark", "env": [{"name": "AIR_MODE", "value": "x"}]}
    dataset = a_dataset(runTemplate={"podTemplate": {"spec": {"containers": [variable]}}})
    text = "namespaces: {ns: {podTemplate: {env: [AIR_*]}}, other: {podTemplate: {env: []}}}"
    settings = Settings(boundaries=parse_boundaries(text, "boundaries"))

    assert blocker(dataset, a_world(), SETTINGS).reason == "PodTemplateNotAllowed"  # type: ignore[union-attr]
    assert None is blocker(dataset, a_world(), settings)
    assert pod_template_of(settings, "other").env == ()
    assert pod_template_of(settings, "other").mount_paths == ("/mnt",)


def test_of_two_datasets_with_one_buffer_the_older_acts() -> None:
    """The retention of the one would delete batches before the other has promoted them."""
    older = a_dataset(
        "older", meta={"creationTimestamp": ago(hours=2).isoformat()}, buffer={"uri": "s3://lake/buffer/"}
    )
    younger = a_dataset()

    found = blocker(younger, a_world(overlapping_datasets=(older,)), SETTINGS)

    assert found is not None
    assert (found.reason, found.transient) == ("BufferShared", False)
    assert "s3://lake/buffer/flights overlaps the buffer s3://lake/buffer/ of the older Dataset older" in found.message
    assert None is blocker(older, a_world(table=a_table(claim="ns/older"), overlapping_datasets=(younger,)), SETTINGS)


def test_datasets_with_buffers_side_by_side_do_not_hinder_each_other() -> None:
    other = a_dataset(
        "other", meta={"creationTimestamp": ago(hours=2).isoformat()}, buffer={"uri": "s3://lake/buffer/f"}
    )

    assert None is blocker(a_dataset(), a_world(overlapping_datasets=(other,)), SETTINGS)


@pytest.mark.parametrize(
    ("mode", "found", "remedy"),
    [
        (
            "DeletionVectors",
            a_table(format_version=2),
            "the table air.flights has 2. Set the table property format-version to 3, which cannot be undone, or set "
            "spec.deletes to Auto or Ledger.",
        ),
        (
            "PositionDeletes",
            a_table(format_version=1),
            "the table air.flights has 1. Set the table property format-version to 2, which cannot be undone, or set "
            "spec.deletes to Auto or Ledger.",
        ),
        (
            "DeletionVectors",
            NoTable(),
            "spec.table.create.formatVersion is 2. Set that to 3, or set spec.deletes to Auto or Ledger.",
        ),
        (
            "PositionDeletes",
            a_table(format_version=3),
            "the table air.flights has 3. Set spec.deletes to Auto or Ledger.",
        ),
    ],
    ids=["vectors on 2", "positions on 1", "vectors on a table to be made", "positions on 3"],
)
def test_deletes_that_do_not_go_with_the_format_version_stop_all_runs_and_name_the_remedy(
    mode: str, found: TableView | NoTable, remedy: str
) -> None:
    """Before a batch is promoted into a table whose deletes could not be written."""
    dataset = a_dataset(deletes=mode, table=creating(2))

    stopped = blocker(dataset, a_world(table=found), SETTINGS)

    assert stopped is not None
    assert (stopped.reason, stopped.transient) == ("FormatVersionMismatch", False)
    wanted = 3 if mode == "DeletionVectors" else 2
    assert stopped.message == (
        f"Dataset flights: spec.deletes {mode} needs Iceberg format version {wanted}, and {remedy}"
    )


def test_position_deletes_of_a_table_that_would_be_made_with_version_3_are_refused() -> None:
    dataset = a_dataset(deletes="PositionDeletes", table=creating(3))

    stopped = blocker(dataset, a_world(table=NoTable()), SETTINGS)

    assert stopped is not None
    assert "Set that to 2, or set spec.deletes to Auto or Ledger." in stopped.message
