"""Observes a subject request, decides and carries it out. I/O, in the queue's threads."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from lethe.base.errors import LetheError, Verdict
from lethe.contract.status import RestatementStatus
from lethe.kube import RESTATEMENTS, SECRETS, AlreadyExists, Kube, NotFound, RequestRefused

from lethe_operator.actions import Event
from lethe_operator.cluster import status
from lethe_operator.cluster.schedule import Next
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.erasure.signatures import NotSigned
from lethe_operator.reasons import Reason
from lethe_operator.request import record
from lethe_operator.request.decide import RequestActions, RequestWorld, decide, events, is_closed, verified
from lethe_operator.request.record import RecordNotWritten
from lethe_operator.request.targets import Targets, targets_of
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.assess import may_read_secret
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def everyone_may(_request: Restatement, _dataset: str) -> Verdict | None:
    """None: who may create Restatements may erase from all Datasets of the namespace."""
    return None


@dataclass(frozen=True)
class RequestReconciler:
    """Reconciles subject requests. It keeps nothing between calls."""

    kube: Kube
    objects: WatchedObjects
    settings: Settings
    denied: Callable[[Restatement, str], Verdict | None] = everyone_may
    """Why the requester may not erase from a Dataset, by its name; None: the requester may."""

    def __call__(self, request: Restatement, now: datetime) -> Next | None:
        """Reconcile a request.

        Raises:
            KubeError: And others. The queue then repeats the request after a pause.
        """
        namespace, name = request.meta.namespace, request.meta.name
        world = self._observe(request)
        actions = decide(world, now)
        for document in actions.create:
            self._create(namespace, document)
        for child, spec in actions.change.items():
            self._change(namespace, child, spec)
        new, more = actions.status, list[Event]()
        if actions.complete:
            new, more = self._complete(world, actions, now)
        status.write(self.kube, RESTATEMENTS, namespace, name, request.stored, new)
        posted = (*events(name, request.status, new), *more)
        status.post(self.kube, namespace, posted, {("Restatement", name): request.meta.uid})
        if actions.delete:
            self.kube.delete(RESTATEMENTS, namespace, name, uid=request.meta.uid)
            return None
        changed = bool(actions.create or actions.change or posted)
        return Next(actions.look_again, idle=is_closed(request) and not changed)

    def _observe(self, request: Restatement) -> RequestWorld:
        if is_closed(request):
            return RequestWorld(request, Targets((), ()), {})
        namespace, name = request.meta.namespace, request.meta.name
        targets = targets_of(request.spec, self.objects.datasets(namespace))
        children = self.objects.restatements.children(namespace, request.meta.uid)
        world = RequestWorld(
            request,
            targets,
            {c.meta.name: c for c in children},
            self.objects.restatements.names(namespace) - {c.meta.name for c in children},
        )
        begun = {c.spec.dataset for c in children if isinstance(c, Restatement)}
        problems = {t.name: self.denied(request, t.name) for t in targets.included if t.name not in begun}
        log.debug("subject request %s/%s: %d Datasets", namespace, name, len(targets.included))
        return replace(world, denied={n: v for n, v in problems.items() if v is not None})

    def _create(self, namespace: str, document: Mapping[str, object]) -> None:
        try:
            self.kube.create(RESTATEMENTS, namespace, document)
        except AlreadyExists:
            return  # of an earlier request of this name, which is being deleted, or of an operator that stopped here

    def _change(self, namespace: str, name: str, spec: Mapping[str, object]) -> None:
        try:
            self.kube.patch(RESTATEMENTS, namespace, name, {"spec": dict(spec)})
        except NotFound:
            return

    def _complete(
        self, world: RequestWorld, actions: RequestActions, now: datetime
    ) -> tuple[RestatementStatus, list[Event]]:
        """Write the record, delete the values if that is wanted, and make the final status."""
        request, name = world.request, world.request.meta.name
        try:
            written = record.write(request, actions.parts, world.targets.without_identity, self.settings)
        except (RecordNotWritten, NotSigned, LetheError) as e:
            text = f"The operator did not write the record of the request: {str(e).rstrip('.')}. The operator retries."
            log.warning("%s: %s", request.meta.full_name, text)
            return actions.status, [Event("Restatement", name, Verdict(Reason.RECORD_NOT_SIGNED, text), warning=True)]
        more = self._delete_values(request)
        return verified(request, actions, written, now), more

    def _delete_values(self, request: Restatement) -> list[Event]:
        subject, namespace = request.spec.subject, request.meta.namespace
        if subject is None or not subject.delete_values:
            return []
        problems: list[Event] = []
        names = {
            i.values_from.secret_key_ref.name for i in subject.identities if i.values_from.secret_key_ref is not None
        }
        for secret in sorted(names):
            try:
                if not may_read_secret(secret, namespace, self.settings):
                    continue  # no run has read it either
                self.kube.delete(SECRETS, namespace, secret)
            except RequestRefused as e:
                text = f"The operator cannot delete the Secret {secret} (spec.subject.deleteValues): {e}. Delete it yourself."
                problems.append(
                    Event("Restatement", request.meta.name, Verdict(Reason.VALUES_NOT_DELETED, text), warning=True)
                )
        return problems
