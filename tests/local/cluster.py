"""The API of `lethe local` in the place of a cluster, so that its tests run on it. No kubectl: that comes with a cluster.

I/O only. Waiting is watching, as in `tests.cluster.kube`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import requests
import yaml
from lethe_local.cli import kind_of

from tests.cluster.kube import Cluster, Object, Refused
from tests.support.clock import wait_until


@dataclass(frozen=True)
class LocalCluster(Cluster):
    """`kubeconfig` is that of a running `lethe local up`."""

    def run(self, *arguments: str, **_: Any) -> str:
        raise AssertionError(f"this test needs kubectl: {' '.join(arguments)}")

    def apply(self, *bodies: Object, dry_run: bool = False) -> list[Object]:
        """By `lethe local apply`, as a user does it."""
        more = ["--dry-run"] if dry_run else []
        done = subprocess.run(
            [sys.executable, "-m", "lethe.cli", "local", "apply", "--dir", str(self.kubeconfig.parent), *more, "-f", "-"],
            input=yaml.safe_dump_all(bodies), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        return [self._ask("GET", b["kind"], b["metadata"]["name"]) for b in bodies] if not dry_run else []

    def patch(self, ref: str, body: Object, *, dry_run: bool = False) -> None:
        kind, _, name = ref.partition("/")
        query = "?dryRun=All" if dry_run else ""
        self._ask("PATCH", kind, f"{name}{query}", body)

    def get(self, ref: str) -> Object | None:
        kind, _, name = ref.partition("/")
        try:
            return self._ask("GET", kind, name)
        except Refused as e:
            if "NotFound" in str(e):
                return None
            raise

    def list(self, kind: str, selector: str = "") -> Sequence[Object]:
        return list(self._list([kind, "-l", selector])["items"])

    def delete(self, *refs: str, within_seconds: int = 60) -> None:
        for ref in refs:
            if self.get(ref) is None:
                continue
            kind, _, name = ref.partition("/")
            self._ask("DELETE", kind, name)
            wait_until(lambda r=ref: self.get(r) is None, within_seconds)  # type: ignore[misc]

    def wait_until_gone(self, kinds: str, selector: str, within_seconds: float = 90) -> None:
        for kind in kinds.split(","):
            wait_until(lambda k=kind: not self.list(k, selector), within_seconds)  # type: ignore[misc]

    def _states(self, arguments: Sequence[str], deadline: float) -> Iterator[Object]:
        found = self._list(arguments)
        yield from found["items"]
        version = found["metadata"]["resourceVersion"]
        while (left := deadline - time.monotonic()) > 0:
            query = f"&watch=true&resourceVersion={version}&timeoutSeconds={max(1, int(left))}"
            try:
                with self._send("GET", f"{self._path(arguments)}{query}", stream=True, timeout=left) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            return
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            yield event["object"]
            except requests.exceptions.ConnectionError:  # also the end of the time
                continue

    # --- requests ---

    def _list(self, arguments: Sequence[str]) -> Object:
        answer: Object = self._send("GET", self._path(arguments)).json()
        kind = kind_of(arguments[0].partition(".")[0])
        for item in answer["items"]:
            item.setdefault("kind", kind.resource.name)
            if kind.resource.name == "Event":  # kubectl shows the older of the two APIs for events
                item["involvedObject"], item["message"] = item.get("regarding"), item.get("note")
        return answer

    def _path(self, arguments: Sequence[str]) -> str:
        """Of `kind`, and `-l selector` or `--field-selector=…`."""
        kind, *more = arguments
        selector = {"-l": "labelSelector", "--field-selector": "fieldSelector"}
        name, _, value = more[0].partition("=")
        return f"{self._of(kind)}?{selector[name]}={requests.utils.quote(value or more[1])}"

    def _of(self, kind: str) -> str:
        resource = kind_of(kind.partition(".")[0]).resource
        return f"{resource.api}/namespaces/{self.namespace}/{resource.plural}"

    def _ask(self, verb: str, kind: str, name: str, body: Object | None = None) -> Object:
        answer: Object = self._send(verb, f"{self._of(kind)}/{name}", body).json()
        return answer

    def _send(self, verb: str, path: str, body: Object | None = None, **how: Any) -> requests.Response:
        server, certificate, token = self._access
        headers = {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        data = json.dumps(body) if body is not None else None
        how = {"timeout": 60, **how}
        answer = requests.request(verb, f"{server}{path}", headers=headers, data=data, verify=certificate, **how)
        if answer.status_code >= 400:
            raise Refused(f"{answer.json().get('reason')}: {answer.json().get('message')}")
        return answer

    @cached_property
    def _access(self) -> tuple[str, str, str]:
        """The server, its certificate and the token."""
        document = yaml.safe_load(self.kubeconfig.read_text())
        server = document["clusters"][0]["cluster"]
        return server["server"], server["certificate-authority"], document["users"][0]["user"]["token"]
