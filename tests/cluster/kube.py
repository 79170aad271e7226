"""One cluster as the tests see it: kubectl as a subprocess, always with the kubeconfig that was given for tests.

I/O only. Waiting is watching: `wait_for` reads the API server's watch stream and ends with it, or says what was seen last.
"""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]


class Refused(Exception):
    """The API server said no; the text is what a user would have read."""


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
    for one in body.get("status", {}).get("conditions", ()):
        if one["type"] == kind:
            return dict(one)
    return {}


def documents(stream: str) -> tuple[list[Object], str]:
    """The whole JSON documents at the start of a stream, and the rest."""
    decoder, found, rest = json.JSONDecoder(), [], stream.lstrip()
    while rest:
        try:
            document, end = decoder.raw_decode(rest)
        except json.JSONDecodeError:
            break
        found.append(document)
        rest = rest[end:].lstrip()
    return found, rest


@dataclass(frozen=True)
class Cluster:
    """`namespace` is where the tests' resources live; every call is bound to `kubeconfig` and to nothing else."""

    kubeconfig: Path
    namespace: str = "default"
    kubectl: str = field(default_factory=kubectl_path)

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

    def may(self, account: str, verb: str, what: str, subresource: str = "") -> bool:
        """Whether a ServiceAccount of the namespace may do `verb` with `what` ("pods", "configmap/name"), by the API server."""
        who = (f"--as=system:serviceaccount:{self.namespace}:{account}", f"--subresource={subresource}")
        try:
            said = self.run("auth", "can-i", verb, what, *who)
        except Refused as e:
            said = str(e)  # kubectl ends with 1 when the answer is no
        answer = said.strip().splitlines()[-1].split(" ")[0]
        assert answer in ("yes", "no"), said
        return answer == "yes"

    def apply(self, *bodies: Object, dry_run: bool = False) -> list[Object]:
        """Apply resources, in order, in one call."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
        more = ["--dry-run=server"] if dry_run else []
        answer = json.loads(self.run("apply", "-f", "-", "-o", "json", *more, stdin=text))
        return list(answer["items"]) if answer["kind"] == "List" else [answer]

    def patch(self, ref: str, body: Object, *, dry_run: bool = False) -> None:
        more = ["--dry-run=server"] if dry_run else []
        self.run("patch", ref, "--type=merge", "-p", json.dumps(body), *more)

    def get(self, ref: str) -> Object | None:
        """One object, or None when it is not there."""
        try:
            answer: Object = json.loads(self.run("get", ref, "-o", "json"))
        except Refused as e:
            if "NotFound" in str(e):
                return None
            raise
        return answer

    def list(self, kind: str, selector: str = "") -> Sequence[Object]:
        more = ["-l", selector] if selector else []
        answer = json.loads(self.run("get", kind, "-o", "json", *more))
        return list(answer["items"])

    def delete(self, ref: str, *, within_seconds: int = 60) -> None:
        """Delete and wait until it is gone, so that a hanging deletion is an error."""
        self.run(
            "delete", ref, "--ignore-not-found", f"--timeout={within_seconds}s", within_seconds=within_seconds + 10
        )

    def wait_until_gone(self, kinds: str, selector: str, within_seconds: int = 90) -> None:
        """Wait until no object of some kinds has these labels."""
        self.run("wait", "--for=delete", kinds, "-l", selector, f"--timeout={within_seconds}s")

    def in_namespace(self, namespace: str) -> "Cluster":
        return Cluster(self.kubeconfig, namespace, self.kubectl)

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
        Raises: NotSeen, with the last state's status.
        """
        arguments = _list_arguments(what) if isinstance(what, str) else list(what)
        deadline, last = time.monotonic() + within_seconds, None
        for state in self._states(arguments, deadline):
            last = state
            if until(state):
                return state
        status = json.dumps((last or {}).get("status"), indent=1)
        wanted = why or "a state that did not come"
        raise NotSeen(f"{what}: waited {within_seconds:.0f}s for {wanted}; the last status was {status}")

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
        """Every state until the deadline. A watch that ends early (a restarted API server) is opened again."""
        while (left := deadline - time.monotonic()) > 0:
            watch = subprocess.Popen(
                [self.kubectl, "--namespace", self.namespace, "get", *arguments, "-o", "json", "--watch"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self.environment,
            )
            assert watch.stdout is not None
            try:
                text = ""
                while (left := deadline - time.monotonic()) > 0:
                    if not select.select([watch.stdout], [], [], left)[0]:
                        return
                    chunk = os.read(watch.stdout.fileno(), 1 << 20)
                    if not chunk:
                        break
                    found, text = documents(text + chunk.decode())
                    yield from found
            finally:
                watch.kill()
                watch.wait()


def _list_arguments(ref: str) -> list[str]:
    """`kind/name` as a list that may be empty: `get kind name --watch` fails while the object is not there."""
    kind, _, name = ref.partition("/")
    return [kind, f"--field-selector=metadata.name={name}"]
