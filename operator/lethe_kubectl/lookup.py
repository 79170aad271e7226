"""Finds the resource that a user names. The choice is pure; the reading is I/O."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lethe.base.errors import InputError
from lethe_operator.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES, NotFound, ResourceKind

from lethe_kubectl.target import Connection

Document = dict[str, Any]
KINDS: Final[Mapping[str, ResourceKind]] = {
    "dataset": DATASETS, "restatement": RESTATEMENTS, "vacuumpolicy": VACUUM_POLICIES,
}  # fmt: skip
_OTHER_NAMES: Final = {
    "datasets": "dataset", "dset": "dataset", "restatements": "restatement", "rst": "restatement",
    "vacuumpolicies": "vacuumpolicy", "vacpol": "vacuumpolicy",
}  # fmt: skip


def kind_and_name(words: Sequence[str]) -> tuple[str, str]:
    """KIND/NAME, KIND NAME or NAME; the kind is "" in the last case. Raises: InputError (`UnknownKind`)."""
    kind, _, name = words[0].rpartition("/") if len(words) == 1 else (words[0], "", words[1])
    if not kind:
        return "", name
    wanted = kind.lower().removesuffix(".lethe.dev")
    found = _OTHER_NAMES.get(wanted, wanted)
    if found not in KINDS:
        near = difflib.get_close_matches(found, KINDS, 1)
        raise InputError("UnknownKind", f"{kind} is no kind of Lethe. Use {near[0] if near else ', '.join(KINDS)}.")
    return found, name


def find(at: Connection, words: Sequence[str]) -> tuple[str, Document]:
    """The kind and the resource. Raises: InputError (`UnknownKind`, `UnknownName`, `AmbiguousName`)."""
    kind, name = kind_and_name(words)
    if kind:
        return kind, one(at, kind, name)
    every = {k: {str(d["metadata"]["name"]): d for d in at.kube.list(r, at.namespace)} for k, r in KINDS.items()}
    found = [k for k, documents in every.items() if name in documents]
    if len(found) > 1:
        known = " or ".join(f"{k}/{name}" for k in found)
        raise InputError(
            "AmbiguousName", f"namespace {at.namespace} has several resources named {name}. Write {known}."
        )
    if not found:
        raise unknown(name, [n for documents in every.values() for n in documents], "resource", at.namespace)
    return found[0], every[found[0]][name]


def one(at: Connection, kind: str, name: str) -> Document:
    """A resource. Raises: InputError (`UnknownName`)."""
    try:
        return at.kube.get(KINDS[kind], at.namespace, name)
    except NotFound:
        known = [str(d["metadata"]["name"]) for d in at.kube.list(KINDS[kind], at.namespace)]
        raise unknown(name, known, KINDS[kind].name, at.namespace) from None


def unknown(name: str, known: Sequence[str], what: str, namespace: str) -> InputError:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Do you mean {near[0]}?" if near else f"There are {', '.join(sorted(known)[:10]) or 'none'}."
    return InputError("UnknownName", f"namespace {namespace} has no {what} {name[:100]}. {hint}")
