"""The names of resources that a shell completes. I/O: one short request; without an answer there are no names, and no message."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import click
from lethe_operator.kube import DATASETS, RESTATEMENTS, ResourceKind, TimeLimits

from lethe_kubectl.lookup import KINDS
from lethe_kubectl.options import is_plugin
from lethe_kubectl.runs import runs_of
from lethe_kubectl.target import Choice, Connection, connected

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
# A person has pressed a key and looks at the prompt.
_LIMITS: Final = TimeLimits(connect_seconds=0.5, read_seconds=2, retries=0)


def _silent(names: Callable[[Connection, str], list[str]]) -> Complete:
    """The names that begin with what was typed; none, if they cannot be read."""

    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        try:
            with _connection(context) as at:
                return [name for name in names(at, typed) if name.startswith(typed)]
        except Exception:
            return []  # a message would end up in the line that the user types

    return complete


def _connection(context: click.Context) -> AbstractContextManager[Connection]:
    given = context.params
    where = given.get("context") or given.get("context_name") or ""
    namespace = given.get("namespace") or ""
    return connected(
        Choice(given.get("folder"), given.get("kubeconfig"), where, namespace, is_plugin(context)), _LIMITS
    )


def _names(at: Connection, kind: ResourceKind) -> list[str]:
    return sorted(str(d["metadata"]["name"]) for d in at.kube.page(kind, at.namespace, metadata_only=True).items)


def _resources(at: Connection, typed: str) -> list[str]:
    """KIND/NAME; without a slash also the kinds, and names."""
    kind, slash, _ = typed.partition("/")
    if slash:
        return [f"{kind}/{name}" for name in _names(at, KINDS[kind])]
    return [f"{kind}/" for kind in KINDS] + _names(at, DATASETS) + _names(at, RESTATEMENTS)


def _runs(at: Connection, _typed: str) -> list[str]:
    """The names of runs and of Datasets."""
    documents: list[dict[str, Any]] = list(at.kube.page(DATASETS, at.namespace).items)
    return [str(d["metadata"]["name"]) for d in documents] + [str(run["name"]) for run in runs_of(documents)]


datasets: Final = _silent(lambda at, _typed: _names(at, DATASETS))
restatements: Final = _silent(lambda at, _typed: _names(at, RESTATEMENTS))
resources: Final = _silent(_resources)
runs: Final = _silent(_runs)
