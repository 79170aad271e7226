"""The API server by HTTP: a test that waits or looks starts no process of kubectl for it. I/O only."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import kubernetes.client
import kubernetes.config
import urllib3

Object = dict[str, Any]

JSON, MERGE_PATCH, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
# The owner of the fields that tests apply.
MANAGER = "tests"
REQUEST_SECONDS = 60


class Refused(Exception):
    """The API server said no; the text is what a user would have read."""


@dataclass(frozen=True)
class Resource:
    """A kind of objects, as the API server lists it."""

    group: str
    version: str
    plural: str
    kind: str
    aliases: frozenset[str]
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts += [self.version, *(("namespaces", namespace) if self.namespaced else ()), self.plural, name]
        return "/".join(part for part in parts if part)


class Api:
    """The API server of a kubeconfig. Raises everywhere: Refused, also if there was no answer."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._server = str(configuration.host)
        self._pool = urllib3.PoolManager(
            maxsize=8,
            cert_file=configuration.cert_file,
            key_file=configuration.key_file,
            ca_certs=configuration.ssl_ca_cert,
            retries=urllib3.Retry(total=3, backoff_factor=0.1, status=0),
        )
        self._resources: list[Resource] = []

    def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = JSON,
        headers: Mapping[str, str] = MappingProxyType({}),
        **query: str | None,
    ) -> Object:
        """The document that it answers with. `query`: parameters; None leaves one out."""
        answer = self._send(method, path, body, {"Content-Type": content_type, **headers}, query, REQUEST_SECONDS)
        return self._document(answer, answer.data)

    def resource(self, name: str) -> Resource:
        """By what kubectl takes: `pod`, `Job`, `datasets.lethe.dev`."""
        found = self._find(lambda r: name.lower() in r.aliases)
        if found is None:
            raise Refused(f"the server doesn't have a resource type {name!r}")
        return found

    def resource_of(self, body: Object) -> Resource:
        """That of a document, by its apiVersion and kind."""
        group, _, version = str(body["apiVersion"]).rpartition("/")
        wanted = (group, version, str(body["kind"]))
        found = self._find(lambda r: (r.group, r.version, r.kind) == wanted)
        if found is None:
            raise Refused(f"the server doesn't have a kind {body['kind']} in {body['apiVersion']}")
        return found

    def _find(self, fits: Callable[[Resource], bool]) -> Resource | None:
        """Asks again which kinds there are, if none fits: a definition may be new."""
        known = next(filter(fits, self._resources), None)
        return known or next(filter(fits, self._discover()), None)

    def states(self, path: str, deadline: float, **selectors: str) -> Iterator[Object]:
        """Every state of the objects of a list until the deadline. A watch that ends early is opened again."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                listed = self.ask("GET", path, **selectors)
                yield from listed["items"]
                version = listed["metadata"]["resourceVersion"]
                watch = {**selectors, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(int(left) + 1)}
                answer = self._send("GET", path, None, {}, watch, left)
                yield from self._changes(answer)
            except (Refused, urllib3.exceptions.HTTPError):
                time.sleep(0.2)  # a restarted API server, or the end of the time

    def _changes(self, answer: urllib3.BaseHTTPResponse) -> Iterator[Object]:
        """Until it lists again."""
        text = b""
        with answer:
            if answer.status >= 400:
                raise self._refusal(answer.data)
            for chunk in answer.stream():
                *lines, text = (text + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    if event["type"] != "BOOKMARK":
                        yield event["object"]

    def _discover(self) -> list[Resource]:
        found = []
        for path in ("/api", "/apis"):
            answer = self._send("GET", path, None, {"Accept": DISCOVERY}, {}, REQUEST_SECONDS)
            for group in self._document(answer, answer.data)["items"]:
                for version in group["versions"]:
                    found += [
                        _resource(group["metadata"].get("name", ""), version["version"], r)
                        for r in version.get("resources", ())  # none of an API whose server is away
                    ]
        self._resources = found
        return found

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        headers: Mapping[str, str],
        query: Mapping[str, str | None],
        within_seconds: float,
    ) -> urllib3.BaseHTTPResponse:
        given = urlencode({key: value for key, value in query.items() if value})
        url = f"{self._server}{path}{'?' if given else ''}{given}"
        content = None if body is None else json.dumps(body).encode()
        try:
            return self._pool.request(
                method,
                url,
                content,
                headers=dict(headers),
                timeout=within_seconds,
                preload_content="watch" not in query,
            )
        except urllib3.exceptions.HTTPError as e:
            raise Refused(f"{method} {path}: no answer: {e}") from e

    def _document(self, answer: urllib3.BaseHTTPResponse, content: bytes) -> Object:
        if answer.status >= 400:
            raise self._refusal(content)
        return dict(json.loads(content))

    def _refusal(self, content: bytes) -> Refused:
        try:
            status = json.loads(content)
        except ValueError:
            return Refused(content.decode(errors="replace"))
        return Refused(f"Error from server ({status.get('reason', 'Unknown')}): {status.get('message', '')}")


def _resource(group: str, version: str, listed: Object) -> Resource:
    names = {listed["resource"], listed["singularResource"], *listed.get("shortNames", ())}
    kind = listed.get("responseKind", {}).get("kind", "")
    names |= {kind.lower()} if kind else set()
    aliases = names | {f"{name}.{group}" for name in names if group}
    return Resource(group, version, listed["resource"], kind, frozenset(aliases), listed["scope"] == "Namespaced")


@cache
def api_of(kubeconfig: Path) -> Api:
    return Api(kubeconfig)
