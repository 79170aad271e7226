"""One cluster as the tests see it, always with the kubeconfig that was given for tests.

I/O only. Waiting is watching: `wait_for` reads the API server's watch stream and ends with it, or says what was seen last.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.cluster.api import APPLY, JSON, MANAGER, MERGE_PATCH, Api, Object, api_of
from tests.cluster.api import Refused as Refused
from tests.support.clock import SLOWER

PAUSE_SECONDS = 0.1


class NotSeen(AssertionError):
    """What a test waited for did not come in time; the text holds the last state."""


def kubectl_path() -> str:
    """The kubectl that the cluster came with, else that of the PATH."""
    cache = os.environ.get("LETHE_CACHE") or str(
        Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "lethe"
    )
    own = Path(cache) / "bin" / "kubectl"
    return str(own) if own.exists() else "kubectl"


def condition(body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of a resource, or {} while it has none of that type."""
    for one in (body.get("status") or {}).get("conditions") or ():  # a new definition has `conditions: null`
        if one["type"] == kind:
            return dict(one)
    return {}


@dataclass(frozen=True)
class Cluster:
    """`namespace` is where the tests' resources live; every call is bound to `kubeconfig` and to nothing else."""

    kubeconfig: Path
    namespace: str = "default"
    kubectl: str = field(default_factory=kubectl_path)
    user: str = ""  # "": that of the kubeconfig
    group: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *arguments: str, stdin: str | None = None, within_seconds: float = 120) -> str:
        """kubectl's output. Raises: Refused, with what kubectl wrote to stderr."""
        done = subprocess.run(
            [self.kubectl, "--namespace", self.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=within_seconds,
        )
        if done.returncode != 0:
            raise Refused(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    @property
    def api(self) -> Api:
        return api_of(self.kubeconfig)

    def may(self, account: str, verb: str, what: str, subresource: str = "") -> bool:
        """Whether a ServiceAccount of the namespace may do `verb` with `what` ("pods", "configmap/name"), by the API server."""
        kind, _, name = what.partition("/")
        resource = self.api.resource(kind)
        asked = {
            "namespace": self.namespace if resource.namespaced else "",
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": subresource,
            "name": name,
        }
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]
        user = {"user": f"system:serviceaccount:{self.namespace}:{account}", "groups": groups}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**user, "resourceAttributes": asked},
        }
        return bool(
            self.api.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]
        )

    def apply(self, *bodies: Object, dry_run: bool = False) -> list[Object]:
        """Apply resources, in order, as a controller of GitOps does: on the server's side."""
        return [self._write("PATCH", APPLY, body, body["metadata"]["name"], dry_run, force="true") for body in bodies]

    def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create a resource; a user's kubectl sends the same request."""
        return self._write("POST", JSON, body, "", dry_run)

    def _write(
        self, method: str, content_type: str, body: Object, name: str, dry_run: bool, force: str | None = None
    ) -> Object:
        namespace = body["metadata"].get("namespace", self.namespace)
        path = self.api.resource_of(body).path(namespace, name)
        dry = "All" if dry_run else None
        return self._ask(
            method,
            path,
            body,
            content_type=content_type,
            fieldManager=MANAGER,
            fieldValidation="Strict",
            force=force,
            dryRun=dry,
        )

    def patch(self, ref: str, body: Object, *, dry_run: bool = False) -> None:
        dry = "All" if dry_run else None
        self._ask("PATCH", self._path(ref), body, content_type=MERGE_PATCH, fieldManager=MANAGER, dryRun=dry)

    def annotate(self, ref: str, **annotations: str | None) -> None:
        """Set annotations of Lethe, given as `vacuum_now="…"`; None removes one."""
        named = {f"lethe.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        self.patch(ref, {"metadata": {"annotations": named}})

    def get(self, ref: str) -> Object | None:
        """One object, or None when it is not there."""
        try:
            return self._ask("GET", self._path(ref))
        except Refused as e:
            if "NotFound" in str(e):
                return None
            raise

    def list(self, kind: str, selector: str = "") -> Sequence[Object]:
        return list(self._ask("GET", self._path(kind), labelSelector=selector)["items"])

    def delete(self, *refs: str, within_seconds: int = 60) -> None:
        """Delete and wait until they are gone, so that a hanging deletion is an error."""
        deleted = [(ref, uid) for ref in refs if (uid := self.begin_to_delete(ref))]
        deadline = time.monotonic() + within_seconds
        for ref, uid in deleted:
            while (found := self.get(ref)) is not None and found["metadata"]["uid"] == uid:
                if time.monotonic() >= deadline:
                    raise Refused(f"timed out waiting for the deletion of {ref}")
                time.sleep(PAUSE_SECONDS)

    def begin_to_delete(self, ref: str) -> str:
        """Delete and do not wait. Returns: the object's UID; "": it is not there."""
        found = self.get(ref)
        if found is None:
            return ""
        uid = str(found["metadata"]["uid"])
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            self._ask("DELETE", self._path(ref), options)
        except Refused as e:
            if "NotFound" not in str(e):
                raise
        return uid

    def _ask(self, method: str, path: str, body: Object | None = None, **how: Any) -> Object:
        who = {"Impersonate-User": self.user, "Impersonate-Group": self.group}
        headers = {name: value for name, value in who.items() if value}
        return self.api.ask(method, path, body, headers=headers, **how)

    def _path(self, ref: str) -> str:
        kind, _, name = ref.partition("/")
        return self.api.resource(kind).path(self.namespace, name)

    def in_namespace(self, namespace: str) -> "Cluster":
        return replace(self, namespace=namespace)

    def acting_as(self, user: str, group: str) -> "Cluster":
        """The same as another user sees it. kubectl does not follow."""
        return replace(self, user=user, group=group)

    def wait_for(
        self,
        what: str | Sequence[str],
        until: Callable[[Object], Any],
        *,
        within_seconds: float,
        why: str = "",
    ) -> Object:
        """The first state of an object that `until` holds for, as the API server's watch brings it.

        Args:
            what: `kind/name`, or (`kind`, `-l`, `selector`) for any of several objects; it may not exist yet.
            until: A question to one state of the object.
            within_seconds: On a machine of usual speed; see `tests.support.clock`.
        Raises: NotSeen, with the last state's status.
        """
        arguments = _list_arguments(what) if isinstance(what, str) else list(what)
        limit, last = SLOWER * within_seconds, None
        for state in self._states(arguments, time.monotonic() + limit):
            last = state
            if until(state):
                return state
        status = json.dumps((last or {}).get("status"), indent=1)
        wanted = why or "a state that did not come"
        raise NotSeen(f"{what}: waited {limit:.0f}s for {wanted}; the last status was {status}")

    def wait_for_condition(
        self, ref: str, kind: str, *, status: str = "True", reason: str = "", within_seconds: float
    ) -> Object:
        """Wait until a condition of the current generation has a status, and a reason if one is given."""

        def holds(body: Object) -> bool:
            seen = condition(body, kind)
            current = seen.get("observedGeneration", body["metadata"]["generation"]) >= body["metadata"]["generation"]
            return current and seen.get("status") == status and reason in ("", seen.get("reason"))

        return self.wait_for(ref, holds, within_seconds=within_seconds, why=f"{kind}={status} {reason}".strip())

    def _states(self, arguments: Sequence[str], deadline: float) -> Iterator[Object]:
        """Every state until the deadline. `arguments`: `kind`, and `-l selector` or `--field-selector=…`."""
        kind, *more = arguments
        named, _, field_selector = more[0].partition("=")
        selectors = {"fieldSelector": field_selector} if named == "--field-selector" else {"labelSelector": more[1]}
        yield from self.api.states(self._path(kind), deadline, **selectors)


def _list_arguments(ref: str) -> list[str]:
    """`kind/name` as a list that may be empty: `get kind name --watch` fails while the object is not there."""
    kind, _, name = ref.partition("/")
    return [kind, f"--field-selector=metadata.name={name}"]
