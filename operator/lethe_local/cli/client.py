"""Requests of the commands to a running `lethe local up`. I/O."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import kubernetes.client
import kubernetes.config
from lethe.base.errors import InputError, TransientError
from lethe_operator.kube import Away, Kube, KubeError, NotFound

from lethe_local.api.kinds import Kind, kinds
from lethe_local.folder import HOME_ENV, Folder

DEFAULT: Final = "~/.lethe"


def folder_of(path: Path | None) -> Folder:
    """The folder that the command line names, or LETHE_LOCAL, or the default."""
    return Folder((path or Path(os.environ.get(HOME_ENV) or DEFAULT)).expanduser().resolve())


@contextmanager
def client(folder: Folder) -> Iterator[Kube]:
    """A client. Its errors become errors of one line. Raises: TransientError (`NotRunning`), and errors for the API's answers."""
    if not folder.kubeconfig.exists():
        raise _not_running(folder)
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(folder.kubeconfig), client_configuration=configuration)
    try:
        yield Kube(configuration)
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


def kind_of(name: str) -> Kind:
    """The kind with a name, plural or short name, in any case. Raises: click.BadParameter."""
    every = kinds()
    wanted = name.lower()
    for kind in every:
        short = kind.definition.short_names if kind.definition is not None else ()
        if wanted in (kind.resource.name.lower(), kind.resource.plural, *short):
            return kind
    known = ", ".join(k.resource.plural for k in every if k.definition is not None)
    raise click.BadParameter(f"{name!r} is no kind of objects. Use one of {known}, jobs, pods, secrets, configmaps.")


def kind_of_document(document: Mapping[str, Any], where: str) -> Kind:
    """The kind of a document. Raises: InputError (`UnknownKind`), also for another API version."""
    version, name = document.get("apiVersion"), document.get("kind")
    found = [k for k in kinds() if k.resource.name == name]
    if not found:
        raise InputError("UnknownKind", f"{where}: the kind {name} does not exist here.")
    if found[0].api_version != version:
        raise InputError(
            "UnknownKind",
            f"{where}: {name} has the apiVersion {version}. This version of Lethe has {found[0].api_version}.",
        )
    return found[0]
