"""Distributes buffered files to the tasks that read them. Pure and deterministic."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from lethe.ingest.buffer_store import FileTask

BYTES_PER_GROUP: Final = 128 * 1024 * 1024
FILES_PER_GROUP: Final = 1000
# The cost of the request for a file, as the number of bytes that could be read in the same time.
BYTES_PER_FILE: Final = 256 * 1024


@dataclass(frozen=True)
class Group:
    """The files of one task."""

    number: int
    # Batches of a lower range come before those of this one, or are the same.
    range: int
    files: tuple[FileTask, ...]


def pack(tasks: Sequence[FileTask], parallelism: int, whole_batches: bool = False) -> list[Group]:
    """Divide files, in the order of their batches, into groups of about equal work.

    Args:
        parallelism: How many tasks may run at the same time.
        whole_batches: All files of a batch are in the same range.
    """
    if not tasks:
        return []
    weight = sum(map(_weight, tasks))
    wanted = max(ceil(weight / (BYTES_PER_GROUP + BYTES_PER_FILE)), ceil(len(tasks) / FILES_PER_GROUP))
    wanted = ceil(wanted / parallelism) * parallelism  # so that all cores are busy until the end
    share, most = weight / min(wanted, len(tasks)), FILES_PER_GROUP
    groups: list[list[FileTask]] = []
    load = share  # so that the first file begins a group
    for task in sorted(tasks, key=lambda t: (t.batch_id, t.uri)):
        if not groups or load + _weight(task) / 2 > share or len(groups[-1]) >= most:
            groups.append([])
            load = 0
        groups[-1].append(task)
        load += _weight(task)
    found: list[Group] = []
    for number, files in enumerate(groups):
        goes_on = number > 0 and whole_batches and groups[number - 1][-1].batch_id == files[0].batch_id
        range_ = found[-1].range if goes_on else number
        found.append(Group(number, range_, tuple(files)))
    return found


def _weight(task: FileTask) -> int:
    return task.size + BYTES_PER_FILE
