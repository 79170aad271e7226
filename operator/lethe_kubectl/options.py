"""Options that several commands have. I/O: none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from lethe_operator.resources.manifests import Note

from lethe_kubectl.target import Choice, Gateway

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


def is_plugin(context: click.Context | None = None) -> bool:
    """Whether the program was called as `kubectl lethe`."""
    return ((context or click.get_current_context()).find_root().info_name or "").startswith("kubectl")


def change_options(function: F) -> F:
    """--dry-run, -o and --wait, of commands that change something."""
    for option in (
        click.option("--timeout", default=600, show_default=True, help="Seconds that --wait waits."),
        click.option("--wait", is_flag=True, help="Wait for the end. Exit with 1 if it did not succeed."),
        click.option("-o", "--output", type=click.Choice(["yaml", "json", "name"]), help=_OUTPUT),
        click.option("--dry-run", is_flag=True, help="Let the server check everything, and keep nothing."),
    ):  # fmt: skip
        option(function)
    return function


def note_options(function: F) -> F:
    """What a Restatement says about itself, as one argument `note`."""

    def gather(name: str, reason: str, ticket: str, evict_by_seconds: int | None, **rest: Any) -> Any:
        return function(note=Note(name, reason, ticket, evict_by_seconds), **rest)

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
