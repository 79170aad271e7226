"""What a Dataset says of its buffer reaches the runs that read it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lethe.buffer.digest import waiting
from lethe.contract.run import AllowedOperation, SearchLimits, VacuumSpec, parse_run
from lethe_operator.actions import Launch
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.resources.restatement import parse_restatement
from lethe_operator.runs import spec as run_specs

from tests.support.resources import SETTINGS, a_buffered, a_dataset, a_restatement

EXAMPLES = Path(__file__).parents[4] / "examples/flights"


def test_a_run_is_told_the_format_of_the_buffer_and_whether_columns_may_be_added() -> None:
    dataset = a_dataset(buffer={"uri": "s3://lake/buffer/flights", "format": "avro"}, schemaEvolution="AddColumns")

    run = run_specs.consolidation(dataset, [waiting(a_buffered("A"))])

    assert (run.buffer.format, run.schema_evolution) == ("avro", "AddColumns")


def test_a_run_is_told_whether_it_rewrites_or_registers() -> None:
    """The same batches are the same run in either mode: what one of them has committed, the other finds."""
    register = run_specs.consolidation(a_dataset(consolidation={"mode": "Register"}), [waiting(a_buffered("A"))])
    rewrite = run_specs.consolidation(a_dataset(), [waiting(a_buffered("A"))])

    assert register.consolidation is not None
    assert rewrite.consolidation is not None
    assert (register.consolidation.mode, rewrite.consolidation.mode) == ("Register", "Rewrite")
    assert register.run_id == rewrite.run_id


def test_an_approved_batch_gets_another_run_than_the_one_that_held_it() -> None:
    batch = waiting(a_buffered("A"))
    checks = [{"name": "c", "notNull": ["v"]}]
    held = run_specs.consolidation(a_dataset(checks=checks), [batch])
    approved = run_specs.consolidation(a_dataset(), [replace(batch, approval="ns/approve/1")])

    assert held.run_id != approved.run_id
    assert held.consolidation is not None
    assert [c.kind for c in held.consolidation.checks] == ["notNull"]
    assert parse_run(held.to_json()) == held


def test_batches_are_tracked_unless_the_dataset_says_otherwise() -> None:
    assert run_specs.consolidation(a_dataset(), [waiting(a_buffered("A"))]).batch_tracking
    assert not run_specs.vacuum(
        a_dataset(batchTracking={"enabled": False}), "1", VacuumSpec(policy="ns/p")
    ).batch_tracking


def test_restatements_are_told_which_deletes_the_dataset_asks_for() -> None:
    """The same Restatements are the same run in each mode: what one of them has committed, the others find."""
    group = [(a_restatement(), "")]

    runs = [run_specs.restatements(a_dataset(**spec), group) for spec in ({}, {"deletes": "DeletionVectors"})]

    assert [r.restatement.deletes for r in runs if r.restatement] == ["Auto", "DeletionVectors"]
    assert runs[0].run_id == runs[1].run_id


def test_runs_that_write_native_deletes_are_told_how_much_a_commit_may_read() -> None:
    limited = a_dataset(nativeDeletes={"maxFilesPerCommit": 7, "maxBytesPerCommit": "1Mi"})
    wanted = SearchLimits(max_files_per_commit=7, max_bytes_per_commit=1024**2)

    told = run_specs.restatements(limited, [(a_restatement(), "")]).restatement
    told_later = run_specs.reanchoring(limited, 1).consolidation
    by_default = run_specs.reanchoring(a_dataset(), 1).consolidation

    assert told is not None
    assert told_later is not None
    assert by_default is not None
    assert told.search_limits == told_later.search_limits == wanted
    assert by_default.search_limits == SearchLimits(max_files_per_commit=2000, max_bytes_per_commit=256 * 1024**2)


@pytest.mark.parametrize(
    ("allowed", "written"), [(None, "Auto"), (("NativeDeletes",), "Auto"), (("Revert",), "Ledger")]
)
def test_a_namespace_that_may_not_write_native_deletes_writes_none_by_default(
    allowed: tuple[AllowedOperation, ...] | None, written: str
) -> None:
    launch = Launch(run_specs.restatements(a_dataset(), [(a_restatement(), "")]), 0, 1, "asked for")
    settings = replace(SETTINGS, boundaries=Boundaries(default=Boundary(operations=allowed)))

    run = run_specs.within_boundary(launch, settings).run

    assert run.restatement is not None
    assert run.restatement.deletes == written


def test_a_replay_of_rows_tells_the_run_its_keys() -> None:
    """As the example asks for it."""
    body = yaml.safe_load((EXAMPLES / "restatement-changes.yaml").read_text())
    restatement = parse_restatement(body)

    run = run_specs.restatements(a_dataset(), [(restatement, "")])

    assert run.restatement is not None
    (request,) = run.restatement.requests
    assert request.replacement is not None
    assert (request.by_keys, request.batch_ids) == (True, ())
    assert (request.replacement.key_columns, request.replacement.op_column) == (
        ("carrier", "flight", "time_hour"),
        "op",
    )
