"""What surrounds a place in a store: tables at it and above it, and the claim in it. I/O.

Bounded: of each folder above, one page of names is looked at. What the credentials may not list is passed over; what a store
fails on is raised.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from botocore.exceptions import ClientError

from lethe.base import names
from lethe.base.errors import InputError
from lethe.guards import claim as claims
from lethe.guards import rejections as guards
from lethe.guards.claim import Claim, Holder, Owner, holder_of
from lethe.guards.rejections import Around
from lethe.guards.table_files import is_table_metadata
from lethe.storage.exclusive_folder import open_folder
from lethe.storage.s3 import s3_client
from lethe.uri import is_local, is_s3, local_path, parents, spellings

PLACE_IN_TABLE: Final = "PlaceInTable"
_NAMES_AT_MOST: Final = 1000  # of one folder
_LOOKS_AT_ONCE: Final = 8
_METADATA: Final = "metadata"
# What a store says of a place that is not there or that these credentials may not list.
_NOT_SEEN: Final = frozenset({"NoSuchBucket", "NoSuchKey", "404", "AccessDenied", "403", "InvalidBucketName"})


def around(uri: str, properties: Mapping[str, str]) -> Around:
    """What is at a buffer and above it. Raises: what the store raises."""
    return Around(tables_around(uri, properties), read_claim(uri, properties))


def tables_around(uri: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """URIs of the folders at a place and above it, in any reading of the URI, that hold metadata of an Iceberg table."""
    if not is_local(uri) and not is_s3(uri):
        return ()
    read = [uri]
    if is_local(uri):
        read += [f"file://{os.path.realpath(local_path(s))}" for s in spellings(uri)]
    places = tuple(dict.fromkeys(p for r in read for p in (*spellings(r), *parents(r))))
    listed = _Local() if is_local(uri) else _S3(properties)
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lethe-around") as pool:
        found = list(pool.map(partial(_holds_table, listed), places))
    return tuple(place for place, holds in zip(places, found, strict=True) if holds)


def check_place(what: str, uri: str, around: Callable[[str], tuple[str, ...]]) -> None:
    """Make sure that a replacement or a list does not lie in a table.

    Args:
        what: The subject of the message.
        around: `tables_around` of a folder, remembered or not.
    Raises: InputError (PlaceInTable), what the store raises.
    """
    above = uri.rstrip("/").rpartition("/")[0]
    inside = guards.found_in(what, uri, around(above)) if above.strip("/") not in ("", "file:", "s3:") else None
    if inside is not None:
        raise InputError(PLACE_IN_TABLE, inside)


def read_claim(uri: str, properties: Mapping[str, str]) -> Claim | None:
    """The claim of a buffer, None when it has none."""
    try:
        content = open_folder(uri, properties).read(names.CLAIM_FILE)
    except ClientError as e:
        if _code(e) == "NoSuchBucket":
            return None
        raise
    return claims.parse(content) if content is not None else None


@dataclass(frozen=True)
class Adopted:
    """Objects of a buffer that are no batches and may lie there."""

    count: int = 0
    names: tuple[str, ...] = ()  # the first of them


def take_claim(
    uri: str, properties: Mapping[str, str], owner: Owner, layout: str, adopted: Adopted = Adopted()
) -> Claim:
    """Claim a buffer unless somebody has, and say whose it is now: of any number that try at once, one Dataset gets it. The
    buffer must have been looked at before.

    Raises: InputError (UnsupportedStorage), TransientError, what the store raises.
    """
    folder = open_folder(uri, properties)
    content = claims.document(owner, layout, adopted.names, adopted.count, datetime.now(UTC))
    for _ in range(3):
        there = folder.read(names.CLAIM_FILE)
        if there is None:
            if folder.create(names.CLAIM_FILE, content):
                return Claim(owner)
            continue  # somebody was faster
        claim = claims.parse(there)
        if holder_of(claim, owner) is Holder.TAKEN_OVER:
            folder.replace(names.CLAIM_FILE, content)
            return Claim(owner)
        return claim
    return Claim(None)  # it comes and goes: whoever does that owns it


def _holds_table(listed: "_Local | _S3", place: str) -> bool:
    """Whether metadata of a table lies right in a folder or in its folder `metadata`."""
    own = any(is_table_metadata(name) for name in listed.names(place, ""))
    return own or any(
        is_table_metadata(name)
        # Beside the first page those that sort last, and that every table in a mere folder has.
        for prefix in ("", "snap-", "v")
        for name in listed.names(f"{place.rstrip('/')}/{_METADATA}", prefix)
    )


class _Local:
    def names(self, uri: str, prefix: str) -> Iterator[str]:
        try:
            with os.scandir(local_path(uri)) as entries:
                yield from (e.name for e in islice(entries, 20 * _NAMES_AT_MOST) if e.name.startswith(prefix))
        except OSError:
            return


class _S3:
    def __init__(self, properties: Mapping[str, str]) -> None:
        self._s3: Any = s3_client(properties)

    def names(self, uri: str, prefix: str) -> Iterator[str]:
        bucket, _, path = uri.partition("://")[2].partition("/")
        folder = f"{path}/" if path else ""
        try:
            page = self._s3.list_objects_v2(
                Bucket=bucket, Prefix=folder + prefix, Delimiter="/", MaxKeys=_NAMES_AT_MOST
            )
        except ClientError as e:
            if _code(e) in _NOT_SEEN:
                return
            raise
        yield from (o["Key"].rpartition("/")[2] for o in page.get("Contents", ()))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
