"""The command `lethe`. An error becomes one line that says what to do, without a stack trace. I/O.

Exit codes: 0 (done), 1 (a `verify` or `doctor` found a problem), 2 (wrong arguments), 10 (change the input or the table),
20 (a service is unavailable: try again later).
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


class OneLineErrors(click.Group):
    """Turns every error of a command into one line. With LETHE_DEBUG set, unexpected errors keep their stack trace."""

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
            error = _unexpected(e)
        click.echo(f"lethe: {' '.join(str(error).split())}", err=True)
        return ctx.exit(error.exit_code)


# The texts of these errors can contain addresses with passwords, or rows: print only the name of the class.
_UNAVAILABLE = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "pyiceberg.exceptions", "socket")


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
@click.version_option(package_name="lethe")
def cli() -> None:
    """Inspect tables that Lethe keeps: their ledgers, batches, rows and problems.

    TABLE is always catalog.namespace.table. The catalogs are those of .pyiceberg.yaml, in PYICEBERG_HOME, the home
    directory or the working directory. No command changes a table; `track` writes the table of batches beside it.
    """
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)


for _command in (ledger, batches, track, read, erasures, doctor):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    cli.main(args=list(arguments) if arguments is not None else None, prog_name="lethe")
