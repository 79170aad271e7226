"""`lethe put --gateway`: without access to the cluster's API and to the store. I/O."""

from pathlib import Path

from lethe.base.ids import batch_id_of_folder
from lethe.cli.output import progress
from lethe.client.ingest import Ingest, Uploaded

from lethe_kubectl.gateway import Gateway


def put_through(gateway: Gateway, namespace: str, dataset: str, folder: Path, given: str) -> Uploaded:
    """Upload a folder as one batch.

    Args:
        given: The id of the batch; "": the name of the folder, without `<column>=`.
    Raises: InputError, TransientError.
    """
    column, _, encoded = folder.name.partition("=")
    batch_id = given or (batch_id_of_folder(column, folder.name) if encoded else None)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    ca_file = str(gateway.ca_file) if gateway.ca_file is not None else None
    with Ingest(gateway.url, namespace, dataset, gateway.token, ca_file) as ingest, progress() as bar:
        task = bar.add_task("uploading", total=size)
        return ingest.put(batch_id or folder.name, folder, lambda sent: bar.advance(task, sent))
