"""Whether one place in a store lies within another. Pure."""

from urllib.parse import urlsplit

_SAME_SCHEME = {"": "file", "s3a": "s3", "s3n": "s3"}


def contains(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` or lies below it; `file:/x` and `file:///x` are one place, s3a is s3."""
    (outer_root, outer_path), (inner_root, inner_path) = _parts(outer), _parts(inner)
    return outer_root == inner_root and inner_path[: len(outer_path)] == outer_path


def overlap(a: str, b: str) -> bool:
    return contains(a, b) or contains(b, a)


def _parts(uri: str) -> tuple[str, list[str]]:
    u = urlsplit(uri)
    return f"{_SAME_SCHEME.get(u.scheme, u.scheme)}://{u.netloc}", [p for p in u.path.split("/") if p]
