"""What a Dataset or a Restatement asks for outside the boundary of its namespace. Pure.

Nothing outside is read, listed or started: whoever may write a Dataset must not reach with the operator's credentials what their
own boundary keeps from them.
"""

from collections.abc import Iterator

from lethe.contract.run import AllowedOperation, CreateTable, RunBoundary
from lethe.guards.boundary import (
    Outside,
    outside_names,
    outside_operation,
    outside_prefixes,
    outside_settings,
    outside_table,
    outside_uri,
)

from lethe_operator.resources.boundaries import Boundary, ExecutorLimits, PodLimits
from lethe_operator.resources.dataset import Dataset, ExecutorsSpec, PodSize
from lethe_operator.resources.observed import TableView
from lethe_operator.resources.quantity import written
from lethe_operator.resources.restatement import Restatement


def of_dataset(dataset: Dataset, boundary: Boundary) -> str | None:
    """The first thing in a Dataset's spec that is outside, as a message; None: nothing is."""
    spec, limits = dataset.spec, _of_runs(boundary)
    create = spec.table.create
    wanted = (
        CreateTable(table_schema=create.table_schema, properties=dict(create.properties))
        if create is not None
        else None
    )
    found = outside_names(limits, spec.table.catalog, spec.table.name)
    found = found or outside_uri(limits, "spec.buffer.uri", spec.buffer.uri)
    if found is None and spec.buffer.events is not None:
        url = spec.buffer.events.queue_url
        found = outside_prefixes(boundary.queues, "spec.buffer.events.queueUrl", url, "queues")
    found = found or outside_settings(limits, spec.consolidation.mode, spec.deletes, spec.table.adopt, wanted)
    return _said(dataset, found or next(_sizes(dataset, boundary), None))


def of_table(dataset: Dataset, view: TableView, boundary: Boundary) -> str | None:
    """Where a table that is there lies outside."""
    return _said(dataset, outside_table(_of_runs(boundary), view.location, view.write_paths))


def of_restatement(restatement: Restatement, boundary: Boundary) -> str | None:
    limits, spec = _of_runs(boundary), restatement.spec
    found = outside_operation(limits, "spec.operation", AllowedOperation.of(spec.operation))
    if found is None and spec.replacement is not None:
        found = outside_uri(limits, "spec.replacement.uri", spec.replacement.uri)
    if found is None and restatement.list_uri:
        found = outside_uri(limits, "spec.batchIdsFrom.uri", restatement.list_uri)
    meta = restatement.meta
    return f"Restatement {meta.name}: {found.message(meta.namespace)}" if found is not None else None


def of_vacuum(dataset: Dataset, boundary: Boundary) -> str | None:
    """Whether vacuums of the namespace are outside."""
    return _said(dataset, outside_operation(_of_runs(boundary), "the vacuum, which is", AllowedOperation.VACUUM))


def _of_runs(boundary: Boundary) -> RunBoundary:
    return boundary.of_runs or RunBoundary()


def _said(dataset: Dataset, found: Outside | None) -> str | None:
    return f"Dataset {dataset.meta.name}: {found.message(dataset.meta.namespace)}" if found is not None else None


def _sizes(dataset: Dataset, boundary: Boundary) -> Iterator[Outside]:
    """Of what the Dataset itself asks for: a default of the chart is cut instead."""
    wanted = dataset.spec.run_template
    yield from _pod("driver", wanted.driver, boundary.driver)
    yield from _pod("executors", wanted.executors, boundary.executors)
    yield from _count(wanted.executors, boundary.executors)


def _pod(name: str, wanted: PodSize, limit: PodLimits) -> Iterator[Outside]:
    for field in ("memory", "scratch"):
        size, most = getattr(wanted, field), getattr(limit, field)
        if size is not None and most is not None and size > most:
            where = f"{name}.{field}"
            yield Outside(f"spec.runTemplate.{where}", written(size), where, f"at most {written(most)}")
    if wanted.cpu is not None and limit.cpu is not None and wanted.cpu > limit.cpu:
        yield Outside(f"spec.runTemplate.{name}.cpu", f"{wanted.cpu:g}", f"{name}.cpu", f"at most {limit.cpu:g}")


def _count(wanted: ExecutorsSpec, limit: ExecutorLimits) -> Iterator[Outside]:
    if limit.max is None:
        return
    for field in ("min", "max"):
        number = getattr(wanted, field)
        if number is not None and number > limit.max:
            yield Outside(f"spec.runTemplate.executors.{field}", str(number), "executors.max", f"at most {limit.max}")
