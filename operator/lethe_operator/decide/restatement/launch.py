"""Makes the launch of a run for a group of Restatements. Pure."""

from lethe_operator.decide.actions import Launch
from lethe_operator.decide.restatement import row_search_gate as erasure
from lethe_operator.decide.restatement.queue import RestatementQueue
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement


def restatements_launch(
    dataset: Dataset, world: World, queued: RestatementQueue, engine: Engine = Engine.JOB
) -> Launch | None:
    """One run for all members of the group; None: the group is empty."""
    members = [r for r, _ in queued.group]
    if not members:
        return None
    listed = erasure.listed_head(members, world.buffer)
    run = run_specs.restatements(dataset, ((r, ready.undoes) for r, ready in queued.group), listed)
    tried = [a.number for known in world.runs if known.run_id == run.run_id for a in known.attempts]
    run = run.model_copy(update={"attempt": max(tried, default=0) + 1})
    return Launch(
        run,
        bytes=sum(bytes_of(r, world) for r in members),
        generation=dataset.meta.generation,
        why=f"{_what(members)}, attempt {run.attempt}",
        for_uid=members[0].meta.uid if len(members) == 1 else "",
        engine=engine,
        secrets=tuple(r.values for r in members if r.values is not None),
    )


def bytes_of(restatement: Restatement, world: World) -> int:
    """An estimate of how many bytes the run reads for a Restatement. A replacement has about the size of the batches that it
    replaces. Other operations and dry runs read no data."""
    if restatement.brings is None or not isinstance(world.table, TableView):
        return 0
    if restatement.list_uri:  # the batches are unknown; the table's size is the upper limit
        return world.table.total_bytes
    batches = world.table.ledger.batches
    some = restatement.sized_by
    found = sum(batches[i].bytes or 0 for i in some if i in batches)
    return found * len(restatement.batch_ids) // max(1, len(some))


def _what(members: list[Restatement]) -> str:
    spec = members[0].spec
    dry = "dry run of " if spec.dry_run else ""
    if len(members) > 1:
        most = "at most " if any(r.list_uri and not r.list_sha256 for r in members) else ""
        batches = sum(r.batches for r in members)
        return f"{dry}{len(members)} Restatements of {most}{batches} batches, the first of them {members[0].meta.name}"
    if spec.rows is not None:
        return f"{dry}Restatement {members[0].meta.name}: Erase of records by the column {spec.rows.column}"
    which = [f"the batches in {members[0].list_uri}" if members[0].list_uri else f"{members[0].batches} batches"]
    if spec.replacement is not None and spec.replacement.key_columns:
        rows = f"rows by {', '.join(spec.replacement.key_columns)}"
        which = [*which, rows] if members[0].batches else [rows]
    if spec.undoes is not None:
        which = [spec.undoes.name]
    return f"{dry}Restatement {members[0].meta.name}: {spec.operation} of {' and '.join(which)}"
