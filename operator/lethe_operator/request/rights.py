"""Whether the requester of a Restatement with a subject may erase rows of a Dataset. I/O: the API server decides."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from lethe.base.errors import Verdict
from lethe.base.short_cache import ShortCache
from lethe.contract.kubernetes import GROUP, REQUESTED_BY, REQUESTED_BY_GROUPS
from lethe.contract.restatement import Requester
from lethe.kube import LOCAL_ACCESS_REVIEWS, Document, RequestRefused, ResourceKind, is_allowed

from lethe_operator.reasons import Reason
from lethe_operator.resources.restatement import Restatement

ERASE: Final = "erase"
"""The verb on datasets.lethe.dev. Kubernetes gives it no meaning of its own."""
ALLOWED_SECONDS: Final = 60.0
# A right may just have been granted.
DENIED_SECONDS: Final = 10.0
ANSWERS_AT_MOST: Final = 20_000


class Reviewer(Protocol):
    """The part of `lethe.kube.Kube` that asks about rights."""

    def review(self, kind: ResourceKind, namespace: str, spec: Mapping[str, Any]) -> Document:
        """The status of a review."""


class EraseRights:
    """Asks who may erase, and remembers the answers for a short time. Threads may share it."""

    def __init__(self, kube: Reviewer, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._answers: ShortCache[tuple[Requester, str, str], bool] = ShortCache(ANSWERS_AT_MOST)

    def denied(self, request: Restatement, dataset: str) -> Verdict | None:
        """Why the requester of a Restatement with a subject may not erase rows of a Dataset; None: the requester may.

        Its annotations are true where the chart's value admission.eraseRight is enabled: the policies compare them with the user.

        Raises:
            Away: The API server gave no answer, or one that asks to retry later.
        """
        requester = Requester.of_annotations(request.meta.annotations)
        return self.may_erase(requester, request.meta.namespace, dataset)

    def may_erase(self, requester: Requester | None, namespace: str, dataset: str) -> Verdict | None:
        """Whether a requester has the verb `erase` on a Dataset. None: it may; a Verdict: it may not, and what to do.

        Waits for at most one request to the API server.

        Args:
            requester: None is a refusal: the Restatement does not say who requests it.

        Raises:
            Away: The API server gave no answer, or one that asks to retry later.
        """
        right = f"the verb {ERASE} on datasets.{GROUP} {dataset} in the namespace {namespace}"
        if requester is None:
            return Verdict(
                Reason.REQUESTER_NOT_ALLOWED,
                f"Dataset {dataset}: the Restatement has no valid annotations {REQUESTED_BY} and {REQUESTED_BY_GROUPS}, so it "
                f"is not known whether a user with {right} requested it. Create a new Restatement with them.",
            )
        key, now = (requester, namespace, dataset), self._clock()
        allowed = self._answers.get(key, now)
        if allowed is None:
            try:
                allowed = self._ask(requester, namespace, dataset)
            except RequestRefused as e:
                return Verdict(
                    Reason.REQUESTER_NOT_ALLOWED,
                    f"Dataset {dataset}: the operator could not ask whether {requester.username} has {right}: "
                    f"{e.explanation or e.reason}. Run helm upgrade to restore the operator's Role.",
                    transient=True,
                )
            self._answers.put(key, allowed, now + (ALLOWED_SECONDS if allowed else DENIED_SECONDS))
        if allowed:
            return None
        return Verdict(
            Reason.REQUESTER_NOT_ALLOWED,
            f"Dataset {dataset}: {requester.username}, who requested this, does not have {right}. Grant it with a Role and a "
            "RoleBinding, or let a user who has it create a new Restatement.",
        )

    def _ask(self, requester: Requester, namespace: str, dataset: str) -> bool:
        attributes = {"verb": ERASE, "group": GROUP, "resource": "datasets", "namespace": namespace, "name": dataset}
        spec = {"user": requester.username, "groups": list(requester.groups), "resourceAttributes": attributes}
        return is_allowed(self._kube.review(LOCAL_ACCESS_REVIEWS, namespace, spec))
