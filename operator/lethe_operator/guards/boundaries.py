"""What a Dataset or a Restatement requests outside the boundary of its namespace. Pure.

The operator reads, lists and starts nothing outside the boundary: authors of Datasets must not use the operator's credentials to
reach what the boundary denies them.
"""

from collections.abc import Iterator

from lethe.contract.dataset import ExecutorsSpec, PodSize
from lethe.contract.kubernetes import written
from lethe.contract.run import AllowedOperation, RunBoundary
from lethe.guards.boundary import (
    Outside,
    outside_names,
    outside_operation,
    outside_prefixes,
    outside_settings,
    outside_table,
    outside_topics,
    outside_uri,
)

from lethe_operator.resources.boundaries import Boundary, ExecutorLimits, PodLimits
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView
from lethe_operator.resources.restatement import Restatement


def of_dataset(dataset: Dataset, boundary: Boundary) -> str | None:
    """A message about the first field of a Dataset's spec that is outside; None: nothing is."""
    spec, limits = dataset.spec, _of_runs(boundary)
    outside = outside_names(limits, spec.table.catalog, spec.table.name)
    outside = outside or outside_uri(limits, "spec.buffer.uri", spec.buffer.uri)
    if outside is None and spec.buffer.events is not None:
        url = spec.buffer.events.queue_url
        outside = outside_prefixes(boundary.queues, "spec.buffer.events.queueUrl", url, "queues")
    kafka = spec.source.kafka
    if outside is None and kafka is not None:
        outside = outside_topics(boundary.topics, kafka.cluster, kafka.topics)
    outside = outside or outside_settings(
        limits, spec.consolidation.mode, spec.deletes, spec.table.adopt, spec.table.create
    )
    return _message(dataset, outside or next(_sizes(dataset, boundary), None))


def of_table(dataset: Dataset, view: TableView, boundary: Boundary) -> str | None:
    """A message if the location of an existing table is outside."""
    return _message(dataset, outside_table(_of_runs(boundary), view.location, view.write_paths))


def of_restatement(restatement: Restatement, boundary: Boundary) -> str | None:
    limits, spec = _of_runs(boundary), restatement.spec
    outside = outside_operation(limits, "spec.operation", AllowedOperation.of(spec.operation))
    if outside is None and spec.replacement is not None:
        outside = outside_uri(limits, "spec.replacement.uri", spec.replacement.uri)
    if outside is None and restatement.list_uri:
        outside = outside_uri(limits, "spec.batchIdsFrom.uri", restatement.list_uri)
    meta = restatement.meta
    return f"Restatement {meta.name}: {outside.message(meta.namespace)}" if outside is not None else None


def of_vacuum(dataset: Dataset, boundary: Boundary) -> str | None:
    """A message if the boundary does not allow vacuums."""
    return _message(dataset, outside_operation(_of_runs(boundary), "the vacuum, which is", AllowedOperation.VACUUM))


def _of_runs(boundary: Boundary) -> RunBoundary:
    return boundary.of_runs or RunBoundary()


def _message(dataset: Dataset, found: Outside | None) -> str | None:
    return f"Dataset {dataset.meta.name}: {found.message(dataset.meta.namespace)}" if found is not None else None


def _sizes(dataset: Dataset, boundary: Boundary) -> Iterator[Outside]:
    """Sizes that the Dataset itself sets above the boundary. Defaults of the chart are reduced instead."""
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
