"""`lethe demo`: the whole loop on this machine. I/O."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from lethe.jars.provide import provide
from lethe_spark.run import java

from lethe_local.cli import client, folder_of
from lethe_local.demo.person import PersonStory
from lethe_local.demo.story import DemoLake, Story, say
from lethe_local.folder import Folder
from lethe_local.up import Local

DEFAULT: Final = "~/.lethe-demo"


@click.command()
@click.option(
    "--dir",
    "path",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DEFAULT),
    help="The folder of the demo. Default: ~/.lethe-demo. What an earlier demo has left there is removed.",
)
@click.option(
    "--person",
    is_flag=True,
    help="Also erase a person from three tables by one request, and then search every byte for her. Takes some minutes more.",
)
def demo(path: Path, person: bool) -> None:
    """Show the whole loop on this machine, without a cluster, in a minute or two.

    A year of flights is promoted; three batches are reverted, one is replaced and one is erased; a vacuum purges their rows.
    Each number is compared with that of pandas.
    """
    began = time.monotonic()
    lake = DemoLake(folder_of(path))
    lake.claim()
    say(f"Lethe runs on this machine, in {lake.folder.path}.")
    java.provide_java()
    provide(os.environ)
    with _running(lake.folder) as local, client(lake.folder) as kube:
        story = Story(kube, lake, local.serve_gateway)
        story.tell()
        if person:
            PersonStory(story).tell()
    say(f"\nAll numbers were right. The demo took {time.monotonic() - began:.0f}s.")
    say(_next(lake))


@contextmanager
def _running(folder: Folder) -> Iterator[Local]:
    leave = threading.Event()
    with Local(folder) as local:
        watch = threading.Thread(target=local.watch, args=(leave.is_set,), name="parts")
        watch.start()
        try:
            yield local
        finally:
            leave.set()
            watch.join()


def _next(lake: DemoLake) -> str:
    path = lake.folder.path
    return f"""
Try next:

  lethe local up --dir {path} --gateway   # the table and the resources are still there; open the console that it names
  export LETHE_LOCAL={path}            # in another terminal
  lethe status
  lethe why dataset/flights            # what it waits for, and the next command
  lethe runs flights                   # and `lethe logs RUN`
  lethe batches flights
  lethe revert flights 2013-03-01.AA --wait
  ls {lake.manifests}                  # the manifests that you have just seen at work
  lethe plan -f {lake.manifests}       # what an apply of them would change now

  make demo-cluster                    # in a checkout: the same on a Kubernetes cluster of its own
"""
