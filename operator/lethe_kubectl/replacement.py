"""Uploads the new batch of a Replay from a local folder. I/O.

Invariant: the same files for the same batches are the same new batch, so a repetition goes on where the last attempt ended.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.names import MAX_BATCH_ID_LENGTH
from lethe.base.objects import BufferedObject
from lethe.buffer.upload import BufferUpload, LocalFile, plan_upload
from lethe.contract.settings import BufferLayout
from lethe.iceberg import catalogs
from lethe.storage.object_store import open_store
from lethe.uri import overlap
from lethe_operator.resources.dataset import Dataset, parse_dataset

from lethe_kubectl.id_lists import beside
from lethe_kubectl.local_batches import LocalBatch
from lethe_kubectl.lookup import one, use_catalogs
from lethe_kubectl.put import put_and_show, target_of
from lethe_kubectl.target import Choice, connected

_DIGITS: Final = 10


@dataclass(frozen=True)
class ReplacementPlace:
    """The id and the folder of a new batch, as the command line says them."""

    batch_id: str = ""
    """Empty: made from the replaced batch and the contents."""
    uri: str = ""
    """Empty: a folder beside the buffer."""


@dataclass(frozen=True)
class UploadedBatch:
    """The new batch of a Replay."""

    batch_id: str
    uri: str
    """The URI of its folder."""
    files: tuple[BufferedObject, ...]
    """Its data files, without ETags."""


def put_replacement(
    choice: Choice,
    dataset: str,
    folder: Path,
    replaced: Sequence[str],
    place: ReplacementPlace,
    check: bool,
    dry_run: bool,
) -> UploadedBatch:
    """Upload a folder, unless it is there.

    Args:
        replaced: The ids of the batches to replace.
        check: Read the files first, as a consolidation would.

    Raises:
        InputError: With the reason of a refusal, and others.
        TransientError: The store refused a request or did not answer.
    """
    with connected(choice) as at:
        document = one(at, "dataset", dataset)
        use_catalogs(at, document)
    of, files = parse_dataset(document), LocalBatch("", folder.resolve()).files()
    batch_id = place.batch_id or new_id(replaced[0] if len(replaced) == 1 else folder.resolve().name, files)
    upload = replacement_upload(of, batch_id, files, place.uri)
    store = open_store(upload.folder, catalogs.properties(of.spec.table.catalog))
    target = replace(target_of(of, [batch_id]), store=store)
    unchecked = target.dataset.spec.model_copy(update={"checks": ()})  # they apply to batches of the buffer
    target = replace(target, dataset=replace(target.dataset, spec=unchecked))
    outcome = put_and_show(target, upload, files, check, dry_run)
    text = f"{outcome.done}{' (not uploaded)' if dry_run else ''}: {outcome.text()}: {upload.folder}"
    click.echo(f"new batch {batch_id} {text}", err=True)
    objects = tuple(BufferedObject(uri, file.size, "") for uri, file in upload.files.items())
    return UploadedBatch(batch_id, f"{upload.folder}/", objects)


def new_id(replaced: str, files: Mapping[str, Path]) -> str:
    """The id of a batch with these files that replaces another one."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {name}\n".encode("utf-8", "surrogatepass"))
    return f"{replaced[: MAX_BATCH_ID_LENGTH - _DIGITS - 1]}.{digest.hexdigest()[:_DIGITS]}"


def replacement_upload(of: Dataset, batch_id: str, files: Mapping[str, Path], uri: str) -> BufferUpload:
    """Which file becomes which object.

    Args:
        uri: The folder; "": one beside the buffer.

    Raises:
        InputError: As `plan_upload`, and `NoPlace`, `ReplacementInBuffer`.
    """
    if uri and overlap(of.spec.buffer.uri, uri):
        raise InputError(
            "ReplacementInBuffer",
            f"--uri {uri} is in the buffer {of.spec.buffer.uri}, so consolidation would load it a second time. Name a folder "
            "outside of it.",
        )
    local_files = [LocalFile(path, p.stat().st_size) for path, p in files.items()]
    root = uri or beside(of.spec.buffer.uri)
    upload = plan_upload(root, BufferLayout.DIRECTORY, of.spec.batch_column, batch_id, local_files)
    if not uri:
        return upload
    folder = uri.rstrip("/")
    objects = {f"{folder}/{f.path}": f for f in local_files}
    return BufferUpload(batch_id, folder, objects, f"{folder}/{names.SUCCESS_MARKER}")
