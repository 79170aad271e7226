"""`lethe jars`: download the jars that Spark needs, ahead of time. I/O: the network."""

import os
from pathlib import Path

import click
from rich.console import Console

from lethe.jars import download
from lethe.jars.download import JarScope, listed
from lethe.jars.provide import fetch, folder_of


@click.command()
@click.option(
    "--to", type=click.Path(file_okay=False, path_type=Path), help="The folder. Default: LETHE_JARS, or a cache."
)
@click.option("--repository", help="The URL of a Maven repository. Default: MAVEN_REPO, or Maven Central.")
@click.option("--list", "only_list", is_flag=True, help="Print URLs and SHA-256 of the jars, and download nothing.")
def jars(to: Path | None, repository: str | None, only_list: bool) -> None:
    """Download the jars that Spark needs: Iceberg's runtime and the drivers of catalogs and stores.

    Lethe downloads them by itself when it starts Spark for the first time. Use this command to do it earlier, for example in the
    build of an image. Jars that are there with the right checksum are not downloaded again.
    """
    folder = to or folder_of(os.environ)
    base = (repository or download.repository(os.environ)).rstrip("/")
    listed_jars = listed(JarScope.LOCAL)
    if only_list:
        for jar in listed_jars:
            click.echo(f"{jar.sha256}  {base}/{jar.path}")
        return
    fetch(download.wrong(listed_jars, folder), folder, base)
    for path in download.remove_other_versions(listed_jars, folder):
        click.echo(f"removed {path.name}", err=True)
    Console(soft_wrap=True, highlight=False).print(f"{len(listed_jars)} jars are in {folder}")
