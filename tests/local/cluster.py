"""The API of `lethe local` in the place of a cluster, so that its tests run on it. No kubectl: that comes with a cluster. I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from lethe_local.cli import kind_of
from lethe_local.folder import Folder

from tests.cluster.api import Api, Object, Resource
from tests.cluster.kube import Cluster, Refused
from tests.support.commands import in_this_process


class LocalApi(Api):
    """The API server of a folder. It takes a token, and is not asked which kinds it has."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.kubeconfig)
        self._authorization = {"Authorization": f"Bearer {folder.token}"}

    def resource(self, name: str) -> Resource:
        kind = kind_of(name.partition(".")[0])
        group, _, version = kind.api_version.rpartition("/")
        return Resource(group, version, kind.resource.plural, kind.resource.name, frozenset(), kind.namespaced)

    def _send(self, method: str, path: str, body: Object | None, headers: Any, *more: Any) -> Any:
        return super()._send(method, path, body, {**headers, **self._authorization}, *more)


@cache
def _api_of(folder: Path, written: int) -> LocalApi:  # noqa: ARG001 - each `lethe local up` has a port of its own
    return LocalApi(Folder(folder))


@dataclass(frozen=True)
class LocalCluster(Cluster):
    """`kubeconfig` is that of a running `lethe local up`."""

    @property
    def api(self) -> Api:
        return _api_of(self.kubeconfig.parent, self.kubeconfig.stat().st_mtime_ns)

    def run(self, *arguments: str, **_: Any) -> str:
        raise AssertionError(f"this test needs kubectl: {' '.join(arguments)}")

    def apply(self, *bodies: Object, dry_run: bool = False) -> list[Object]:
        """By `lethe local apply`, as a user does it."""
        more = ["--dry-run"] if dry_run else []
        arguments = ["local", "apply", "--dir", str(self.kubeconfig.parent), *more, "-f", "-"]
        done = in_this_process(arguments, {}, yaml.safe_dump_all(bodies))
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        found = [self.get(f"{b['kind']}/{b['metadata']['name']}") for b in bodies] if not dry_run else []
        return [body for body in found if body is not None]

    def list(self, kind: str, selector: str = "") -> Sequence[Object]:
        found = super().list(kind, selector)
        if kind.startswith("event"):  # kubectl shows the older of the two APIs for events
            for event in found:
                event["involvedObject"], event["message"] = event.get("regarding"), event.get("note")
        return found
