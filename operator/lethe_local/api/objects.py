"""What requests do to objects: names, versions, patches, subresources, owners, label selectors, errors. I/O: the store.

As the Kubernetes API server does it, as far as Lethe and kubectl need it. The kinds are those of Lethe's definitions, and the
few of Kubernetes that the operator uses.
"""

import base64
import json
import re
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml
from lethe.kube import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    ResourceKind,
)

from lethe_local.admission import Definition, NotAdmitted, Undecodable, admitted, definition_of, problem_of_mark
from lethe_local.api.patches import merged
from lethe_local.api.store import ChangeType, Json, LocalApiStore, Transaction


class StatusError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def document(self) -> dict[str, Any]:
        """The body of the answer: an object of kind Status."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }


def not_found(kind: str, name: str) -> StatusError:
    """404: the kind has no object of this name."""
    return StatusError(404, "NotFound", f'{kind} "{name}" not found')


def already_exists(kind: str, name: str) -> StatusError:
    """409: a create names an object that exists."""
    return StatusError(409, "AlreadyExists", f'{kind} "{name}" already exists')


def conflict(kind: str, name: str, why: str) -> StatusError:
    """409: the object has another UID or version than the request requires; `why` completes the message."""
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}')


def expired(version: int) -> StatusError:
    """410: changes after this version are gone, so a watch that starts there must list again."""
    return StatusError(410, "Expired", f"too old resource version: {version}")


def bad_request(message: str) -> StatusError:
    """400: the request cannot be read, or its parts contradict each other."""
    return StatusError(400, "BadRequest", message)


def invalid(message: str) -> StatusError:
    """422: the schema or the rules of the kind do not admit the document."""
    return StatusError(422, "Invalid", message)


def unavailable(message: str) -> StatusError:
    """503: the state cannot be written now, for example because the disk is full."""
    return StatusError(503, "ServiceUnavailable", message)


SECRETS: Final = ResourceKind("/api/v1", "secrets", "Secret")
_OF_KUBERNETES: Final = (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)


@dataclass(frozen=True)
class ApiKind:
    """A kind of objects."""

    resource: ResourceKind
    definition: Definition | None = None
    """None: its documents are not checked."""

    @property
    def api_version(self) -> str:
        """Group and version as in the field apiVersion; of the core group only the version, `v1`."""
        return self.resource.api.removeprefix("/apis/").removeprefix("/api/")

    @property
    def namespaced(self) -> bool:
        """Whether its objects are in namespaces. All are, except for the Namespaces themselves."""
        return self.resource != NAMESPACES

    @property
    def key(self) -> str:
        """The name of the collection in messages and in the store: datasets.lethe.dev."""
        group, _, version = self.api_version.rpartition("/")
        return f"{self.resource.plural}.{group}" if group and version else self.resource.plural


@cache
def kinds() -> tuple[ApiKind, ...]:
    """All kinds."""
    return (*(ApiKind(r) for r in _OF_KUBERNETES), *_of_lethe())


def _of_lethe() -> Iterator[ApiKind]:
    for path in sorted(files("lethe_local").joinpath("crds").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".yaml"):
            definition = definition_of(
                yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            )
            api = f"/apis/{definition.group}/{definition.version}"
            yield ApiKind(ResourceKind(api, definition.plural, definition.kind), definition)


_SET: Final = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_COMMA: Final = re.compile(r",(?![^(]*\))")


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels match all parts of a selector. An empty one matches everything."""
    return all(_matches(part, labels) for part in _parts(selector))


def _parts(selector: str) -> Iterator[str]:
    return (p.strip() for p in _COMMA.split(selector) if p.strip())


def _matches(part: str, labels: Mapping[str, str]) -> bool:
    if match := _SET.fullmatch(part):
        key, operator, values = match.groups()
        is_in = key in labels and labels[key] in {v.strip() for v in values.split(",")}
        return is_in if operator == "in" else not is_in
    if "!=" in part:
        key, _, value = part.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in part:
        key, _, value = part.partition("=")
        return labels.get(key.strip()) == value.lstrip("=").strip()
    return part[1:].strip() not in labels if part.startswith("!") else part in labels


_DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
STATUS: Final = "status"
# A delete of these only sets deletionTimestamp. What runs them removes them once their process has ended.
_ENDED_BY_THE_NODE: Final = (PODS, JOBS)
_IMMUTABLE: Final = ("immutable", "data", "stringData", "binaryData")
"""Of Secrets and ConfigMaps with `immutable: true`."""
_OF_THE_SERVER: Final = (
    "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
_FIXED: Final = ("name", "namespace", *_OF_THE_SERVER)


class LocalObjects:
    """The objects of all kinds. One per store, shared by threads. All methods raise StatusError."""

    def __init__(self, store: LocalApiStore) -> None:
        self.store = store
        self.kinds = {(k.resource.api, k.resource.plural): k for k in kinds()}
        self._by_key = {k.key: k for k in self.kinds.values()}

    def get(self, kind: ApiKind, namespace: str, name: str) -> Json:
        """The object as the last request left it.

        Raises:
            StatusError: 404: there is no such object.
        """
        with self.store.transaction() as t:
            return _existing(t, kind, namespace, name)

    def list(self, kind: ApiKind, namespace: str, selector: str = "") -> tuple[Sequence[Json], int]:
        """The objects of a kind, and the version of the list."""
        with self.store.transaction() as t:
            return [
                o for o in t.list(kind.key, namespace) if matches(selector, o["metadata"].get("labels") or {})
            ], t.version()

    def create(
        self, kind: ApiKind, namespace: str, document: Json, strict: bool = False, dry_run: bool = False
    ) -> Json:
        """Store an object with a new UID, and return it. A dry run stores nothing. Lethe's kinds lose their `status`.

        Raises:
            StatusError: The name is taken, or the document is invalid, or of another kind or namespace.
        """
        _require_content(kind, document)
        metadata = {k: v for k, v in _metadata_of(document).items() if k not in _OF_THE_SERVER}
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the object does not match the namespace of the request")
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
            raise bad_request(f"the object is a {wanted}; expected {kind.api_version} {kind.resource.name}")
        new = {**document, **of_kind, "metadata": metadata}
        if kind.definition is not None:
            new.pop(STATUS, None)
        new = _checked(kind, new, None, strict)
        with self.store.transaction() as t:
            if t.get(kind.key, namespace, metadata["name"]) is not None:
                raise already_exists(kind.key, metadata["name"])
            return new if dry_run else t.put(kind.key, new, ChangeType.ADDED)

    def patch(
        self, kind: ApiKind, place: tuple[str, str, str], patch: Json, strict: bool = False, dry_run: bool = False
    ) -> Json:
        """Apply a merge patch.

        Args:
            place: Namespace, name and subresource.
        """
        namespace, name, subresource = place
        _metadata_of(patch)
        _require_content(kind, patch)
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            return self._replaced(t, kind, old, (merged(old, patch), subresource), strict, dry_run)

    def replace(
        self, kind: ApiKind, place: tuple[str, str, str], document: Json, strict: bool = False, dry_run: bool = False
    ) -> Json:
        """Replace an object. A dry run stores nothing.

        Args:
            place: Namespace, name and subresource.
        """
        namespace, name, subresource = place
        _metadata_of(document)
        _require_content(kind, document)
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            return self._replaced(t, kind, old, (document, subresource), strict, dry_run)

    def delete(self, kind: ApiKind, namespace: str, name: str, uid: str = "", dry_run: bool = False) -> Json:
        """Delete an object and what it owns.

        Args:
            uid: Delete only the object with this UID; "": any.
        """
        with self.store.transaction() as t:
            old = _existing(t, kind, namespace, name)
            if uid and old["metadata"]["uid"] != uid:
                raise conflict(
                    kind.key, name, f"the UID in the precondition ({uid}) does not match the UID of the object"
                )
            if not dry_run:
                self._delete(t, kind, old)
            return old

    def remove(self, kind: ApiKind, namespace: str, name: str, uid: str) -> None:
        """Remove an object whose process has ended, and what it owns. One that does not exist is no error."""
        with self.store.transaction() as t:
            old = t.get(kind.key, namespace, name)
            if old is not None and old["metadata"]["uid"] == uid:
                self._remove(t, kind, old)

    def collect(self) -> None:
        """Delete objects that were created, or got their owners, when these were gone already. Safe to repeat."""
        with self.store.transaction() as t:
            for key, owned in t.owned():
                if t.get(key, owned["metadata"].get("namespace", ""), owned["metadata"]["name"]) == owned:
                    self._collect(t, self._by_key[key], owned)

    def _replaced(
        self, t: Transaction, kind: ApiKind, old: Json, wanted: tuple[Json, str], strict: bool, dry_run: bool
    ) -> Json:
        document, subresource = wanted
        metadata = document.get("metadata") or {}
        name, version = old["metadata"]["name"], metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind.key, name, why)
        kept = {k: old["metadata"][k] for k in _FIXED if k in old["metadata"]}
        if subresource == STATUS:
            new = {**old, STATUS: document.get(STATUS)}
        else:
            of_kind = {"apiVersion": old["apiVersion"], "kind": old["kind"]}
            own = {k: v for k, v in metadata.items() if k not in _OF_THE_SERVER}
            new = {**document, **of_kind, "metadata": {**own, **kept}}
            if kind.definition is not None:
                new.pop(STATUS, None)
                new |= {STATUS: old[STATUS]} if STATUS in old else {}
        new = _checked(kind, {k: v for k, v in new.items() if v is not None}, old, strict)
        if old.get("immutable") is True and any(new.get(field) != old.get(field) for field in _IMMUTABLE):
            why = "data: Forbidden: field is immutable when `immutable` is set"
            raise invalid(f'{kind.resource.name} "{name}" is invalid: {why}')
        if kind.definition is not None and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return old if new == old else new if dry_run else t.put(kind.key, new, ChangeType.MODIFIED)

    def _delete(self, t: Transaction, kind: ApiKind, old: Json) -> None:
        if kind.resource not in _ENDED_BY_THE_NODE:
            self._remove(t, kind, old)
        elif "deletionTimestamp" not in old["metadata"]:
            metadata = {**old["metadata"], "deletionTimestamp": _now(), "deletionGracePeriodSeconds": 30}
            t.put(kind.key, {**old, "metadata": metadata}, ChangeType.MODIFIED)

    def _remove(self, t: Transaction, kind: ApiKind, old: Json) -> None:
        t.remove(kind.key, old)
        for key, owned in t.owned_by(old["metadata"]["uid"]):
            self._collect(t, self._by_key[key], owned)

    def _collect(self, t: Transaction, kind: ApiKind, owned: Json) -> None:
        """Delete an object if all its owners are gone; otherwise, forget those that are."""
        owners = owned["metadata"]["ownerReferences"]
        left = [o for o in owners if t.has(o.get("uid", ""))]
        if not left:
            self._delete(t, kind, owned)
        elif len(left) < len(owners):
            metadata = {**owned["metadata"], "ownerReferences": left}
            t.put(kind.key, {**owned, "metadata": metadata}, ChangeType.MODIFIED)


def _existing(t: Transaction, kind: ApiKind, namespace: str, name: str) -> Json:
    body = t.get(kind.key, namespace, name)
    if body is None:
        raise not_found(kind.key, name)
    return body


def _metadata_of(document: Json) -> Json:
    """The metadata of a document, or of a patch. What is stored already is not looked at.

    Raises:
        StatusError: A part has another type than Kubernetes gives it.
    """
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata is not an object")
    for name in ("name", "generateName", "namespace", "resourceVersion", "uid"):
        if not isinstance(metadata.get(name), str | None):
            raise bad_request(f"metadata.{name} is not a string")
    for name in ("labels", "annotations"):
        texts = metadata.get(name) or {}
        if not isinstance(texts, dict):
            raise bad_request(f"metadata.{name} is not an object")
        for key, text in texts.items():
            if not isinstance(text, str | None):
                raise bad_request(
                    f"metadata.{name}.{key} is not a string: in YAML, write numbers and booleans in quotes"
                )
            if problem := problem_of_mark(key, text if name == "labels" else "") if text is not None else "":
                raise invalid(f"metadata.{name}: Invalid value: {problem}")
    return metadata


def _require_content(kind: ApiKind, document: Json) -> None:
    """Require that the content of a Secret or a ConfigMap, or of a patch of one, is one. No message has a value of it.

    Raises:
        StatusError: A key is no name of a file, or a value is no text, or not in base64 where it must be.
    """
    if kind.resource not in (SECRETS, CONFIG_MAPS):
        return
    is_secret = kind.resource == SECRETS
    for name, is_encoded in (("data", is_secret), ("stringData", False), ("binaryData", True)):
        values = document.get(name) or {}
        if not isinstance(values, dict):
            raise bad_request(f"{name} is not an object")
        for key, value in values.items():
            if not isinstance(value, str | None):
                raise bad_request(f"{name}.{key} is not a string: in YAML, write numbers and booleans in quotes")
            if _DATA_KEY.fullmatch(key) is None or key == "." or key.startswith(".."):
                text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                raise invalid(f'{kind.resource.name} is invalid: {name}[{key}]: Invalid value: "{key}": {text}')
            if is_encoded and not _is_base64(value or ""):
                raise bad_request(f"{name}.{key}: illegal base64 data. Put plain text of a Secret into stringData")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except ValueError:
        return False
    return True


def _checked(kind: ApiKind, new: Json, old: Json | None, strict: bool) -> Json:
    if kind.definition is None:
        if not new["metadata"].get("name"):
            raise invalid(f"{kind.resource.name} is invalid: metadata.name: Required value")
        return json.loads(json.dumps(_with_data(new) if kind.resource in (SECRETS, CONFIG_MAPS) else new))
    try:
        return admitted(kind.definition, new, old, strict)
    except NotAdmitted as e:
        raise invalid(str(e)) from None
    except Undecodable as e:
        raise bad_request(str(e)) from None


def _with_data(document: Json) -> Json:
    """A Secret or a ConfigMap without nulls, and with its texts among its data, which they replace."""
    texts = (document.get("stringData") or {}) if document["kind"] == SECRETS.name else {}
    encoded = {key: base64.b64encode((text or "").encode()).decode() for key, text in texts.items()}
    content = {name: {k: v or "" for k, v in (document.get(name) or {}).items()} for name in ("data", "binaryData")}
    content["data"] |= encoded
    others = {k: v for k, v in document.items() if k not in ("data", "binaryData", "stringData")}
    return {**others, **{name: values for name, values in content.items() if values or name in document}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
