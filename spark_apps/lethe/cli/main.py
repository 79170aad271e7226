"""The command `lethe` and how its errors end: one line that says what to do, never a stack trace. I/O.

Exit codes: 0, 1 (a `verify` or `doctor` found something), 2 (wrong arguments), 10 (the input or the table has to be
changed), 20 (something is away: try later).
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import click

from lethe.base.errors import InputError, LetheError, TransientError
from lethe.cli.batches import batches, track
from lethe.cli.doctor import doctor
from lethe.cli.erasures import erasures
from lethe.cli.ledger import ledger
from lethe.cli.read import read

DEBUG = "LETHE_DEBUG"


class Guarded(click.Group):
    """Turns every error of a command into one line. With LETHE_DEBUG set, unexpected ones keep their stack trace."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except LetheError as e:
            error = e
        except Exception as e:
            if os.environ.get(DEBUG):
                raise
            error = _unforeseen(e)
        click.echo(f"lethe: {' '.join(str(error).split())}", err=True)
        return ctx.exit(error.exit_code)


# Their texts may hold addresses with passwords, or rows: only their names are told.
_AWAY = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "pyiceberg.exceptions", "socket")


def _unforeseen(error: Exception) -> LetheError:
    module, name = type(error).__module__, type(error).__name__
    if isinstance(error, OSError) or module.startswith(_AWAY):
        return TransientError(
            "CatalogOrStorageAway",
            f"the catalog or the storage answered with {name}. Check that it is up and that .pyiceberg.yaml is right, then "
            f"try again; {DEBUG}=1 shows the whole error.",
        )
    return InputError("Unexpected", f"{module}.{name}; {DEBUG}=1 shows the whole error.")


@click.group(cls=Guarded, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lethe")
def cli() -> None:
    """Look into tables that Lethe keeps: their ledgers, their batches, their rows, and what is wrong with them.

    TABLE is always catalog.namespace.table; catalogs are those of .pyiceberg.yaml (in PYICEBERG_HOME, the home
    directory or the working directory). Nothing here changes a table; `track` writes the table of batches beside it.
    """
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)


for _command in (ledger, batches, track, read, erasures, doctor):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    cli.main(args=list(arguments) if arguments is not None else None, prog_name="lethe")
