"""The commands of `lethe local`, their requests to a running `lethe local up`, and the YAML files that they apply. I/O."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import kubernetes.client
import kubernetes.config
import yaml
from lethe import local_folder
from lethe.base import names
from lethe.base.errors import InputError, TransientError
from lethe.cli.output import output_option, print_pairs, print_table, working
from lethe.kube import STRICT, AlreadyExists, Away, Kube, KubeError, NotFound, RequestRefused
from lethe_operator.cluster.client import of_configuration

from lethe_local import up as running
from lethe_local.admission import Undecodable, require_known_names
from lethe_local.api.objects import ApiKind, kinds
from lethe_local.api.patches import applied, patch_of
from lethe_local.api.server import rows_of, value_at
from lethe_local.folder import LAST_LINES, NAMESPACE, Folder, lines_of


def folder_of(path: Path | None) -> Folder:
    """The folder that the command line names, or LETHE_LOCAL, or the default."""
    return Folder(local_folder.resolved(path) if path else local_folder.default_folder())


@contextmanager
def client(folder: Folder) -> Iterator[Kube]:
    """A client. Its errors become errors of one line.

    Raises:
        TransientError: `NotRunning`, and errors for the API's answers.
    """
    if not folder.kubeconfig.exists():
        raise _not_running(folder)
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(folder.kubeconfig), client_configuration=configuration)
    try:
        yield Kube(of_configuration(configuration))
    except Away as e:
        raise _not_running(folder) from e
    except NotFound as e:
        raise InputError("NotFound", e.message.partition(": ")[2]) from None
    except KubeError as e:
        raise InputError(e.reason, e.message.partition(": ")[2]) from None


def _not_running(folder: Folder) -> TransientError:
    return TransientError(
        "NotRunning",
        f"nothing runs in {folder.path}. Start it with `lethe local up`, or name another folder with --dir.",
    )


def kind_of(name: str) -> ApiKind:
    """The kind with a name, plural or short name, in any case.

    Raises:
        click.BadParameter: The value of the argument is not valid.
    """
    every = kinds()
    wanted = name.lower()
    for kind in every:
        short = kind.definition.short_names if kind.definition is not None else ()
        if wanted in (kind.resource.name.lower(), kind.resource.plural, *short):
            return kind
    known = [k.resource.plural for k in every if k.definition is not None]
    plurals = [k.resource.plural for k in every]
    raise click.BadParameter(
        f"{names.unknown('kind', name, plurals)}. Use one of {', '.join(known)}, jobs, pods, secrets, configmaps."
    )


def place_of(kind: ApiKind) -> str:
    """The namespace of the commands' objects; "" for a kind without namespaces."""
    return NAMESPACE if kind.namespaced else ""


def kind_of_document(document: Mapping[str, Any], where: str) -> ApiKind:
    """The kind of object that a document is.

    Raises:
        InputError: `UnknownKind`, also for another API version.
    """
    version, name = document.get("apiVersion"), document.get("kind")
    matching = [k for k in kinds() if k.resource.name == name]
    if not matching:
        every = [k.resource.name for k in kinds()]
        raise InputError("UnknownKind", f"{where}: {names.unknown('kind', str(name), every)}.")
    if matching[0].api_version != version:
        raise InputError(
            "UnknownKind",
            f"{where}: {name} has the apiVersion {version}. This version of Lethe has {matching[0].api_version}.",
        )
    return matching[0]


STDIN: Final = Path("-")
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads YAML: what looks like a time is a string."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(paths: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of files, and of the .yaml, .yml and .json files of folders, with where each one is.

    Args:
        paths: "-" is standard input.

    Raises:
        InputError: `UnreadableFile`. The message names the file and the line.
    """
    for where, document in parsed(paths):
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise InputError("UnreadableFile", f"{where}: expected an object with apiVersion, kind and metadata.")
        yield where, document


def parsed(paths: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    """The same documents, whatever they are.

    Raises:
        InputError: `UnreadableFile`.
    """
    for path in paths:
        files = (
            sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json")) if path.is_dir() else [path]
        )
        if not files:
            raise InputError("UnreadableFile", f"{path}: this folder has no .yaml, .yml or .json file.")
        for file in files:
            yield from _parsed(file)


def _parsed(file: Path) -> Iterator[tuple[str, Any]]:
    name = "standard input" if file == STDIN else str(file)
    try:
        text = sys.stdin.read() if file == STDIN else file.read_text()
        documents = [d for d in yaml.load_all(text, _Loader) if d is not None]
    except OSError as e:
        raise InputError("UnreadableFile", f"{name}: {e.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise InputError("UnreadableFile", f"{name}: this is not YAML: {' '.join(str(e).split())}") from None
    for number, document in enumerate(documents):
        yield (name if len(documents) == 1 else f"{name}, document {number + 1}"), document


LOOK_SECONDS: Final = 0.3
_ALWAYS_SHOWN: Final = 3
"""Columns of `get`. A narrow terminal leaves out the others, the last one first."""

dir_option = click.option(
    "--dir",
    "path",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder. Default: LETHE_LOCAL, or ~/.lethe.",
)
files_option = click.option(
    "-f",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, allow_dash=True, path_type=Path),
    help="A file or folder, or - for standard input. Repeatable.",
)


@click.group()
def local() -> None:
    """Run Lethe on this machine, without a cluster: the same operator, with the same YAML.

    `lethe local up` keeps tables, state and logs in one folder. In another terminal, use `apply`, `get`, `wait` and the other
    commands, or kubectl with the folder's file `kubeconfig`.
    """


@local.command()
@dir_option
@click.option("--port", default=0, help="The port of the API on 127.0.0.1. Default: any free one.")
@click.option(
    "--warm-driver/--no-warm-driver",
    default=True,
    help="Whether small runs share a Spark session that stays up, and takes memory, for ten minutes. Linux only. Default: yes.",
)
@click.option(
    "--gateway",
    is_flag=True,
    help="Also run the gateway on 127.0.0.1: a console for the browser, and an HTTP API.",
)
@click.option("--gateway-port", default=0, help="The port of the gateway. Default: any free one.")
def up(path: Path | None, port: int, warm_driver: bool, gateway: bool, gateway_port: int) -> None:
    """Run until Ctrl-C. The state is kept for the next time."""
    folder = folder_of(path)

    def ready(local: running.Local) -> None:
        click.echo(f"Lethe runs in {folder.path}. Ctrl-C stops it.")
        click.echo(f"  catalog  local (SQLite and files; edit {folder.catalogs} for others)")
        click.echo("  logs     lethe local logs operator (or committer, or the name of a run)")
        if gateway:
            click.echo(f"  console  http://localhost:{local.gateway_port}/console/")
            click.echo(f"           log in with the token in {folder.account / 'token'}; the API: /v1/namespaces")
        click.echo("  next     lethe local apply -f dataset.yaml")

    wanted = running.Local(folder, port, warm_driver, gateway_port if gateway else None)
    running.up(wanted, ready)


@local.command()
@dir_option
@files_option
@click.option("--dry-run", is_flag=True, help="Change nothing, and print the plan as `lethe plan` does.")
def apply(path: Path | None, files: tuple[Path, ...], dry_run: bool) -> None:
    """Create or change objects as YAML files say."""
    with client(folder_of(path)) as kube:
        kube.write_query = STRICT | ({"dryRun": "All"} if dry_run else {})
        read = [(where, kind_of_document(document, where), document) for where, document in documents(files)]
        for where, kind, document in read:  # before anything changes
            _require_known_names(where, kind, document)
        for where, kind, document in read:
            with _named(where):
                done = apply_document(kube, kind, document)
            name = document["metadata"]["name"]
            if not dry_run or kind.definition is None:
                click.echo(f"{kind.resource.name.lower()}/{name} {done}{' (dry run)' if dry_run else ''}")
    if dry_run:
        _plan().print_local(folder_of(path).path, [(where, document) for where, _, document in read])


def _require_known_names(where: str, kind: ApiKind, document: Mapping[str, Any]) -> None:
    """Require that fields and annotations of a resource of Lethe are known.

    Raises:
        InputError: `UnknownName`.
    """
    if kind.definition is None:
        return
    try:
        require_known_names(kind.definition, document)
    except Undecodable as e:
        raise InputError("UnknownName", f"{where}: {e}") from None


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Name the document in errors about what was sent.

    Raises:
        InputError: What the API server says about the document.
    """
    try:
        yield
    except RequestRefused as e:
        raise InputError(e.reason, f"{where}: {e.message.partition(': ')[2]}") from None


@local.command()
@dir_option
@click.argument("kind")
@click.argument("name", default="")
@output_option
def get(path: Path | None, kind: str, name: str, output: str) -> None:
    """Show objects of a kind, such as datasets, restatements or jobs."""
    of = kind_of(kind)
    with client(folder_of(path)) as kube:
        objects = [kube.get(of.resource, place_of(of), name)] if name else kube.list(of.resource, place_of(of))
    shown: Any = objects[0] if name else {"apiVersion": "v1", "kind": "List", "items": objects}
    match output:
        case "json":
            click.echo(json.dumps(shown, indent=2))
        case "yaml":
            click.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)
        case "name":
            click.echo("\n".join(f"{of.resource.name.lower()}/{o['metadata']['name']}" for o in objects))
        case _ if not objects:
            click.echo(f"There are no {of.resource.plural}.", err=True)
        case _:
            rows = rows_of(of, objects, datetime.now(UTC), output == "wide")
            optional = () if output == "wide" else rows.headers[_ALWAYS_SHOWN:][::-1]
            print_table(rows.headers, rows.rows, rows.right, optional)


@local.command()
@dir_option
@click.argument("kind")
@click.argument("name")
def describe(path: Path | None, kind: str, name: str) -> None:
    """Show an object, its conditions and its events."""
    of = kind_of(kind)
    with client(folder_of(path)) as kube:
        resource = kube.get(of.resource, place_of(of), name)
        uid = resource["metadata"]["uid"]
        events = [
            e for e in kube.list(kind_of("event").resource, NAMESPACE) if (e.get("regarding") or {}).get("uid") == uid
        ]
    rows = rows_of(of, [resource], datetime.now(UTC), wide=True)
    print_pairs(zip(rows.headers, rows.rows[0], strict=True))
    click.echo()
    conditions = (resource.get("status") or {}).get("conditions") or ()
    print_table(
        ("CONDITION", "STATUS", "REASON", "MESSAGE"),
        [_cells(c, "type", "status", "reason", "message") for c in conditions],
    )
    click.echo()
    ordered = sorted(events, key=lambda e: str(e.get("eventTime")))
    print_table(("EVENT", "REASON", "NOTE"), [_cells(e, "type", "reason", "note") for e in ordered])


@local.command()
@dir_option
@click.argument("kind")
@click.argument("name")
@click.option("--for", "wanted", required=True, help="A condition, such as Succeeded or Ready=False, or `delete`.")
@click.option("--timeout", default=300, help="Seconds.")
def wait(path: Path | None, kind: str, name: str, wanted: str, timeout: int) -> None:
    """Wait until an object has a condition. Exit with 1 if it has not after the timeout."""
    of, (condition, _, status) = kind_of(kind), wanted.removeprefix("condition=").partition("=")
    ends = time.monotonic() + timeout
    last = "It does not exist."
    with working(f"waiting for {name}"), client(folder_of(path)) as kube:
        while time.monotonic() < ends:
            try:
                resource = kube.get(of.resource, place_of(of), name)
            except NotFound:
                if condition == "delete":
                    return
            else:
                now = value_at(resource, f'.status.conditions[?(@.type=="{condition}")]') or {}
                current = (resource.get("status") or {}).get("observedGeneration") == resource["metadata"].get(
                    "generation"
                )
                if current and now.get("status") == (status or "True"):
                    click.echo(f"{name}: {condition}={now['status']} {now.get('message', '')}".strip())
                    return
                last = f"{condition}={now.get('status', 'Unknown')} {now.get('reason', '')} {now.get('message', '')}".strip()
            time.sleep(LOOK_SECONDS)
    click.echo(f"lethe: {name}: after {timeout} s: {last}", err=True)
    sys.exit(1)


@local.command()
@dir_option
@click.argument("kind")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Change nothing, and print the plan as `lethe plan` does.")
def delete(path: Path | None, kind: str, name: str, dry_run: bool) -> None:
    """Delete an object. Deleting a Dataset keeps its table and its buffer."""
    of = kind_of(kind)
    with client(folder_of(path)) as kube:
        found = kube.get(of.resource, place_of(of), name)
        if not dry_run:
            kube.delete(of.resource, place_of(of), name)
    if dry_run and of.definition is not None:
        _plan().print_deleted(folder_of(path).path, found)
        return
    click.echo(f"{of.resource.name.lower()}/{name} deleted{' (dry run)' if dry_run else ''}")


def _plan() -> ModuleType:
    """`lethe plan`, which is above this package."""
    return import_module("lethe_plan.command")


@local.command()
@dir_option
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, or until Ctrl-C.")
@click.option("--tail", default=LAST_LINES, show_default=True, help="The number of last lines; 0: all.")
def logs(path: Path | None, run: str, follow: bool, tail: int) -> None:
    """Show the log of a run, by the name that `lethe runs` shows; of the `operator` or the `committer`."""
    for line in lines_of(folder_of(path), run, tail, follow):
        click.echo(line)


def apply_document(kube: Kube, kind: ApiKind, document: dict[str, Any]) -> str:
    """Create the object, or change it to follow the document, as kubectl does. Return what was done."""
    try:
        kube.create(kind.resource, place_of(kind), applied(document))
        return "created"
    except AlreadyExists:
        name = document["metadata"].get("name", "")
        before = kube.get(kind.resource, place_of(kind), name)
    patch = patch_of(document, before)
    if not patch:
        return "unchanged"
    after = kube.patch(kind.resource, place_of(kind), name, patch)
    return "unchanged" if after == before else "configured"


def _cells(of: dict[str, Any], *names: str) -> list[str]:
    return [str(of.get(n) or "") for n in names]
