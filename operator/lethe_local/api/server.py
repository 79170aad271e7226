"""Serves the objects over HTTPS on the loopback, as a Kubernetes API server does. I/O: a port, threads.

Also as tables, with the columns that a definition names (additionalPrinterColumns), and with the groups, versions and kinds that
kopf and kubectl ask for.
"""

import base64
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from lethe.http_server import BoundedHandler, BoundedServer, ClientLimits, Rejected, is_same_secret, start, wrap_tls

from lethe_local.api.objects import (
    STATUS,
    ApiKind,
    LocalObjects,
    StatusError,
    bad_request,
    expired,
    invalid,
    matches,
    unavailable,
)
from lethe_local.api.store import ChangeType, ObjectChange, StoreClosed

_PART: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]")
# Cells are text already.
_TABLE_TYPES: Final = {"date": "string", "integer": "string"}
_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


@dataclass(frozen=True)
class ObjectTable:
    """A table of objects."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str]
    """Headers of numbers."""


def rows_of(kind: ApiKind, objects: Iterable[Mapping[str, Any]], now: datetime, wide: bool = False) -> ObjectTable:
    """The name of each object, and its columns.

    Args:
        wide: Whether columns with a priority above 0 are shown.
    """
    columns = kind.definition.columns if kind.definition is not None else (_AGE,)
    shown = [c for c in columns if wide or not c.get("priority")]
    rows = [[o["metadata"]["name"], *(_cell(c, o, now) for c in shown)] for o in objects]
    headers = ["NAME", *(c["name"].upper() for c in shown)]
    return ObjectTable(headers, rows, frozenset(c["name"].upper() for c in shown if c["type"] == "integer"))


def table_of(
    kind: ApiKind, objects: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The objects as a Table of meta.k8s.io, which kubectl asks for.

    Args:
        metadata: Of the list.
    """
    columns = kind.definition.columns if kind.definition is not None else (_AGE,)
    plain = {"format": "", "description": "", "priority": 0}
    shown = [{**plain, **c, "type": _TABLE_TYPES.get(c["type"], c["type"])} for c in columns]
    of_all = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
    rows = zip(rows_of(kind, objects, now, wide=True).rows, objects, strict=True)
    return {
        "apiVersion": "meta.k8s.io/v1",
        "kind": "Table",
        "metadata": metadata,
        "columnDefinitions": [
            {**plain, "name": "Name", "type": "string", "format": "name"},
            *({k: v for k, v in c.items() if k != "jsonPath"} for c in shown),
        ],
        "rows": [{"cells": cells, "object": {**of_all, "metadata": o["metadata"]}} for cells, o in rows],
    }


def value_at(document: Any, path: str) -> Any:
    """The value at a JSONPath of the kinds `.a.b`, `[0]` and `[?(@.type=="Ready")]`; None: there is none."""
    value = document
    for name, index, key, wanted in _PART.findall(path):
        if name:
            value = value.get(name) if isinstance(value, Mapping) else None
        elif index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
        else:
            value = next((v for v in value or () if v.get(key) == wanted), None)
    return value


def age(since: datetime, now: datetime) -> str:
    """How long ago something was, as kubectl shows it: 45s, 12m, 3h, 9d."""
    seconds = max(int((now - since) / timedelta(seconds=1)), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _cell(column: Mapping[str, Any], document: Mapping[str, Any], now: datetime) -> str:
    value = value_at(document, column["jsonPath"])
    if value is None:
        return ""
    return age(datetime.fromisoformat(value), now) if column["type"] == "date" else str(value)


VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-lethe-local", "platform": "local"}
_OPENAPI: Final = "/openapi/v3"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovered(path: str, kinds: Iterable[ApiKind]) -> Mapping[str, Any] | None:
    """The answer to a request for discovery; None: the path is another one."""
    every = tuple(kinds)
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(every)}
    if path == _OPENAPI:
        return {"paths": {k.resource.api[1:]: {"serverRelativeURL": f"{_OPENAPI}{k.resource.api}"} for k in every}}
    if path.startswith(_OPENAPI):
        return _openapi([k for k in every if k.resource.api == path.removeprefix(_OPENAPI)])
    here = [k for k in every if k.resource.api == path]
    if not here:
        return None
    resources = [r for k in here for r in _resources(k)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": here[0].api_version, "resources": resources}


def _openapi(kinds: Iterable[ApiKind]) -> dict[str, Any]:
    """Only what kubectl asks before it applies: whether the server checks the fields of an object itself."""
    checks = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for k in kinds:
        group, _, version = k.api_version.rpartition("/")
        of = {"group": group, "version": version, "kind": k.resource.name}
        path = f"{k.resource.api}/namespaces/{{namespace}}/{k.resource.plural}/{{name}}"
        paths[path] = {"patch": {"parameters": checks, "responses": {}, "x-kubernetes-group-version-kind": of}}
    return {"openapi": "3.0.0", "info": {"title": "lethe local", "version": VERSION["gitVersion"]}, "paths": paths}


def _groups(kinds: Iterable[ApiKind]) -> list[dict[str, Any]]:
    versions = dict.fromkeys(k.api_version for k in kinds if "/" in k.api_version)
    groups = []
    for group_version in versions:
        group, _, version = group_version.partition("/")
        named = {"groupVersion": group_version, "version": version}
        groups.append({"name": group, "versions": [named], "preferredVersion": named})
    return groups


def _resources(kind: ApiKind) -> list[dict[str, Any]]:
    name = kind.resource.plural
    short = list(kind.definition.short_names) if kind.definition else []
    of_all = {"namespaced": kind.namespaced, "kind": kind.resource.name}
    resources = [
        {"name": name, "singularName": kind.resource.name.lower(), "verbs": _VERBS, "shortNames": short, **of_all}
    ]
    if kind.definition is not None:
        resources.append({"name": f"{name}/status", "singularName": "", "verbs": ["get", "patch", "update"], **of_all})
    return resources


HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 3 << 20  # as the API server
WATCH_SECONDS: Final = 300.0
# A watch holds a connection as long as it lasts: those of operator, committer, inlet, gateway and kubectl are some dozens.
LIMITS: Final = ClientLimits(body_bytes=MAX_BODY_BYTES)
BOOKMARK_SECONDS: Final = 15.0
_METADATA_LIST: Final = "as=PartialObjectMetadataList"
_NUMBER: Final = re.compile(r"[0-9]{1,18}(\.[0-9]+)?")
_MERGES: Final = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@dataclass(frozen=True)
class PathTarget:
    """What a path names."""

    kind: ApiKind
    namespace: str
    """Empty: all, or the kind has none."""
    name: str
    """Empty: the collection."""
    subresource: str


class ApiServer:
    """One per folder."""

    def __init__(self, objects: LocalObjects, token: str, certificate: tuple[Path, Path], port: int = 0) -> None:
        """Open the port.

        Args:
            token: Bearer token of all clients.
            certificate: Files of the certificate and its key.
            port: 0: any free one.

        Raises:
            OSError: The port is taken.
        """
        handler = type("Handler", (_Handler,), {"objects": objects, "token": token})
        self._server = BoundedServer((HOST, port), handler)
        certificate_file, key = certificate
        wrap_tls(self._server, str(certificate_file), str(key))

    @property
    def port(self) -> int:
        """The port that is open; if port 0 was asked for, the one that the system chose."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer requests in a thread, until `stop`."""
        start(self._server, "api")

    def stop(self) -> None:
        """Accept no more requests, and close the port. Call it only after `start`; before, it would wait forever."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BoundedHandler):
    limits = LIMITS
    objects: LocalObjects
    token: str

    def authorize(self) -> None:
        """Authorize it.

        Raises:
            Rejected: A request that is answered with an error, and whose connection ends.
        """
        if not is_same_secret(self.headers.get("Authorization", ""), f"Bearer {self.token}"):
            raise Rejected(401, "Unauthorized", "the bearer token is missing or wrong")

    def reject(self, rejected: Rejected) -> None:
        error = StatusError(rejected.status, rejected.reason, rejected.message)
        self._send(error.status, error.document)

    def answer(self, body: bytes) -> None:
        try:
            self._answer(self._parsed(body))
        except StatusError as e:
            self._send(e.status, e.document)
        except sqlite3.OperationalError as e:
            failed = unavailable(f"the state cannot be written: {e}. Is the disk full?")
            self._send(failed.status, failed.document)
        except StoreClosed:
            self.close_connection = True

    def _answer(self, body: Any) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        about = discovered(url.path.rstrip("/"), self.objects.kinds.values()) if self.command == "GET" else None
        if about is not None:
            self._send(200, about)
            return
        target = self._target(url.path)
        if query.get("sendInitialEvents") in ("true", "1"):
            raise invalid("sendInitialEvents is not supported")  # clients list instead
        if self.command == "GET" and query.get("watch") in ("true", "1"):
            self._watch(target, query)
            return
        self._send(201 if self.command == "POST" else 200, self._done(target, query, body))

    def _parsed(self, content: bytes) -> Any:
        if "protobuf" in self.headers.get("Content-Type", ""):
            raise StatusError(
                415,
                "UnsupportedMediaType",
                "lethe local accepts JSON only, and kubectl sends new objects of Kubernetes' own kinds in another form: add "
                "--dry-run=client -o yaml, and pipe the output to kubectl apply -f -",
            )
        try:
            document = json.loads(content) if content else {}
        except ValueError as e:
            raise bad_request(f"the body is not JSON: {e}") from None
        except RecursionError:
            raise bad_request("the body is not JSON that can be read: it is nested too deeply") from None
        if not isinstance(document, dict):
            raise bad_request("the body is not an object of JSON")
        return document

    def _target(self, path: str) -> PathTarget:
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        api, rest = "/" + "/".join(parts[:head]), parts[head:]
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kind = self.objects.kinds.get((api, rest[0])) if rest else None
        name, subresource = [*rest[1:], "", ""][:2]
        is_wrong = len(rest) > 3 or subresource not in ("", STATUS)
        # Objects of all namespaces can only be listed.
        if (
            kind is None
            or is_wrong
            or (name and kind.namespaced and not namespace)
            or (namespace and not kind.namespaced)
        ):
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return PathTarget(kind, namespace, name, subresource)

    def _done(self, target: PathTarget, query: Mapping[str, str], body: Any) -> Any:
        kind, namespace, name = target.kind, target.namespace, target.name
        strict, dry = query.get("fieldValidation") == "Strict", "dryRun" in query
        place = (namespace, name, target.subresource)
        match self.command, bool(name):
            case "GET", True:
                found = self.objects.get(kind, namespace, name)
                return table_of(kind, [found], {}, datetime.now(UTC)) if self._wants_table() else found
            case "GET", False:
                return self._list(target, query)
            case "POST", False if namespace or not kind.namespaced:
                return self.objects.create(kind, namespace, body, strict, dry)
            case "PATCH", True:
                if self.headers.get("Content-Type", "") not in _MERGES:
                    raise StatusError(415, "UnsupportedMediaType", f"only {_MERGES[0]} is supported")
                return self.objects.patch(kind, place, body, strict, dry)
            case "PUT", True:
                return self.objects.replace(kind, place, body, strict, dry)
            case "DELETE", True if not target.subresource:
                uid = (body.get("preconditions") or {}).get("uid", "")
                # kubectl writes the options of a deletion into the body.
                return self.objects.delete(kind, namespace, name, uid, dry or bool(body.get("dryRun")))
            case _:
                raise StatusError(405, "MethodNotAllowed", f"the method {self.command} is not supported here")

    def _list(self, target: PathTarget, query: Mapping[str, str]) -> Any:
        items, version = self.objects.list(target.kind, target.namespace, query.get("labelSelector", ""))
        if name := _name_of(query):
            items = [i for i in items if i["metadata"]["name"] == name]
        if token := query.get("continue"):
            version, after = _place_of(token)
            items = [i for i in items if _key_of(i) > after]
        limit = _number(query, "limit")
        page = items[:limit] if limit else items
        more = _token(version, _key_of(page[-1])) if len(page) < len(items) else ""
        metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
        if _METADATA_LIST in self.headers.get("Accept", ""):
            of_all = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
            page = [{**of_all, "metadata": i["metadata"]} for i in page]
            return {
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadataList",
                "metadata": metadata,
                "items": page,
            }
        kind = target.kind
        if self._wants_table():
            return table_of(kind, page, metadata, datetime.now(UTC))
        return {
            "apiVersion": kind.api_version,
            "kind": f"{kind.resource.name}List",
            "metadata": metadata,
            "items": page,
        }

    def _wants_table(self) -> bool:
        return "as=Table" in self.headers.get("Accept", "")

    def _watch(self, target: PathTarget, query: Mapping[str, str]) -> None:
        events = self._events(target, query)  # whose errors are an answer only now
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, target: PathTarget, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        ends = time.monotonic() + (_number(query, "timeoutSeconds") or WATCH_SECONDS)
        selected = Selected(target.namespace, target.name or _name_of(query), query.get("labelSelector", ""))
        after = _number(query, "resourceVersion") or self.objects.store.version()
        return self._events_of(target.kind, selected, after, ends)

    def _events_of(self, kind: ApiKind, selected: "Selected", after: int, ends: float) -> Iterator[Mapping[str, Any]]:
        matched: set[str] = set()  # UIDs of objects that were reported, and match
        bookmark = {"apiVersion": kind.api_version, "kind": kind.resource.name}
        while (left := ends - time.monotonic()) > 0:
            found = self.objects.store.changes(kind.key, after, min(left, BOOKMARK_SECONDS))
            if found is None:
                yield {"type": "ERROR", "object": expired(after).document}
                return
            changes, after = found
            for change in changes:
                event = _event(change, selected, matched, partial(self.objects.store.before, kind.key, change))
                if event is not None:
                    yield event
            if not changes:
                yield {"type": "BOOKMARK", "object": {**bookmark, "metadata": {"resourceVersion": str(after)}}}

    def _send(self, status: int, document: Any) -> None:
        self.send(status, "application/json", json.dumps(document).encode())


@dataclass(frozen=True)
class Selected:
    """Which objects of a kind a watch reports."""

    namespace: str
    """Empty: all."""
    name: str
    """Empty: all."""
    labels: str
    """A label selector."""

    def has_name(self, body: Mapping[str, Any]) -> bool:
        """Whether the name of an object is selected."""
        return self.name in ("", body["metadata"]["name"])

    def has_labels(self, body: Mapping[str, Any]) -> bool:
        """Whether the labels of an object are selected."""
        return matches(self.labels, body["metadata"].get("labels") or {})


def _number(query: Mapping[str, str], name: str) -> int:
    """A parameter that is a number, without what follows its point; 0: it is missing.

    Raises:
        StatusError: It is another text.
    """
    text = query.get(name) or "0"
    if _NUMBER.fullmatch(text) is None:
        raise bad_request(f"the parameter {name} is not a number")
    return int(text.partition(".")[0])


def _key_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Lists are in the order of these keys."""
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _token(version: int, last: tuple[str, str]) -> str:
    """Where the next page of a list begins.

    A number of objects would not say it: objects can be deleted between two pages. All pages have the version of the first one,
    so that a watch from there reports what has changed since.

    Args:
        version: Of the first page.
        last: The key of the last object of this page.
    """
    return base64.urlsafe_b64encode(json.dumps([version, *last]).encode()).decode().rstrip("=")


def _place_of(token: str) -> tuple[int, tuple[str, str]]:
    """What `_token` was made of.

    Raises:
        StatusError: It is not one of this server.
    """
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError):
        raise bad_request("the continue token is not one of this server") from None


def _name_of(query: Mapping[str, str]) -> str:
    """The name that a field selector asks for; "": it asks for none.

    Raises:
        StatusError: The field selector names another field.
    """
    text = query.get("fieldSelector", "")
    if text and not text.startswith("metadata.name="):
        raise bad_request(f"field label not supported: {text}")
    return text.removeprefix("metadata.name=")


def _event(
    change: ObjectChange, selected: Selected, matched: set[str], before: Callable[[], str | None]
) -> Mapping[str, Any] | None:
    """The event of a watch for a change; None: the watch does not see it.

    An object whose labels no longer match is deleted for the watch.

    Args:
        matched: UIDs of objects that were reported, and match.
        before: Returns the object before the change, as JSON; None: it is unknown.
    """
    body = json.loads(change.body)
    if selected.namespace not in ("", change.namespace) or not selected.has_name(body):
        return None
    uid = body["metadata"]["uid"]
    if change.type is not ChangeType.DELETED and selected.has_labels(body):
        matched.add(uid)
        return {"type": change.type, "object": body}
    is_known = uid in matched or (change.type is ChangeType.DELETED and selected.has_labels(body))
    if not is_known and change.type is ChangeType.MODIFIED:  # it may have matched before the watch began
        text = before()
        is_known = text is None or selected.has_labels(json.loads(text))
    matched.discard(uid)
    return {"type": ChangeType.DELETED, "object": body} if is_known else None
