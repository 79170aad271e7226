"""Places in a store, as URIs: whether one lies within another. Pure."""


def local_path(uri: str) -> str:
    """The path of a `file:` URI or a plain path, to the letter: `#`, `?` and `%` are part of file names here."""
    if not uri.startswith("file:"):
        return uri
    return "/" + uri.removeprefix("file:").lstrip("/")


def contains(outer: str, inner: str) -> bool:
    """Whether the place `inner` is `outer` or lies below it; `file:/x` and `file:///x` are one place, s3a is s3.

    Dots in a path (`a/../b`) are taken both ways: as steps, and to the letter as an object store does.
    """
    as_written = _below(place(outer), place(inner))
    return as_written or _below(_normal(place(outer)), _normal(place(inner)))


def overlap(a: str, b: str) -> bool:
    """Whether one of the two contains the other."""
    return contains(a, b) or contains(b, a)


def without_values(path: str) -> str:
    """A path that tells nothing of rows: folders that are named after the value of a partition lose it."""
    head, slash, name = path.rpartition("/")
    return "/".join(f"{f.partition('=')[0]}=*" if "=" in f else f for f in head.split("/")) + slash + name


def place(uri: str) -> tuple[str, tuple[str, ...]]:
    """Scheme and bucket, and the names of the path: equal for URIs that name one place."""
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme in ("", "file") or "/" in scheme:
        return "file", tuple(p for p in local_path(uri).split("/") if p)
    bucket, _, path = rest.lstrip("/").partition("/")
    family = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    return f"{family}://{bucket}", tuple(p for p in path.split("/") if p)


def _normal(place: tuple[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []
    for name in place[1]:
        if name == "..":
            names = names[:-1]
        elif name != ".":
            names.append(name)
    return place[0], tuple(names)


def _below(outer: tuple[str, tuple[str, ...]], inner: tuple[str, tuple[str, ...]]) -> bool:
    return outer[0] == inner[0] and inner[1][: len(outer[1])] == outer[1]
