"""Compares URIs by scheme, bucket and whole path segments. Pure.

Only this module knows the spellings of `file:` and `s3:` URIs. A URI may point to several places, depending on the software that
reads it: `a/../b` is a literal key in an object store and a relative path elsewhere, `%2e` may be decoded, `//` may be one slash
or two. These interpretations are called readings. Checks that forbid something use `contains` or `overlap`, which are true if any
reading makes them true. Checks that permit something use `surely_contains`, which is true only if it is true for every reading.
`lethe.ingest.shared_folders` resolves symbolic links, which requires the file system.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

_SAME: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
"""Aliases of schemes."""
_DECODED_AT_MOST: Final = 4
"""How many times a URI is decoded: decoding turns `%252e` into `%2e`, and decoding again into `.`."""
_LOCALHOST: Final = "localhost"
# What stores accept at most.
NAME_BYTES: Final = 255  # of the name of a file or folder, on Linux and macOS
KEY_BYTES: Final = 1024
"""The longest key of an object in S3, Google Cloud Storage and Azure."""


class Backend(StrEnum):
    """The kinds of object stores. Values are the schemes that `scheme_of` returns."""

    LOCAL = "file"
    S3 = "s3"
    GCS = "gs"
    AZURE = "abfss"


_BACKENDS: Final = {backend.value: backend for backend in Backend}


class Place(NamedTuple):
    """The place that one reading of a URI points to."""

    root: str
    """`file`, or scheme and bucket."""
    names: tuple[str, ...]
    """The segments of the path."""

    def is_in(self, folder: "Place") -> bool:
        """Whether the place is the folder, or below it."""
        return self.root == folder.root and self.names[: len(folder.names)] == folder.names


def scheme_of(uri: str) -> str:
    """The scheme in lower case; for s3a and s3n it is s3, for abfs, wasb and wasbs abfss, and for a plain path `file`."""
    scheme, colon, _ = uri.partition(":")
    scheme = scheme.lower()
    if not colon or not scheme or "/" in scheme:
        return "file"
    return _SAME.get(scheme, scheme)


def backend_of(uri: str) -> Backend | None:
    """The kind of store that a URI points to. None: Lethe does not support it."""
    return _BACKENDS.get(scheme_of(uri))


def bucket_and_key(uri: str) -> tuple[str, str]:
    """The bucket (or container) and the key of a URI, not decoded. Not for local files."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def bucket_and_prefix(folder: str) -> tuple[str, str]:
    """The bucket, and what the keys of all objects below a folder begin with; "": the folder is the whole bucket."""
    bucket, key = bucket_and_key(folder)
    inner = key.strip("/")
    return bucket, f"{inner}/" if inner else ""


def is_local(uri: str) -> bool:
    """Whether a URI names a file or folder of the local machine."""
    return scheme_of(uri) == Backend.LOCAL


def is_s3(uri: str) -> bool:
    """Whether a URI has the scheme s3, s3a or s3n, in any case."""
    return scheme_of(uri) == Backend.S3


def local_path(uri: str) -> str:
    """The path of a `file:` URI or a plain path, not decoded: `#`, `?` and `%` are part of file names here."""
    if uri[:5].lower() != "file:":
        return uri
    return "/" + uri[5:].lstrip("/")


def is_root(uri: str) -> bool:
    """Whether a URI names neither a bucket nor a folder: `/`, `file:/`, `s3://`, or an empty text."""
    return uri.rstrip("/").partition(":")[2] == "" if ":" in uri else not uri.strip("/")


def names_place(text: str) -> bool:
    """Whether a text is an absolute path or a URI of a supported store. Otherwise it is a name, for example of a warehouse."""
    return text.startswith("/") or (":" in text and backend_of(text) is not None)


def as_file_uri(uri: str) -> str:
    """A `file:` URI in the spelling `file:///path`. Other URIs and plain paths stay unchanged."""
    return f"file://{local_path(uri)}" if uri[:5].lower() == "file:" else uri


def place(uri: str) -> Place:
    """The literal reading of a URI.

    It is equal for URIs that differ only in `file:/` or `file:///`, s3a or s3, or repeated slashes.
    """
    if is_local(uri):
        return Place("file", _names(local_path(uri)))
    bucket, _, path = uri.partition(":")[2].lstrip("/").partition("/")
    scheme = scheme_of(uri)
    if scheme == Backend.AZURE:
        bucket = bucket.replace(".blob.", ".dfs.", 1)  # two endpoints of one account
    return Place(f"{scheme}://{bucket}", _names(path))


def _names(path: str) -> tuple[str, ...]:
    return tuple(p for p in path.split("/") if p)


def contains(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` or is below it, in any reading of the two."""
    inners = _readings(inner)
    return any(i.is_in(o) for o in _readings(outer) for i in inners)


def surely_contains(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` or is below it, in every reading of `inner` and the literal reading of `outer`."""
    literal = _folded(place(outer))
    return all(i.is_in(literal) for i in _readings(inner))


def overlap(a: str, b: str) -> bool:
    """Whether one of the two contains the other, in any reading."""
    return contains(a, b) or contains(b, a)


def index_keys(uri: str) -> frozenset[str]:
    """The keys of a URI in an index for `overlap`.

    Two URIs overlap if and only if the `index_keys` of one and the `overlap_keys` of the other have a key in common.
    """
    readings = _readings(uri)
    return frozenset(
        (
            *(f"at {spelt(r)}" for r in readings),
            *(f"below {spelt(Place(r.root, r.names[:n]))}" for r in readings for n in range(len(r.names) + 1)),
        )
    )


def overlap_keys(uri: str) -> frozenset[str]:
    """The keys under which an index finds the URIs that overlap this one, see `index_keys`."""
    readings = _readings(uri)
    return frozenset(
        (
            *(f"below {spelt(r)}" for r in readings),
            *(f"at {spelt(Place(r.root, r.names[:n]))}" for r in readings for n in range(len(r.names))),
        )
    )


def parents(uri: str) -> tuple[str, ...]:
    """The URIs of the folders above a URI, in every reading, without duplicates.

    Of each reading, the nearest folder is first and the bucket or `/` last.
    """
    folders: list[str] = []
    for reading in sorted(_readings(uri), key=lambda p: -len(p.names)):
        folders += (spelt(Place(reading.root, reading.names[:n])) for n in range(len(reading.names) - 1, -1, -1))
    return tuple(dict.fromkeys(folders))


def spellings(uri: str) -> tuple[str, ...]:
    """One URI for each reading of a URI, the literal one first."""
    return tuple(dict.fromkeys(map(spelt, _readings(uri))))


def spelt(location: Place) -> str:
    """The shortest URI of a place."""
    if location.root == "file":
        return "file:///" + "/".join(location.names)
    return "/".join((location.root, *location.names))


def without_values(path: str) -> str:
    """A path without partition values: a folder `name=value` becomes `name=*`. So the path reveals nothing about rows.

    Ledgers and statuses are UTF-8, so other bytes in the path of a local file are escaped.
    """
    head, slash, name = (path if is_utf8(path) else path.encode("utf-8", "backslashreplace").decode()).rpartition("/")
    return "/".join(f"{f.partition('=')[0]}=*" if "=" in f else f for f in head.split("/")) + slash + name


def is_utf8(path: str) -> bool:
    """Whether a path can be written as UTF-8. Names of local files may have other bytes, in Python halves of surrogate pairs."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=4096)
def _readings(uri: str) -> tuple[Place, ...]:
    """The places of all readings of a URI, the literal one first."""
    texts = [uri]
    for _ in range(_DECODED_AT_MOST):
        if (decoded := unquote(texts[-1])) == texts[-1]:
            break
        texts.append(decoded)
    readings = [_folded(place(t)) for t in texts]
    # Iceberg's S3FileIO drops the query and the fragment of a location.
    readings += [_folded(place(cut)) for t in texts if is_s3(t) and (cut := t.partition("?")[0].partition("#")[0]) != t]
    readings += [Place("file", p.names[1:]) for p in readings if p.root == "file" and p.names[:1] == (_LOCALHOST,)]
    readings += [_without_dots(p) for p in readings]
    return tuple(dict.fromkeys(readings))


def _folded(location: Place) -> Place:
    """The root in lower case. Schemes and hosts are case-insensitive, and S3 allows only lower case in names of new buckets."""
    return Place(location.root.lower(), location.names)


def _without_dots(location: Place) -> Place:
    names: list[str] = []
    for name in location.names:
        if name == "..":
            names = names[:-1]
        elif name != ".":
            names.append(name)
    return Place(location.root, tuple(names))
