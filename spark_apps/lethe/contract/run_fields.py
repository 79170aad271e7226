"""What the lines of a run's log and the spans of its trace say about it. Pure."""

from typing import Final

from lethe.contract.run import RunSpec

# At most this many names of Restatements are in a line: a run may carry out thousands.
NAMES_AT_MOST: Final = 20


def log_fields(spec: RunSpec) -> dict[str, object]:
    """The fields for `lethe.logs`: of several Restatements, their names divided by commas, and their number."""
    names = [r.name.rpartition("/")[2] for r in spec.restatement.requests] if spec.restatement is not None else []
    return {
        "namespace": spec.dataset.namespace,
        "dataset": spec.dataset.name,
        "run": spec.run_id,
        "attempt": spec.attempt,
        "kind": spec.family.value,
        "restatement": ",".join(names[:NAMES_AT_MOST]),
        "restatements": len(names),
        "trace": _trace_id(spec.traceparent),
    }


def span_attributes(spec: RunSpec) -> dict[str, str | int]:
    """The attributes of spans of a run."""
    return {
        "k8s.namespace.name": spec.dataset.namespace,
        "lethe.dataset": spec.dataset.name,
        "lethe.table": spec.table.name,
        "lethe.run.id": spec.run_id,
        "lethe.run.kind": spec.family.value,
        "lethe.run.attempt": spec.attempt,
        "lethe.restatements": len(spec.restatement.requests) if spec.restatement is not None else 0,
    }


def _trace_id(traceparent: str) -> str:
    """The second of its four fields."""
    fields = traceparent.split("-")
    return fields[1] if len(fields) == 4 else ""
