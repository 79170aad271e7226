"""Where URIs point: schemes, buckets and paths, compared by whole path segments. Pure.

The only module that knows the spellings of `file:` and `s3:` URIs. One spelling may point to several places, depending on who
reads it: `a/../b` is literal in an object store and a step elsewhere, `%2e` may be decoded, `//` may be one slash or two. A
guard therefore asks `contains` or `overlap`, which hold if any reading does; permission to touch something asks
`surely_contains`, which holds only if every reading does. Symbolic links need the file system: `lethe.storage.surroundings`.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote


class Backend(StrEnum):
    """The kinds of object stores, each by the scheme that its URIs are compared by."""

    LOCAL = "file"
    S3 = "s3"
    GCS = "gs"
    AZURE = "abfss"


# Schemes that name the same place.
_SAME: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
_DECODED_AT_MOST: Final = 4  # times: `%252e` is `%2e` after one, `.` after two
_LOCALHOST: Final = "localhost"


class Place(NamedTuple):
    """`root`: `file`, or scheme and bucket; `names`: of the path."""

    root: str
    names: tuple[str, ...]


def scheme_of(uri: str) -> str:
    """In lower case, s3a and s3n as s3, abfs, wasb and wasbs as abfss; `file` for a plain path."""
    scheme, colon, _ = uri.partition(":")
    scheme = scheme.lower()
    if not colon or not scheme or "/" in scheme:
        return "file"
    return _SAME.get(scheme, scheme)


def backend_of(uri: str) -> Backend | None:
    """The kind of store that a URI points to. None: one that Lethe does not know."""
    scheme = scheme_of(uri)
    return Backend(scheme) if scheme in tuple(Backend) else None


def bucket_and_key(uri: str) -> tuple[str, str]:
    """The bucket (or container) and the key of the object that a URI names, to the letter; local files have neither."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def is_local(uri: str) -> bool:
    """Whether it names a file or folder of the machine that reads it."""
    return scheme_of(uri) == Backend.LOCAL


def is_s3(uri: str) -> bool:
    return scheme_of(uri) == Backend.S3


def local_path(uri: str) -> str:
    """The path of a `file:` URI or a plain path, to the letter: `#`, `?` and `%` are part of file names here."""
    if uri[:5].lower() != "file:":
        return uri
    return "/" + uri[5:].lstrip("/")


def is_root(uri: str) -> bool:
    """Whether a URI names no bucket and no folder: `/`, `file:/`, `s3://`, or nothing."""
    return uri.rstrip("/").partition(":")[2] == "" if ":" in uri else not uri.strip("/")


def names_place(text: str) -> bool:
    """Whether a text is an absolute path or a URI of a store that Lethe knows, rather than a name such as that of a warehouse."""
    return text.startswith("/") or (":" in text and backend_of(text) is not None)


def as_file_uri(uri: str) -> str:
    """A `file:` URI in the spelling `file:///path`; another URI or a plain path as it is."""
    return f"file://{local_path(uri)}" if uri[:5].lower() == "file:" else uri


def place(uri: str) -> Place:
    """The literal reading, equal for URIs that differ only in `file:/` or `file:///`, s3a or s3, and repeated slashes."""
    if is_local(uri):
        return Place("file", _names(local_path(uri)))
    bucket, _, path = uri.partition(":")[2].lstrip("/").partition("/")
    scheme = scheme_of(uri)
    if scheme == Backend.AZURE:
        bucket = bucket.replace(".blob.", ".dfs.", 1)  # two endpoints of one account
    return Place(f"{scheme}://{bucket}", _names(path))


def contains(outer: str, inner: str) -> bool:
    """Whether `inner` may be `outer` or lie below it, in any reading of the two."""
    inners = _readings(inner)
    return any(_below(o, i) for o in _readings(outer) for i in inners)


def surely_contains(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` or lies below it in every reading of `inner`, as `outer` is written."""
    literal = _folded(place(outer))
    return all(_below(literal, i) for i in _readings(inner))


def overlap(a: str, b: str) -> bool:
    """Whether one of the two may contain the other."""
    return contains(a, b) or contains(b, a)


def parents(uri: str) -> tuple[str, ...]:
    """The URIs of the folders above, the nearest first, the bucket or `/` last; those of every reading, each once."""
    found: list[str] = []
    for reading in sorted(_readings(uri), key=lambda p: -len(p.names)):
        found += (spelt(Place(reading.root, reading.names[:n])) for n in range(len(reading.names) - 1, -1, -1))
    return tuple(dict.fromkeys(found))


def spellings(uri: str) -> tuple[str, ...]:
    """A URI for each place that this one may be taken for."""
    return tuple(dict.fromkeys(map(spelt, _readings(uri))))


def spelt(at: Place) -> str:
    """The shortest URI of a place."""
    if at.root == "file":
        return "file:///" + "/".join(at.names)
    return "/".join((at.root, *at.names))


def without_values(path: str) -> str:
    """A path that tells nothing of rows: folders that are named after the value of a partition lose it."""
    head, slash, name = path.rpartition("/")
    return "/".join(f"{f.partition('=')[0]}=*" if "=" in f else f for f in head.split("/")) + slash + name


@lru_cache(maxsize=4096)
def _readings(uri: str) -> tuple[Place, ...]:
    """All places that a URI may be taken for, the literal one first."""
    texts = [uri]
    for _ in range(_DECODED_AT_MOST):
        if (decoded := unquote(texts[-1])) == texts[-1]:
            break
        texts.append(decoded)
    found = [_folded(place(t)) for t in texts]
    # Iceberg's S3FileIO cuts a location at a query or a fragment.
    found += [_folded(place(cut)) for t in texts if is_s3(t) and (cut := t.partition("?")[0].partition("#")[0]) != t]
    found += [Place("file", p.names[1:]) for p in found if p.root == "file" and p.names[:1] == (_LOCALHOST,)]
    found += [_without_dots(p) for p in found]
    return tuple(dict.fromkeys(found))


def _names(path: str) -> tuple[str, ...]:
    return tuple(p for p in path.split("/") if p)


def _folded(at: Place) -> Place:
    """Schemes and hosts do not depend on case, nor does any bucket that S3 lets one make today."""
    return Place(at.root.lower(), at.names)


def _without_dots(at: Place) -> Place:
    names: list[str] = []
    for name in at.names:
        if name == "..":
            names = names[:-1]
        elif name != ".":
            names.append(name)
    return Place(at.root, tuple(names))


def _below(outer: Place, inner: Place) -> bool:
    return outer.root == inner.root and inner.names[: len(outer.names)] == outer.names
