"""Who a caller is, and what they may do. I/O: the API server, as the gateway's own ServiceAccount; a file.

On a cluster, a TokenReview gives the identity and a SubjectAccessReview the rights. `lethe local` has one token, in a file that
only its owner can read, and its owner may do everything.
"""

import hmac
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from lethe.base.errors import InvalidSettings
from lethe.base.short_cache import ShortCache
from lethe.contract.kubernetes import GROUP
from lethe.kube import ACCESS_REVIEWS, TOKEN_REVIEWS, Document, Kube, KubeError, ResourceKind, is_allowed

from lethe_gateway.identity.caller import Caller, Right, digest_of
from lethe_gateway.problems import Kind, Problem, unauthenticated

# What was rejected is asked again sooner: a right may just have been granted.
REJECTED_SECONDS = 2.0
MAX_TOKEN_LENGTH = 16_384


# Everything about a caller that a decision about rights may depend on: key, groups, and what else the API server knows.
_Holder: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]


class KubernetesIdentity:
    """Asks the API server, and remembers its answers for a short time."""

    def __init__(
        self,
        kube: Kube,
        audiences: Sequence[str] = (),
        remembered_seconds: float = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._audiences = tuple(audiences)
        self._seconds = remembered_seconds
        self._clock = clock
        self._callers: ShortCache[str, Caller | bool] = ShortCache()  # False: the token was rejected
        self._rights: ShortCache[tuple[_Holder, Right], bool] = ShortCache(50_000)

    def authenticate(self, token: str) -> Caller:
        """Authenticate it.

        Raises:
            Problem: `unauthenticated`, `api-server-away`.
        """
        if not token or len(token) > MAX_TOKEN_LENGTH:
            raise unauthenticated()
        key, now = digest_of(token), self._clock()
        caller = self._callers.get(key, now)
        if caller is None:
            caller = self._review(token) or False
            self._callers.put(key, caller, now + (self._seconds if caller else min(REJECTED_SECONDS, self._seconds)))
        if not isinstance(caller, Caller):
            raise unauthenticated()
        return caller

    def remembered(self, token: str) -> Caller | None:
        """The owner of a token that was accepted a moment ago. None: ask."""
        caller = self._callers.get(digest_of(token), self._clock())
        return caller if isinstance(caller, Caller) else None

    def may(self, caller: Caller, right: Right) -> bool:
        """Whether a caller has a right.

        Raises:
            Problem: `api-server-away`.
        """
        extra = tuple((k, tuple(v)) for k, v in sorted(caller.extra.items()))
        key, now = ((caller.key, tuple(caller.groups), extra), right), self._clock()
        allowed = self._rights.get(key, now)
        if allowed is None:
            allowed = self._is_allowed(caller, right)
            self._rights.put(key, allowed, now + (self._seconds if allowed else min(REJECTED_SECONDS, self._seconds)))
        return allowed

    def _review(self, token: str) -> Caller | None:
        """None: the token is not valid."""
        spec: Document = {"token": token} | ({"audiences": list(self._audiences)} if self._audiences else {})
        status = self._reviewed(TOKEN_REVIEWS, spec)
        if status.get("authenticated") is not True:
            return None
        # An API server that does not know audiences answers without them: then the token was not checked for ours.
        if self._audiences and not set(self._audiences) & set(status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        return Caller(
            username=str(user.get("username") or ""),
            uid=str(user.get("uid") or ""),
            groups=tuple(user.get("groups") or ()),
            extra={k: tuple(v or ()) for k, v in (user.get("extra") or {}).items()},
            token=token,
        )

    def _is_allowed(self, caller: Caller, right: Right) -> bool:
        attributes = {
            "verb": right.verb,
            "group": GROUP,
            "resource": right.resource,
            "namespace": right.namespace,
            **({"subresource": right.subresource} if right.subresource else {}),
            **({"name": right.name} if right.name else {}),
        }
        spec: Document = {
            "user": caller.username,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {k: list(v) for k, v in caller.extra.items()},
            "resourceAttributes": attributes,
        }
        return is_allowed(self._reviewed(ACCESS_REVIEWS, spec))

    def _reviewed(self, kind: ResourceKind, spec: Document) -> Document:
        try:
            return self._kube.review(kind, "", spec)
        except KubeError as e:
            # Also if the gateway's own ServiceAccount may not ask: no caller can mend that.
            raise Problem(
                Kind.API_SERVER_AWAY,
                f"The API server did not answer a {kind.name} ({e.status or 'no answer'}). Try again later. The log of the "
                "gateway has the cause.",
                retry_after_seconds=2,
            ) from e


class OneToken:
    """Reads the file for each request, so a new token counts at once."""

    def __init__(self, file: Path) -> None:
        """Create `OneToken`.

        Raises:
            InvalidSettings: The file cannot be read, is empty, or can be read by others.
        """
        self._file = file
        try:
            mode = file.stat().st_mode
            token = self._token()
        except OSError as e:
            raise InvalidSettings(
                f"LETHE_GATEWAY_TOKEN_FILE names {file}, which cannot be read ({e.strerror})"
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidSettings(f"LETHE_GATEWAY_TOKEN_FILE: others can read {file}. Run: chmod 600 {file}")
        if not token:
            raise InvalidSettings(f"LETHE_GATEWAY_TOKEN_FILE: {file} is empty. Write a token into it.")

    def authenticate(self, token: str) -> Caller:
        """Authenticate it.

        Raises:
            Problem: `unauthenticated`.
        """
        try:
            valid = self._token()
        except OSError:
            raise unauthenticated() from None
        if not valid or not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), valid.encode()):
            raise unauthenticated()
        return Caller("lethe-local", token=token)

    def remembered(self, token: str) -> Caller | None:  # noqa: ARG002
        """None: each request is authenticated with the file, so a new token is valid at once."""
        return None

    def may(self, caller: Caller, right: Right) -> bool:  # noqa: ARG002
        """True: a caller with the token has all rights."""
        return True

    def _token(self) -> str:
        return self._file.read_text().strip()
