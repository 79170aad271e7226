"""What requests do to objects: names, versions, merge patches, subresources, owners. I/O: the store.

As the Kubernetes API server does it, as far as Lethe and kubectl need it.
"""

import json
import secrets
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from lethe_operator.kube import JOBS, PODS

from lethe_local.api import errors
from lethe_local.api.kinds import Kind, kinds
from lethe_local.api.merge import merged
from lethe_local.api.selectors import matches
from lethe_local.api.store import ChangeType, Json, Store, Transaction
from lethe_local.schema.admission import Invalid, Undecodable, admitted

STATUS: Final = "status"
# A delete of these only sets deletionTimestamp. What runs them removes them once their process has ended.
_ENDED_BY_THE_NODE: Final = (PODS, JOBS)
_FIXED: Final = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")


class Objects:
    """The objects of all kinds. One per store, shared by threads. All methods raise ApiError."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kinds = {(k.resource.api, k.resource.plural): k for k in kinds()}
        self._by_key = {k.key: k for k in self.kinds.values()}

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        with self.store.transaction() as t:
            return _existing(t, kind, namespace, name)

    def list(self, kind: Kind, namespace: str, selector: str = "") -> tuple[Sequence[Json], int]:
        """The objects of a kind, and the version of the list."""
        with self.store.transaction() as t:
            return [
                o for o in t.list(kind.key, namespace) if matches(selector, o["metadata"].get("labels") or {})
            ], t.version()

    def create(self, kind: Kind, namespace: str, document: Json, strict: bool = False, dry_run: bool = False) -> Json:
        metadata = dict(document.get("metadata") or {})
        if metadata.get("namespace", namespace) != namespace:
            raise errors.bad_request("the namespace of the object does not match the namespace of the request")
        if "generateName" in metadata and not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName']}{secrets.token_hex(3)}"
        metadata |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": _now(),
            **({"namespace": namespace} if namespace else {}),
        }
        if kind.definition is not None:
            metadata["generation"] = 1
        of_kind = {"apiVersion": kind.api_version, "kind": kind.resource.name}
        if {k: document.get(k, v) for k, v in of_kind.items()} != of_kind:
            wanted = f"{document.get('apiVersion')} {document.get('kind')}"
            raise errors.bad_request(f"the object is a {wanted}; expected {kind.api_version} {kind.resource.name}")
        new = {**document, **of_kind, "metadata": metadata}
        if kind.definition is not None:
            new.pop(STATUS, None)
        new = _checked(kind, new, None, strict)
        with self.store.transaction() as t:
            if t.get(kind.key, namespace, metadata["name"]) is not None:
                raise errors.already_exists(kind.key, metadata["name"])
            return new if dry_run else t.put(kind.key, new, ChangeType.ADDED)

    def patch(
        self, kind: Kind, place: tuple[str, str, str], patch: Json, strict: bool = False, dry_run: bool = False
    ) -> Json:
        """Apply a merge patch.

        Args:
            place: Namespace, name and subresource.
        """
        namespace, name, subresource = place
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            return self._replaced(t, kind, old, (merged(old, patch), subresource), strict, dry_run)

    def replace(self, kind: Kind, place: tuple[str, str, str], document: Json, strict: bool = False) -> Json:
        """Replace an object.

        Args:
            place: Namespace, name and subresource.
        """
        namespace, name, subresource = place
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            return self._replaced(t, kind, old, (document, subresource), strict, dry_run=False)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str = "", dry_run: bool = False) -> Json:
        """Delete an object and what it owns.

        Args:
            uid: Delete only the object with this UID; "": any.
        """
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            if uid and old["metadata"]["uid"] != uid:
                raise errors.conflict(
                    kind.key, name, f"the UID in the precondition ({uid}) does not match the UID of the object"
                )
            if not dry_run:
                self._delete(t, kind, old)
            return old

    def remove(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Remove an object whose process has ended, and what it owns. One that does not exist is no error."""
        with self.store.transaction() as t:
            old = t.get(kind.key, namespace, name)
            if old is not None and old["metadata"]["uid"] == uid:
                self._remove(t, kind, old)

    def _replaced(
        self, t: Transaction, kind: Kind, old: Json, wanted: tuple[Json, str], strict: bool, dry_run: bool
    ) -> Json:
        document, subresource = wanted
        metadata = document.get("metadata") or {}
        name, version = old["metadata"]["name"], metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise errors.conflict(kind.key, name, why)
        kept = {k: old["metadata"][k] for k in _FIXED if k in old["metadata"]}
        if subresource == STATUS:
            new = {**old, STATUS: document.get(STATUS)}
        else:
            of_kind = {"apiVersion": old["apiVersion"], "kind": old["kind"]}
            new = {**document, **of_kind, "metadata": {**metadata, **kept}}
            if kind.definition is not None:
                new.pop(STATUS, None)
                new |= {STATUS: old[STATUS]} if STATUS in old else {}
        new = _checked(kind, {k: v for k, v in new.items() if v is not None}, old, strict)
        if kind.definition is not None and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return old if new == old else new if dry_run else t.put(kind.key, new, ChangeType.MODIFIED)

    def _delete(self, t: Transaction, kind: Kind, old: Json) -> None:
        if kind.resource not in _ENDED_BY_THE_NODE:
            self._remove(t, kind, old)
        elif "deletionTimestamp" not in old["metadata"]:
            metadata = {**old["metadata"], "deletionTimestamp": _now(), "deletionGracePeriodSeconds": 30}
            t.put(kind.key, {**old, "metadata": metadata}, ChangeType.MODIFIED)

    def _remove(self, t: Transaction, kind: Kind, old: Json) -> None:
        t.remove(kind.key, old)
        for key, owned in t.owned_by(old["metadata"]["uid"]):
            self._delete(t, self._by_key[key], owned)


def _existing(t: Transaction, kind: Kind, namespace: str, name: str) -> Json:
    found = t.get(kind.key, namespace, name)
    if found is None:
        raise errors.not_found(kind.key, name)
    return found


def _checked(kind: Kind, new: Json, old: Json | None, strict: bool) -> Json:
    if kind.definition is None:
        return json.loads(json.dumps(new))
    try:
        return admitted(kind.definition, new, old, strict)
    except Invalid as e:
        raise errors.invalid(str(e)) from None
    except Undecodable as e:
        raise errors.bad_request(str(e)) from None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
