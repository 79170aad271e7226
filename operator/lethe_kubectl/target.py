"""Which API server the commands talk to, and where the gateway is. I/O: reads configurations and the token.

The rule for the API server: 1. --dir, --kubeconfig or --context. 2. The variable KUBECONFIG. 3. `lethe local`, if it runs in
LETHE_LOCAL or ~/.lethe. 4. ~/.kube/config. `kubectl lethe` skips 3. `lethe status` prints the choice.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kubernetes.client
import kubernetes.config
from kubernetes.config.config_exception import ConfigException
from lethe import local_folder
from lethe.base.errors import InputError
from lethe.cli.main import to_copy
from lethe.contract.kubernetes import GROUP
from lethe.kube import STRICT, Kube, KubeError, NotFound, ResourceKind, TimeLimits
from lethe_local.folder import Folder
from lethe_operator.cluster.client import of_configuration

from lethe_kubectl.errors import ResourcePlace, explained

TOKEN: Final = "LETHE_GATEWAY_TOKEN"


@dataclass(frozen=True)
class Gateway:
    """Where the gateway is, and how to speak to it."""

    url: str
    token_file: Path | None = None
    """None: the variable LETHE_GATEWAY_TOKEN."""
    ca_file: Path | None = None
    """None: the system's certificates."""

    def token(self) -> str:
        """Read for each request, because tokens of pods are renewed in their files.

        Raises:
            InputError: `NoToken`.
        """
        text = self.token_file.read_text().strip() if self.token_file is not None else os.environ.get(TOKEN, "")
        if not text:
            raise InputError(
                "NoToken",
                f"set {TOKEN}, or name a file with --token-file, such as one that `kubectl create token` has written.",
            )
        return text


# A person waits: a server that does not answer is an error soon.
LIMITS: Final = TimeLimits(connect_seconds=5, connect_to_write_seconds=5, read_seconds=30, retries=0)
_API_GROUPS: Final = ResourceKind("/apis", "", "APIGroup")


@dataclass(frozen=True)
class Choice:
    """What the command line says about the API server."""

    folder: Path | None = None
    """Of `lethe local`; None: not given."""
    kubeconfig: Path | None = None
    """None: not given."""
    context: str = ""
    """Empty: the current one."""
    namespace: str = ""
    """Empty: that of the context."""
    plugin: bool = False
    """Called as `kubectl lethe`."""
    dry_run: bool = False
    """The server checks what is written, and keeps nothing."""


@dataclass(frozen=True)
class Connection:
    """A client, and where it goes."""

    kube: Kube
    place: ResourcePlace
    local: Folder | None = None
    """Of `lethe local`; None: a cluster."""

    @property
    def namespace(self) -> str:
        """The namespace in which commands look for resources and create them."""
        return self.place.namespace


@contextmanager
def connected(choice: Choice, limits: TimeLimits = LIMITS) -> Iterator[Connection]:
    """A connection. Its errors become errors of one line.

    Raises:
        InputError: `NoCluster`, `Forbidden`, `NotInstalled` and others.
        TransientError: `ClusterAway`.
    """
    connection = _connect(choice, limits)
    try:
        yield connection
    except KubeError as e:
        raise explained(e, connection.place, _served(connection.kube) if no_such_path(e) else ()) from None


def _connect(choice: Choice, limits: TimeLimits) -> Connection:
    local = _local(choice)
    if local is not None and not local.kubeconfig.exists():
        raise InputError(
            "NotRunning", f"nothing runs in {local.path}. Start it: lethe local up --dir {_quoted(local.path)}"
        )
    file = local.kubeconfig if local is not None else choice.kubeconfig
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_kube_config(
            str(file) if file else None, context=choice.context or None, client_configuration=configuration
        )
        contexts, current = kubernetes.config.list_kube_config_contexts(str(file) if file else None)
    except ConfigException as e:
        raise InputError(
            "NoCluster",
            f"no cluster is chosen: {' '.join(str(e).split())} Start `lethe local up`, or choose a cluster with --kubeconfig "
            "or --context.",
        ) from None
    except Exception as e:  # the file can be anything, and the client raises what the YAML parser raises
        raise InputError(
            "NoCluster",
            f"the kubeconfig {file or os.environ.get('KUBECONFIG') or '~/.kube/config'} is not usable "
            f"({type(e).__name__}). Repair it, or choose another one with --kubeconfig.",
        ) from None
    context = next((c for c in contexts if c["name"] == choice.context), current)
    namespace = choice.namespace or context["context"].get("namespace") or "default"
    kube = Kube(of_configuration(configuration), limits)
    kube.write_query = STRICT | ({"dryRun": "All"} if choice.dry_run else {})
    place = ResourcePlace(
        name=f"lethe local in {local.path}" if local is not None else f"context {context['name']}",
        host=configuration.host,
        namespace=namespace,
        kubectl=_kubectl(local, choice),
        lethe=_lethe(choice),
    )
    return Connection(kube, place, local)


def _local(choice: Choice) -> Folder | None:
    """The folder of `lethe local` to use; None: a kubeconfig."""
    if choice.folder is not None:
        if choice.kubeconfig is not None or choice.context:
            raise InputError(
                "TwoTargets",
                "--dir excludes --kubeconfig and --context: one names `lethe local`, the others a cluster.",
            )
        return Folder(local_folder.resolved(choice.folder))
    if choice.kubeconfig is not None or choice.context or choice.plugin or os.environ.get("KUBECONFIG"):
        return None
    folder = Folder(local_folder.default_folder())
    return folder if local_folder.is_running(folder.path) and folder.kubeconfig.exists() else None


def _kubectl(local: Folder | None, choice: Choice) -> str:
    file = local.kubeconfig if local is not None else choice.kubeconfig
    flags = [f"--kubeconfig {_quoted(file)}"] if file else []
    flags += [f"--context {_quoted(choice.context)}"] if choice.context else []
    flags += [f"-n {_quoted(choice.namespace)}"] if choice.namespace else []
    return " ".join(["kubectl", *flags])


def _lethe(choice: Choice) -> str:
    """With {} for the command, because options come after it."""
    return to_copy(choice.plugin, "{}", choice.folder, choice.kubeconfig, choice.context, choice.namespace)


def _quoted(word: Path | str) -> str:
    return shlex.quote(str(word))


def no_such_path(error: KubeError) -> bool:
    """The API server does not know the kind: its answer is no Status, or one that names no object."""
    return isinstance(error, NotFound) and (error.reason == "404" or "requested resource" in error.message)


def _served(kube: Kube) -> tuple[str, ...]:
    """The versions of Lethe's API that the server has."""
    try:
        group = kube.get(_API_GROUPS, "", GROUP)
    except KubeError:
        return ()
    return tuple(str(v["version"]) for v in group.get("versions") or ())
