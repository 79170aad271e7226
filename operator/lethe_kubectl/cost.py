"""`lethe cost`: what the runs of each Dataset have used, from the statuses of Datasets. I/O."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import click
from lethe.cli.output import print_document, print_table
from lethe.contract.kubernetes import GIB
from lethe.contract.status import RunUsage
from lethe.kube import DATASETS

from lethe_kubectl.lookup import target_options
from lethe_kubectl.status import dataset_status
from lethe_kubectl.target import Choice, connected

HEADERS: Final = ("DATASET", "SINCE", "RUNS", "CPU H", "READ", "WRITTEN", "GIB", "COST")
_HOUR: Final = 3600


class Prices(NamedTuple):
    """What a Dataset's runs pay for, in any currency."""

    cpu_second: float = 0.0
    """A CPU for a second."""
    read: float = 0.0
    """Reading a file."""
    file: float = 0.0
    """Writing a file."""


@click.command()
@click.option("--cpu-hour", type=click.FloatRange(min=0), default=0.0, help="The price of a CPU for an hour.")
@click.option(
    "--per-million-reads", type=click.FloatRange(min=0), default=0.0, help="The price of reading a million files."
)
@click.option(
    "--per-million-files", type=click.FloatRange(min=0), default=0.0, help="The price of writing a million files."
)
@target_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def cost(choice: Choice, cpu_hour: float, per_million_reads: float, per_million_files: float, output: str) -> None:
    """Show what the runs of each Dataset have used, the dearest first, and in the end their sum.

    CPU is that of drivers, warm drivers and committers, and the cores of executors for as long as these were there. READ are the
    files of the buffer that runs read, and the data files that they rewrote; WRITTEN are the data files that they wrote. GIB is
    what consolidations added and vacuums rewrote. With prices, COST is for CPU and a request for each file. SINCE is the first
    run that was counted.
    """
    with connected(choice) as at:
        datasets = at.kube.list(DATASETS, at.namespace)
    used = {d["metadata"]["name"]: dataset_status(d).usage or RunUsage() for d in datasets}
    if output != "text":
        print_document({"datasets": [{"name": n, **u.to_document()} for n, u in sorted(used.items())]}, output)
        return
    prices = Prices(cpu_hour / _HOUR, per_million_reads / 1e6, per_million_files / 1e6)
    print_table(HEADERS, rows(used, prices), HEADERS[2:])


def rows(used: Mapping[str, RunUsage], prices: Prices) -> Iterator[list[str]]:
    """The rows of the table.

    Args:
        used: By the names of Datasets.
    """
    for name, usage in sorted(used.items(), key=lambda found: (-_price(found[1], prices), -_cpu(found[1]), found[0])):
        yield _row(name, usage, prices)
    if len(used) > 1:
        total = RunUsage(
            runs=sum(u.runs or 0 for u in used.values()),
            cpu_seconds=sum(u.cpu_seconds or 0 for u in used.values()),
            executor_cpu_seconds=sum(u.executor_cpu_seconds or 0 for u in used.values()),
            files_read=sum(u.files_read or 0 for u in used.values()),
            files=sum(u.files or 0 for u in used.values()),
            bytes=sum(u.bytes or 0 for u in used.values()),
        )
        yield _row("(all)", total, prices)


def _row(name: str, usage: RunUsage, prices: Prices) -> list[str]:
    since = f"{usage.since:%Y-%m-%d}" if usage.since is not None else ""
    price = f"{_price(usage, prices):.2f}" if any(prices) else ""
    hours, gib = _cpu(usage) / _HOUR, (usage.bytes or 0) / GIB
    files = (str(usage.files_read or 0), str(usage.files or 0))
    return [name, since, str(usage.runs or 0), f"{hours:.2f}", *files, f"{gib:.2f}", price]


def _cpu(usage: RunUsage) -> int:
    return (usage.cpu_seconds or 0) + (usage.executor_cpu_seconds or 0)


def _price(usage: RunUsage, prices: Prices) -> float:
    requests = (usage.files_read or 0) * prices.read + (usage.files or 0) * prices.file
    return _cpu(usage) * prices.cpu_second + requests
