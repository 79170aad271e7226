"""Which local files are which batch: folders, the entries of folders, or the lines of a manifest. I/O: reads folders."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lethe.base.errors import InputError
from lethe.base.names import MAX_BATCH_ID_LENGTH, batch_id_of_file, batch_id_of_folder, lines_of
from lethe.buffer.upload import LocalFile, data_files
from lethe.contract.settings import BufferLayout
from lethe.uri import is_utf8

NAME: Final = "{name}"
"""In a template of batch ids: the id that the folder or the file has by its name."""
_HIDDEN: Final = ("_", ".")


@dataclass(frozen=True)
class LocalBatch:
    """A batch of local files."""

    batch_id: str
    folder: Path | None = None
    """All data files below it; None: `paths`."""
    paths: tuple[Path, ...] = ()
    """Single files. In the batch they have their names without folders."""

    def files(self) -> dict[str, Path]:
        """The data files, by their paths in the batch.

        Raises:
            InputError: `SameName`, `NoFile`.
        """
        if self.folder is not None:
            if not self.folder.is_dir():
                raise InputError("NoFile", f"{self.folder} is not a folder.")
            found = {p.relative_to(self.folder).as_posix(): p for p in self.folder.rglob("*") if p.is_file()}
        else:
            found = {p.name: p for p in self.paths}
            if len(found) < len(self.paths):
                raise InputError("SameName", "two of its files have the same name. Rename one of them.")
        try:
            local_files = data_files(LocalFile(path, p.stat().st_size) for path, p in found.items())
        except FileNotFoundError as e:
            raise InputError("NoFile", f"{e.filename} does not exist.") from None
        return {f.path: found[f.path] for f in local_files}


def id_of(folder_name: str, batch_column: str, given: str) -> str:
    """The id of the batch: the given one, in which {name} is the id by the folder's name; by default that id.

    Args:
        batch_column: Of the Dataset; "": unknown, then any `<column>=<id>` is an id.

    Raises:
        InputError: `InvalidBatchId`.
    """
    column = batch_column or folder_name.partition("=")[0]
    by_name = batch_id_of_folder(column, folder_name) or folder_name
    return _valid(given.replace(NAME, by_name) if given else by_name)


def _valid(batch_id: str) -> str:
    if not 1 <= len(batch_id) <= MAX_BATCH_ID_LENGTH:
        raise InputError(
            "InvalidBatchId",
            f"the batch id {batch_id[:80]!r} has {len(batch_id)} characters, expected 1 to {MAX_BATCH_ID_LENGTH}. Name "
            "one with --batch.",
        )
    if not is_utf8(batch_id):
        raise InputError("InvalidBatchId", f"the batch id {batch_id[:80]!r} is not UTF-8. Name one with --batch.")
    return batch_id


def batches_of_folders(folders: Iterable[Path], batch_column: str, template: str) -> list[LocalBatch]:
    """Each folder is a batch.

    Raises:
        InputError: `InvalidBatchId`.
    """
    return [LocalBatch(id_of(f.name, batch_column, template), f) for f in folders]


def batches_in(root: Path, layout: BufferLayout, batch_column: str, template: str) -> tuple[list[LocalBatch], int]:
    """Each folder directly in a folder is a batch; for a buffer of files also each file.

    Returns:
        The batches by name, and the number of files that are none.

    Raises:
        InputError: `InvalidBatchId`.
    """
    entries = sorted(e for e in root.iterdir() if not e.name.startswith(_HIDDEN))
    found = batches_of_folders((e for e in entries if e.is_dir()), batch_column, template)
    files = [e for e in entries if e.is_file()]
    if layout is not BufferLayout.FILE:
        return found, len(files)
    for file in files:
        by_name = batch_id_of_file(file.name)
        found.append(LocalBatch(_valid(template.replace(NAME, by_name) if template else by_name), paths=(file,)))
    return found, 0


def batches_of_manifest(text: str, base: Path) -> list[LocalBatch]:
    """The batches of a manifest: CSV with the columns `batch` and `folder` or `file`, or JSON lines.

    Several lines of CSV with one batch and different files are one batch. In JSON, `files` is a list.

    Args:
        base: The folder of relative paths.

    Raises:
        InputError: `InvalidManifest`, `InvalidBatchId`.
    """
    folders: dict[str, Path] = {}
    files: dict[str, list[Path]] = {}
    lines = _json_lines(text) if text.lstrip().startswith("{") else _csv_lines(text)
    for number, line in lines:
        where = f"line {number} of the manifest"
        batch_id, folder, paths = line.get("batch"), line.get("folder"), _paths(line)
        if not isinstance(batch_id, str) or not batch_id:
            raise InputError("InvalidManifest", f"{where} has no batch. Write its id into the column `batch`.")
        if not isinstance(folder or "", str) or bool(folder) == bool(paths):
            raise InputError("InvalidManifest", f"{where}: name either a folder or files of the batch {batch_id!r}.")
        if batch_id in folders or (folder and batch_id in files):
            raise InputError("InvalidManifest", f"{where}: the batch {batch_id!r} has a folder and another line.")
        if folder:
            folders[_valid(batch_id)] = base / folder
        else:
            files.setdefault(_valid(batch_id), []).extend(base / p for p in paths)
    if not folders and not files:
        raise InputError("InvalidManifest", "the manifest has no batch.")
    return [
        *(LocalBatch(i, folder=f) for i, f in folders.items()),
        *(LocalBatch(i, paths=tuple(p)) for i, p in files.items()),
    ]


def _paths(line: Mapping[str, Any]) -> Sequence[str]:
    files = line.get("files") or ([line["file"]] if line.get("file") else [])
    return files if isinstance(files, list) and all(isinstance(f, str) and f for f in files) else ()


def _csv_lines(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    if "batch" not in (reader.fieldnames or ()):
        raise InputError(
            "InvalidManifest", "the first line of the manifest must name columns: batch,folder or batch,file."
        )
    for line in reader:
        yield reader.line_num, line


def _json_lines(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise InputError("InvalidManifest", f"line {number} of the manifest is not a JSON object.")
        yield number, document


def require_distinct(batches: Iterable[LocalBatch]) -> None:
    """Require that each batch has an id of its own.

    Raises:
        InputError: `DuplicateBatch`.
    """
    seen: set[str] = set()
    for batch in batches:
        if batch.batch_id in seen:
            raise InputError(
                "DuplicateBatch",
                f"two folders have the batch id {batch.batch_id!r}. Nothing was put. Write --batch with {NAME}, or a manifest.",
            )
        seen.add(batch.batch_id)
