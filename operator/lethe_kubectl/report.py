"""`lethe report`: collects what helps to find a problem into one archive that can be attached to an issue. I/O.

Invariants: it reads no Secret and no ConfigMap, and writes nothing to the archive that `cleaning` has not cleaned. What cannot be
read is named in `missing.txt` and stops nothing.
"""

import io
import json
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import yaml
from lethe.base.errors import LetheError
from lethe.base.names import kube_name
from lethe.cli.output import working
from lethe.contract.kubernetes import GROUP
from lethe.iceberg import catalogs
from lethe.kube import DATASETS, EVENTS, JOBS, PODS, RESTATEMENTS, VACUUM_POLICIES, KubeError, ResourceKind
from lethe.version import version as own_version
from lethe_local.folder import log_of
from lethe_operator.resources.common import LABEL_DATASET, LABEL_RUN_ID
from lethe_spark.run.redact import secrets_of

from lethe_kubectl.cleaning import cleaned, cleaned_event, cleaned_pod, cleaned_resource, cleaned_text
from lethe_kubectl.logs import lines_of
from lethe_kubectl.lookup import target_options
from lethe_kubectl.status import runs_of
from lethe_kubectl.target import Choice, Connection, connected

LINES: Final = 2000
"""The last lines of each log."""
LOGS_AT_MOST: Final = 20
"""Logs of runs: first of those that failed, then of the newest."""
_KINDS: Final = {"datasets": DATASETS, "restatements": RESTATEMENTS, "vacuumpolicies": VACUUM_POLICIES}
_SYSTEM: Final = f"app.kubernetes.io/name=lethe,!{LABEL_RUN_ID}"
"""Lethe's own pods. Those of runs have its name too."""
_PACKAGES: Final = ("lethe-lake", "pyiceberg", "pyarrow", "kubernetes", "pydantic", "click")
_README: Final = """\
A report of Lethe, made by `lethe report`.

versions.json            of the client, the server and the images
resources/, pods.yaml    Datasets, Restatements and VacuumPolicies; pods of runs and of Lethe
conditions.txt           each condition of each resource
events.json              what Kubernetes reported about them
logs/                    the last lines of runs and of Lethe's own pods
metrics/                 of Lethe's own pods
missing.txt              what could not be read, and why

Secrets and ConfigMaps were not read. Removed: values, filters, constants, reasons and tickets of specs; annotations; commands,
environments and volumes of pods; and in all texts what looks like a credential, an e-mail address or a telephone number. Names
of resources, tables, columns and batches, and URIs without credentials, are in the report. Look through it before you publish it.
"""


@dataclass
class Bundle:
    """The files of a report, by their paths in the archive."""

    secrets: Collection[str] = field(default=(), repr=False)
    """Known secrets, which no file may contain."""
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    def add(self, path: str, read: Callable[[], str]) -> None:
        """Add a file, or what kept it from being read."""
        try:
            self.files[path] = read()
        except (KubeError, LetheError, OSError) as e:
            reason = e.reason if isinstance(e, KubeError | LetheError) else type(e).__name__
            self.missing.append(f"{path}: {reason}")

    def write(self, target: Path, now: datetime) -> None:
        """Write the archive, which only its owner may read.

        Raises:
            OSError: It exists, or cannot be written.
        """
        missing = "".join(f"{line}\n" for line in self.missing) or "nothing\n"
        root = target.name.removesuffix(".tar.gz")
        with target.open("xb") as file:
            target.chmod(0o600)
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for path, text in sorted({**self.files, "missing.txt": missing, "README.txt": _README}.items()):
                    content = text.encode()
                    entry = tarfile.TarInfo(f"{root}/{path}")
                    entry.size, entry.mtime = len(content), int(now.timestamp())
                    archive.addfile(entry, io.BytesIO(content))


def collect(at: Connection, system_namespace: str, dataset: str = "", secrets: Collection[str] = ()) -> Bundle:
    """Read everything, and clean it.

    Args:
        at: The namespace of the resources.
        system_namespace: That of the operator.
        dataset: Only this one, with its Restatements; "": all.
        secrets: Known ones.
    """
    bundle = Bundle(secrets)
    documents: dict[str, list[dict[str, Any]]] = {}

    def resources(name: str, kind: ResourceKind) -> str:
        found = [{"kind": kind.name, **d} for d in at.kube.list(kind, at.namespace)]
        documents[name] = [d for d in found if not dataset or _is_about(d, dataset)]
        return yaml.safe_dump_all([cleaned_resource(d, secrets) for d in documents[name]], sort_keys=False)

    for name, kind in _KINDS.items():
        bundle.add(f"resources/{name}.yaml", lambda name=name, kind=kind: resources(name, kind))  # type: ignore[misc]
    bundle.add("conditions.txt", lambda: cleaned_text(_conditions(documents), secrets))
    bundle.add("events.json", lambda: _json([cleaned_event(e, secrets) for e in _events(at, documents)]))
    _add_pods(bundle, at, system_namespace, dataset)
    for run in _runs(documents.get("datasets", ())):
        bundle.add(f"logs/{run}.log", lambda run=run: _log(lines_of(at, run, LINES), secrets))  # type: ignore[misc]
    bundle.add("versions.json", lambda: _json(_versions(at)))
    return bundle


def _add_pods(bundle: Bundle, at: Connection, system_namespace: str, dataset: str) -> None:
    """The pods of runs and of Lethe, the logs of the latter, and the metrics of the operator."""
    secrets = bundle.secrets
    if at.local is not None:
        for name in ("operator", "committer"):
            if (file := log_of(at.local, name)) is not None:
                bundle.add(f"logs/{name}.log", lambda file=file: _log(_last_of(file), secrets))  # type: ignore[misc]
        return
    runs = f"{LABEL_DATASET}={kube_name(dataset)},{LABEL_RUN_ID}" if dataset else LABEL_RUN_ID
    own: list[tuple[str, dict[str, Any]]] = []

    def pods() -> str:
        own.extend((system_namespace, p) for p in at.kube.list(PODS, system_namespace, _SYSTEM))
        if at.namespace != system_namespace:
            own.extend((at.namespace, p) for p in at.kube.list(PODS, at.namespace, _SYSTEM))
        pods = [*(pod for _, pod in own), *at.kube.list(PODS, at.namespace, runs)]
        return yaml.safe_dump_all([cleaned_pod(pod, secrets) for pod in pods], sort_keys=False)

    bundle.add("pods.yaml", pods)
    bundle.add("jobs.yaml", lambda: _jobs(at, runs, secrets))
    for namespace, pod in own:
        name = str(pod["metadata"]["name"])
        for container in (pod.get("spec") or {}).get("containers") or ():
            bundle.add(
                f"logs/{name}-{container['name']}.log",
                lambda namespace=namespace, name=name, of=str(container["name"]): _log(  # type: ignore[misc]
                    at.kube.log(namespace, name, of, LINES), secrets
                ),
            )
            for port in (p["containerPort"] for p in container.get("ports") or () if p.get("name") == "metrics"):
                bundle.add(
                    f"metrics/{name}-{container['name']}.txt",
                    lambda namespace=namespace, name=name, port=port: _log(  # type: ignore[misc]
                        at.kube.proxied(namespace, name, port, "metrics"), secrets
                    ),
                )


def _jobs(at: Connection, labels: str, secrets: Collection[str]) -> str:
    jobs = [
        {"metadata": {"name": j["metadata"]["name"]}, "status": cleaned(j.get("status") or {}, secrets)}
        for j in at.kube.list(JOBS, at.namespace, labels)
    ]
    return yaml.safe_dump_all(jobs, sort_keys=False)


def _events(at: Connection, documents: Mapping[str, Collection[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Those about these resources, and about the pods and Jobs of their runs, whose names begin with that of the Dataset."""
    names = {str(d["metadata"]["name"]) for found in documents.values() for d in found}
    begin = (*(f"{d['metadata']['name']}-" for d in documents.get("datasets", ())), "lethe-")
    for event in at.kube.list(EVENTS, at.namespace):
        of = event.get("regarding") or {}
        name, is_resource = str(of.get("name")), str(of.get("apiVersion")).startswith(f"{GROUP}/")
        if name in names if is_resource else name.startswith(begin):
            yield event


def _is_about(document: Mapping[str, Any], dataset: str) -> bool:
    match document["kind"]:
        case "Dataset":
            return str(document["metadata"]["name"]) == dataset
        case "Restatement":
            return str(((document.get("spec") or {}).get("datasetRef") or {}).get("name")) == dataset
        case _:
            return True


def _conditions(documents: Mapping[str, Collection[Mapping[str, Any]]]) -> str:
    lines = [
        f"{d['kind'].lower()}/{d['metadata']['name']} {c.get('type')}={c.get('status')} {c.get('reason', '')} "
        f"{c.get('lastTransitionTime', '')} {c.get('message', '')}"
        for found in documents.values()
        for d in found
        for c in (d.get("status") or {}).get("conditions") or ()
    ]
    return "".join(f"{line}\n" for line in lines)


def _runs(datasets: Collection[Mapping[str, Any]]) -> list[str]:
    runs = runs_of([dict(d) for d in datasets])
    failed = [r.name for r in runs if r.phase == "Failed"]
    return list(dict.fromkeys([*failed, *(r.name for r in runs)]))[:LOGS_AT_MOST]


def _last_of(file: Path) -> Iterator[str]:
    with file.open(errors="replace") as log:
        yield from (line.rstrip("\n") for line in log.readlines()[-LINES:])


def _log(lines: Iterator[str], secrets: Collection[str]) -> str:
    """All lines together, because a key in PEM has several."""
    return cleaned_text("".join(f"{line}\n" for line in islice(lines, 20 * LINES)), secrets)


def _versions(at: Connection) -> dict[str, Any]:
    found: dict[str, Any] = {"lethe": own_version(), "python": platform.python_version(), "platform": platform.system()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        server = at.kube.version()
        found["server"] = {name: server.get(name) for name in ("gitVersion", "platform")}
    except KubeError as e:
        found["server"] = e.reason
    return found


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"


def _catalog_secrets() -> frozenset[str]:
    """The secrets of the catalogs that this machine knows, which a message may repeat."""
    try:
        return frozenset().union(*(secrets_of(own) for own in catalogs.every().values()))
    except (LetheError, OSError):
        return frozenset()


@click.command()
@click.argument("dataset", required=False, default="")
@click.option(
    "--file",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive to write, which must not exist.  [default: lethe-report-TIME.tar.gz]",
)
@click.option(
    "--system-namespace", default="lethe-system", show_default=True, help="The namespace of the operator, for its log."
)
@target_options
def report(choice: Choice, dataset: str, target: Path | None, system_namespace: str) -> None:
    """Collect versions, resources, conditions, events, logs and metrics into an archive for an issue.

    Of a DATASET, or of all in the namespace. Reads no Secret. Removes values, filters, reasons and annotations, and what looks
    like a credential or like personal data. Look through the archive before you publish it.
    """
    now = datetime.now(UTC)
    target = target or Path(f"lethe-report-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    started = time.monotonic()
    with connected(choice) as at, working("collecting the report"):
        bundle = collect(at, system_namespace, dataset, _catalog_secrets())
    try:
        bundle.write(target, now)
    except OSError as e:
        click.echo(f"lethe: {target}: {e.strerror}. Name another file with --file.", err=True)
        sys.exit(10)
    click.echo(f"{target}: {len(bundle.files)} files in {time.monotonic() - started:.0f} s")
    if bundle.missing:
        click.echo(f"lethe: {len(bundle.missing)} parts could not be read, see missing.txt in it", err=True)
    click.echo("Look through it before you publish it.", err=True)
