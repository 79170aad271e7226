"""What programs do with resources: find the table of a Dataset, and revert its batches. I/O: requests to the API server.

`lethe.finding` and `lethe.tables` call it, if the packages that it needs are installed.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lethe.base.errors import InputError, TransientError
from lethe.contract.status import RestatementStatus, parse_status
from lethe.finding import DatasetTable
from lethe.kube import DATASETS, RESTATEMENTS, AlreadyExists, TimeLimits
from lethe_operator.resources import manifests

from lethe_kubectl import lookup
from lethe_kubectl.logs import LOOK_SECONDS, same_as
from lethe_kubectl.status import WaitGoal, restatement_ended, waits_for
from lethe_kubectl.target import Choice, Connection, connected

# A person looks at the cell of a notebook: a server that does not answer at once is no place to look at.
_LIMITS: Final = TimeLimits(connect_seconds=2, connect_to_write_seconds=5, read_seconds=15, retries=0)


@contextmanager
def _connected(namespace: str = "") -> Iterator[Connection]:
    """The server that the commands would talk to."""
    with connected(Choice(namespace=namespace), _LIMITS) as at:
        yield at


def of_name(name: str) -> DatasetTable:
    """The table of a Dataset.

    Raises:
        InputError: UnknownName, and others of the connection.
        TransientError: `ClusterAway`.
    """
    with _connected() as at:
        return _table(at, lookup.one(at, "dataset", name))


def of_table(table: str, catalog: str = "") -> tuple[str, DatasetTable | None]:
    """Where this looked, and the Dataset that has a table; None: there is none.

    Args:
        table: namespace.table.
        catalog: Empty: any.

    Raises:
        InputError: NoCluster, and others of the connection.
        TransientError: `ClusterAway`.
    """
    with _connected() as at:
        where = f"{at.place.name}, namespace {at.namespace}"
        for page in at.kube.pages(DATASETS, at.namespace):
            for document in page:
                wanted = document["spec"]["table"]
                if wanted["name"] == table and catalog in ("", wanted["catalog"]):
                    return where, _table(at, document)
        return where, None


def _table(at: Connection, document: dict[str, Any]) -> DatasetTable:
    spec = document["spec"]
    return DatasetTable(
        f"{spec['table']['catalog']}.{spec['table']['name']}",
        str(spec["batchColumn"]),
        str(document["metadata"]["name"]),
        at.namespace,
        at.place.name,
        at.local.catalogs if at.local is not None else None,
    )


def revert(
    dataset: DatasetTable, batch_ids: Sequence[str], reference: str, reason: str, name: str, wait_seconds: float
) -> tuple[str, RestatementStatus]:
    """Create a Restatement, and wait until its commit. The same again changes nothing, and waits.

    Returns:
        The name of the Restatement, and its status.

    Raises:
        InputError: AlreadyExists, NotRestated, and others of the connection.
        TransientError: NotRestatedYet, ClusterAway.
    """
    note = manifests.Note(name=name, reason=reason)
    document = manifests.revert(dataset.dataset, batch_ids, note, reference)
    called = str(document["metadata"]["name"])
    with _connected(dataset.namespace) as at:
        try:
            at.kube.create(RESTATEMENTS, at.namespace, document)
        except AlreadyExists:
            same_as(at.kube.get(RESTATEMENTS, at.namespace, called), document)
        return called, _restated(at, called, wait_seconds)


def _restated(at: Connection, name: str, wait_seconds: float) -> RestatementStatus:
    """Wait for the commit of a Restatement."""
    ends = time.monotonic() + wait_seconds
    why = at.place.run(f"why restatement/{name}")
    while True:
        document = at.kube.get(RESTATEMENTS, at.namespace, name)
        status = parse_status(RestatementStatus, document.get("status"))
        ended = restatement_ended(status, document["metadata"].get("generation"), WaitGoal.END)
        if ended is not None and ended.succeeded:
            return status
        if ended is not None:
            raise InputError("NotRestated", f"restatement/{name} {ended.message} This says why: {why}")
        if time.monotonic() > ends:
            raise TransientError(
                "NotRestatedYet",
                f"restatement/{name} has not ended after {wait_seconds:g} s: {waits_for(status)}. It goes on: call again to "
                f"wait, or run {why}",
            )
        time.sleep(LOOK_SECONDS)
