"""Groups of requests planned on a small ledger."""

from collections.abc import Mapping
from typing import Any

from lethe.base.errors import TransientError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import Ledger
from lethe.restatement.group import GroupFindings, GroupPlan, plan_group, set_aside
from lethe.restatement.plan import PlanScope, ReplacementRows

from tests.support.builders import FIELD, NOW, RUN, a_batch, a_ledger, a_request

ROWS = ReplacementRows(5, 50)
LEDGER = a_ledger(batches=[a_batch("A"), a_batch("B"), a_batch("C")])


def plan(ledger: Ledger, *requests: RestatementRequest, aside: Mapping[str, RequestResult] | None = None) -> GroupPlan:
    written = {r.key: ROWS for r in requests if r.replacement}
    return plan_group(ledger, requests, PlanScope(RUN, NOW, FIELD), GroupFindings(written, aside or {}))


def states(ledger: Ledger) -> dict[str, str]:
    return {i: str(b.state) for i, b in sorted(ledger.batches.items())}


def reasons(planned: GroupPlan) -> dict[str, str]:
    return {r.name.removeprefix("ns/"): r.reason for r in planned.results.values()}


def an_undo(of: str, name: str = "undo", **changes: Any) -> RestatementRequest:
    return a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0", **changes)


def unread(request: RestatementRequest) -> dict[str, RequestResult]:
    return {request.key: set_aside(request, TransientError("AccessDenied", "not now"), again=True)}
