"""Finds what a user names: resources, the table of a Dataset, and the catalogs with which this machine opens it. I/O.

Also the options that several commands have, and the names that a shell completes: these cost one short request, and without an
answer there are no names, and no message.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from lethe.base import names
from lethe.base.errors import InputError
from lethe.cli.diagnosis import Finding
from lethe.cli.main import is_plugin
from lethe.finding import DatasetTable
from lethe.iceberg import catalogs
from lethe.kube import (
    DATASETS,
    LEASES,
    RESTATEMENTS,
    VACUUM_POLICIES,
    NotFound,
    RequestRefused,
    ResourceKind,
    TimeLimits,
)
from lethe_operator.resources.manifests import Note

from lethe_kubectl.diagnosis import COMMITTER_LEASE, OPERATOR_LEASE, SeenNamespace, diagnose_namespace
from lethe_kubectl.status import WaitGoal, runs_of
from lethe_kubectl.target import Choice, Connection, Gateway, connected

_DRY_RUN = "Change nothing: let the server check it, and print the plan as `lethe plan` does."
_OUTPUT = "yaml, json: print the resource for Git, and change nothing."

F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """--dir, --kubeconfig, --context and --namespace, as one argument `choice`."""
    a_file = click.Path(path_type=Path)
    options = (
        click.option("-n", "--namespace", default="", help="The namespace. Default: that of the context."),
        click.option("--context", default="", help="A context of the kubeconfig."),
        click.option("--kubeconfig", type=a_file, help="The kubeconfig. Default: KUBECONFIG, then ~/.kube/config."),
        click.option("--dir", "folder", type=a_file, help="Use `lethe local` in this folder instead of a cluster."),
    )

    def gather(folder: Path | None, kubeconfig: Path | None, context: str, namespace: str, **rest: Any) -> Any:
        choice = Choice(folder, kubeconfig, context, namespace, is_plugin(), bool(rest.get("dry_run")))
        return function(choice=choice, **rest)

    gather.__doc__, gather.__name__ = function.__doc__, function.__name__
    gather.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in options:
        option(gather)
    return gather  # type: ignore[return-value]


def gateway_options(function: F) -> F:
    """--gateway, --token-file and --ca-file, as one argument `gateway`; None: without a gateway."""

    def gather(gateway: str, token_file: Path | None, ca_file: Path | None, **rest: Any) -> Any:
        return function(gateway=Gateway(gateway, token_file, ca_file) if gateway else None, **rest)

    a_file = click.Path(exists=True, dir_okay=False, path_type=Path)
    gather.__doc__, gather.__name__ = function.__doc__, function.__name__
    gather.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--ca-file", type=a_file, help="Certificates to trust. Default: the system's."),
        click.option("--token-file", type=a_file, help="A file with a token of the cluster."),
        click.option("--gateway", default="", envvar="LETHE_GATEWAY", help="The URL of Lethe's gateway."),
    ):  # fmt: skip
        option(gather)
    return gather  # type: ignore[return-value]


class ErasingCommand(click.Command):
    """A command with --wait, --wait=gone and --wait=hidden. An argument that follows --wait is not its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Complete the bare option."""
        return super().parse_args(ctx, [f"--wait={WaitGoal.GONE}" if a == "--wait" else a for a in args])


def erase_options(function: F) -> F:
    """The options of `change_options`, for an `ErasingCommand`."""
    wait = click.option(
        "--wait",
        type=click.Choice([WaitGoal.GONE.value, WaitGoal.HIDDEN.value]),
        help="--wait: until the bytes are verified to be gone, which needs a vacuum. --wait=hidden: until no reader sees the "
        "rows. Exit with 1 if it did not succeed.",
    )
    return _change_options(function, wait)


def change_options(function: F) -> F:
    """--dry-run, -o and --wait, of commands that change something."""
    wait = click.option("--wait", is_flag=True, help="Wait for the end. Exit with 1 if it did not succeed.")
    return _change_options(function, wait)


def _change_options(function: F, wait: Callable[[F], F]) -> F:
    for option in (
        click.option("--timeout", default=600, show_default=True, help="Seconds that --wait waits."),
        wait,
        click.option("-o", "--output", type=click.Choice(["yaml", "json", "name"]), help=_OUTPUT),
        click.option("--dry-run", is_flag=True, help=_DRY_RUN),
    ):  # fmt: skip
        option(function)
    return function


def note_options(function: F) -> F:
    """What a Restatement says about itself, as one argument `note`."""

    def gather(
        name: str,
        reason: str,
        ticket: str,
        evict_by_seconds: int | None,
        allow_unknown: bool = False,
        **rest: Any,
    ) -> Any:
        return function(note=Note(name, reason, ticket, evict_by_seconds, allow_unknown), **rest)

    gather.__doc__, gather.__name__ = function.__doc__, function.__name__
    gather.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--evict-by-seconds", type=click.IntRange(1), help="Bytes must be gone this long after the commit."),
        click.option("--ticket", default="", help="A reference to a ticket. No personal data."),
        click.option("--reason", default="", help="Why, as text. No personal data."),
        click.option("--name", default="", help="Of the Restatement. Default: made from what it does."),
    ):  # fmt: skip
        option(gather)
    return gather  # type: ignore[return-value]


def batch_note_options(function: F) -> F:
    """`note_options`, of commands that name batches."""
    help = "Accept batches that the Dataset does not know. They are not promoted if they arrive later."
    return click.option("--allow-unknown", is_flag=True, help=help)(note_options(function))


Document = dict[str, Any]
KINDS: Final[Mapping[str, ResourceKind]] = {
    "dataset": DATASETS, "restatement": RESTATEMENTS, "vacuumpolicy": VACUUM_POLICIES,
}  # fmt: skip
_OTHER_NAMES: Final = {
    "datasets": "dataset", "dset": "dataset", "restatements": "restatement", "rst": "restatement",
    "vacuumpolicies": "vacuumpolicy", "vacpol": "vacuumpolicy",
}  # fmt: skip


def kind_and_name(words: Sequence[str]) -> tuple[str, str]:
    """KIND/NAME, KIND NAME or NAME; the kind is "" in the last case.

    Raises:
        InputError: `UnknownKind`.
    """
    kind, _, name = words[0].rpartition("/") if len(words) == 1 else (words[0], "", words[1])
    if not kind:
        return "", name
    wanted = kind.lower().removesuffix(".lethe.dev")
    kind_name = _OTHER_NAMES.get(wanted, wanted)
    if kind_name not in KINDS:
        raise InputError("UnknownKind", f"{names.unknown('kind', kind, KINDS)}. Lethe has {', '.join(KINDS)}.")
    return kind_name, name


def find(at: Connection, words: Sequence[str]) -> tuple[str, Document]:
    """The kind and the resource.

    Raises:
        InputError: `UnknownKind`, `UnknownName`, `AmbiguousName`.
    """
    kind, name = kind_and_name(words)
    if kind:
        return kind, one(at, kind, name)
    every = {k: {str(d["metadata"]["name"]): d for d in at.kube.list(r, at.namespace)} for k, r in KINDS.items()}
    kinds = [k for k, documents in every.items() if name in documents]
    if len(kinds) > 1:
        known = " or ".join(f"{k}/{name}" for k in kinds)
        raise InputError(
            "AmbiguousName", f"namespace {at.namespace} has several resources named {name}. Write {known}."
        )
    if not kinds:
        raise unknown(name, [n for documents in every.values() for n in documents], "resource", at.namespace)
    return kinds[0], every[kinds[0]][name]


def one(at: Connection, kind: str, name: str) -> Document:
    """A resource.

    Raises:
        InputError: `UnknownName`.
    """
    try:
        return at.kube.get(KINDS[kind], at.namespace, name)
    except NotFound:
        known = [str(d["metadata"]["name"]) for d in at.kube.list(KINDS[kind], at.namespace)]
        raise unknown(name, known, KINDS[kind].name, at.namespace) from None


def unknown(name: str, known: Sequence[str], what: str, namespace: str) -> InputError:
    """The error for a name that no resource has; it suggests the most similar known name, or lists up to ten."""
    near = names.nearest(name, known)
    hint = f"Do you mean {near}?" if near else f"There are {', '.join(sorted(known)[:10]) or 'none'}."
    return InputError("UnknownName", f"namespace {namespace} has no {what} {name[:100]}. {hint}")


def table_of(
    name: str, folder: Path | None, kubeconfig: Path | None, context_name: str, namespace: str
) -> DatasetTable:
    """The table of a Dataset.

    Raises:
        InputError: `UnknownName`, `UnknownCatalog`.
    """
    with connected(Choice(folder, kubeconfig, context_name, namespace, is_plugin())) as at:
        document = one(at, "dataset", name)
        use_catalogs(at, document)
    spec = document["spec"]
    return DatasetTable(f"{spec['table']['catalog']}.{spec['table']['name']}", str(spec["batchColumn"]))


def namespace_findings(
    folder: Path | None, kubeconfig: Path | None, context_name: str, namespace: str
) -> tuple[str, list[Finding]]:
    """The name of the namespace, and what is wrong there.

    Raises:
        InputError: Errors of the connection.
    """
    with connected(Choice(folder, kubeconfig, context_name, namespace, is_plugin())) as at:
        resources = [(kind, d) for kind in KINDS for d in at.kube.list(KINDS[kind], at.namespace)]
        seen = SeenNamespace(at.namespace, resources, _leases(at))
        return at.namespace, diagnose_namespace(seen, datetime.now(UTC), at.place)


def _leases(at: Connection) -> dict[str, Document] | None:
    """Those of the operator and the committer. None: `lethe local` has none, or the user may not read that of the operator."""
    found: dict[str, Document] = {}
    for name in (OPERATOR_LEASE, COMMITTER_LEASE) if at.local is None else ():
        try:
            found[name] = at.kube.get(LEASES, at.namespace, name)
        except NotFound:
            continue
        except RequestRefused:
            if name == OPERATOR_LEASE:
                return None
    return found if at.local is None else None


def record_of(name: str, folder: Path | None, kubeconfig: Path | None, context_name: str, namespace: str) -> str:
    """The URI of the record of a subject request.

    Raises:
        InputError: `UnknownName`; `NotVerified`, if it has no record.
    """
    with connected(Choice(folder, kubeconfig, context_name, namespace, is_plugin())) as at:
        document = one(at, "restatement", name)
        if at.local is not None:
            os.environ["PYICEBERG_HOME"] = str(at.local.path)
    full_name = f"{document['metadata']['namespace']}/{name}"
    if dataset := ((document["spec"].get("datasetRef") or {}).get("name")):
        verify = at.place.run(f"erasures verify {dataset} {full_name}")
        text = f"restatement/{name} is about one Dataset. Run: {verify}"
        raise InputError("NotVerified", text)
    record = ((document.get("status") or {}).get("erasure") or {}).get("record")
    if not record:
        look = at.place.run(f"why restatement/{name}")
        raise InputError("NotVerified", f"restatement/{name} has no record yet. This says why: {look}")
    return str(record)


def use_catalogs(at: Connection, dataset: dict[str, Any]) -> None:
    """Let this process use the catalogs of `lethe local`, or for a cluster those of the caller.

    Raises:
        InputError: `UnknownCatalog`.
    """
    if at.local is not None:
        os.environ["PYICEBERG_HOME"] = str(at.local.path)
    catalog = str(dataset["spec"]["table"]["catalog"])
    known = catalogs.every()
    if catalog in known:
        return
    file = at.local.catalogs if at.local is not None else catalogs.config_files()[0]
    raise InputError(
        "UnknownCatalog",
        f"dataset/{dataset['metadata']['name']} has its table in the catalog {catalog}, and {catalogs.CONFIG_FILE} of this "
        f"machine has {', '.join(sorted(known)) or 'none'}. Commands that read tables use your own configuration and "
        f"credentials: add the catalog {catalog} to {file}.",
    )


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
    return [str(d["metadata"]["name"]) for d in documents] + [run.name for run in runs_of(documents)]


datasets: Final = _silent(lambda at, _typed: _names(at, DATASETS))
restatements: Final = _silent(lambda at, _typed: _names(at, RESTATEMENTS))
resources: Final = _silent(_resources)
runs: Final = _silent(_runs)
