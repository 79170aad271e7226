"""The command `lethe`. An error becomes one line that says what to do, without a stack trace. I/O.

Exit codes: 0 (done), 1 (something failed, or a command that looks for problems found one), 2 (wrong arguments), 3
(`plan --exit-code`: something would change), 10 (change the input or the table), 20 (a service is unavailable: try again later).
"""

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from lethe.base.errors import InputError, LetheError, TransientError

DEBUG = "LETHE_DEBUG"
PLUGIN: Final = "kubectl lethe"

_RESOURCES: Final = "lethe_kubectl.commands"

_UNAVAILABLE = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "pyiceberg.exceptions", "socket")
"""The texts of these errors can contain addresses with passwords, or rows: print only the name of the class."""


def is_plugin(context: click.Context | None = None) -> bool:
    """Whether the program was called as `kubectl lethe`."""
    return ((context or click.get_current_context()).find_root().info_name or "").startswith("kubectl")


def to_copy(
    plugin: bool, command: str, folder: Path | None, kubeconfig: Path | None, context_name: str, namespace: str
) -> str:
    """A command with the options that say where Datasets are, as they were given."""
    given = {"--dir": folder, "--kubeconfig": kubeconfig, "--context": context_name, "-n": namespace}
    program = PLUGIN if plugin else "lethe"
    return " ".join([program, command, *(f"{flag} {shlex.quote(str(v))}" for flag, v in given.items() if v)])


@dataclass(frozen=True)
class Entry:
    """Where a command is. It is imported when it is used: some need packages whose import takes seconds."""

    module: str
    attribute: str
    help: str
    """The help text in the list of commands."""
    extra: str = ""
    """The extra of lethe-lake that it needs; "": none."""


COMMANDS: Final = {
    "approve": Entry(
        "lethe_kubectl.commands", "approve", "Approve batches that checks hold, or a planned vacuum.", "kubectl"
    ),
    "batches": Entry("lethe.cli.batches", "batches", "List the batches of a table or a Dataset."),
    "demo": Entry(
        "lethe_local.demo.command", "demo", "Show the whole loop on this machine, with a year of flights.", "local"
    ),
    "doctor": Entry("lethe.cli.doctor", "doctor", "Examine a table, and say what to do about each problem."),
    "erase": Entry(_RESOURCES, "erase", "Erase batches or records, and prove that their bytes are gone.", "kubectl"),
    "redact": Entry(
        _RESOURCES, "redact", "Replace values of columns, and prove that the old ones are gone.", "kubectl"
    ),
    "cost": Entry("lethe_kubectl.cost", "cost", "Show what the runs of each Dataset have used.", "kubectl"),
    "erasures": Entry("lethe.cli.erasures", "erasures", "Inspect the erasures of a table or a Dataset."),
    "get": Entry("lethe.cli.read", "get", "Write the rows of a batch, or its original files, into a folder."),
    "history": Entry("lethe.cli.batches", "history", "Show what happened to a batch, who asked for it, and why."),
    "jars": Entry("lethe.cli.jars", "jars", "Download the jars that Spark needs."),
    "ledger": Entry("lethe.cli.ledger", "ledger", "Inspect the ledgers of a table."),
    "local": Entry("lethe_local.cli", "local", "Run Lethe on this machine, without a cluster.", "local"),
    "logs": Entry("lethe_kubectl.logs", "logs", "Show the log of a run, or of a Dataset's newest run.", "kubectl"),
    "plan": Entry("lethe_plan.command", "plan", "Say what an apply of YAML files would change.", "plan"),
    "put": Entry("lethe_kubectl.put", "put", "Put local folders as batches into a buffer.", "kubectl"),
    "read": Entry("lethe.cli.read", "read", "Print the rows of a table, without the rows of deleted batches."),
    "replay": Entry(_RESOURCES, "replay", "Replace batches of a Dataset with a new batch.", "kubectl"),
    "report": Entry(
        "lethe_kubectl.report",
        "report",
        "Collect what helps to find a problem into an archive for an issue.",
        "kubectl",
    ),
    "revert": Entry(_RESOURCES, "revert", "Delete batches of a Dataset.", "kubectl"),
    "runs": Entry(_RESOURCES, "runs", "Show the runs of Datasets: at work, and the last few.", "kubectl"),
    "status": Entry(_RESOURCES, "status", "Show Datasets, VacuumPolicies, and Restatements at work.", "kubectl"),
    "track": Entry("lethe.cli.batches", "track", "Update the table of batches of a table."),
    "undo": Entry(_RESOURCES, "undo", "Take a Revert back.", "kubectl"),
    "vacuum-now": Entry("lethe_kubectl.vacuum", "vacuum_now", "Request a vacuum of a Dataset.", "kubectl"),
    "why": Entry(_RESOURCES, "why", "Say what a resource waits for, and the next command to run.", "kubectl"),
}


class OneLineErrors(click.Group):
    """Turns every error of a command into one line. With LETHE_DEBUG set, unexpected errors keep their stack trace."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All commands in alphabetical order. Imports none of their modules."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command. If packages of its extra are missing, it only says how to install them."""
        entry = COMMANDS.get(cmd_name)
        return _loaded(cmd_name, entry) if entry is not None else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the section Commands of `lethe --help` from the table of commands, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in sorted(COMMANDS)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them."""
        items = [CompletionItem(n, help=COMMANDS[n].help) for n in sorted(COMMANDS) if n.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Print a LetheError or an unexpected error on stderr, and exit with its code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except LetheError as e:
            error = e
        except Exception as e:
            if os.environ.get(DEBUG):
                raise
            error = _unexpected(e)
        click.echo(f"lethe: {' '.join(str(error).split())}", err=True)
        return ctx.exit(error.exit_code)


def _loaded(name: str, entry: Entry) -> click.Command:
    """The command. If packages of its extra are missing, it says how to install them."""
    try:
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command
    except ModuleNotFoundError as e:
        if not entry.extra:
            raise
        missing, extra = e.name, entry.extra

    @click.command(
        name, help=f"Needs: pip install 'lethe-lake[{extra}]'", context_settings={"ignore_unknown_options": True}
    )
    @click.argument("arguments", nargs=-1)
    def not_installed(arguments: tuple[str, ...]) -> None:  # noqa: ARG001
        raise InputError("NotInstalled", f"`lethe {name}` needs {missing}. Run: pip install 'lethe-lake[{extra}]'")

    return not_installed


def _unexpected(error: Exception) -> LetheError:
    module, name = type(error).__module__, type(error).__name__
    if isinstance(error, OSError) or module.startswith(_UNAVAILABLE):
        return TransientError(
            "CatalogOrStorageAway",
            f"the catalog or the storage answered with {name}. Check that both are up and that .pyiceberg.yaml is right. Then "
            f"try again. {DEBUG}=1 shows the whole error.",
        )
    return InputError("Unexpected", f"{module}.{name}. {DEBUG}=1 shows the whole error.")


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lethe-lake")
def cli() -> None:
    """Work with tables that Lethe keeps, and with the resources of Lethe in a cluster or in `lethe local`.

    TABLE is catalog.namespace.table. The catalogs are those of .pyiceberg.yaml, in PYICEBERG_HOME, the home directory or
    the working directory. DATASET is the name of a Dataset, or dataset/NAME. Commands on TABLE|DATASET do not change the
    table; `track` writes the table of batches beside it. Commands on a DATASET and other resources create or annotate
    resources; the operator does the work.
    """
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Also the program `kubectl-lethe`, which kubectl runs as `kubectl lethe`."""
    plugin = Path(sys.argv[0]).name.startswith("kubectl-lethe")
    cli.main(args=list(arguments) if arguments is not None else None, prog_name=PLUGIN if plugin else "lethe")
