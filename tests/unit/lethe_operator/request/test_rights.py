"""Who may erase: what the operator asks the API server, and for how long it remembers the answer."""

from collections.abc import Mapping
from typing import Any

import pytest
from lethe.contract.restatement import Requester
from lethe.kube import Away, KubeError, RequestRefused, ResourceKind
from lethe_operator.reasons import Reason
from lethe_operator.request.reconcile import ALLOWED_SECONDS, DENIED_SECONDS, EraseRights

from tests.support.clock import ManualClock
from tests.support.resources import a_restatement

ANA = Requester("ana", ("privacy", "system:authenticated"))


class Reviews:
    """Answers reviews; `may` has the Datasets whose rows may be erased."""

    def __init__(self, *may: str) -> None:
        self.may = set(may)
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self.error: KubeError | None = None

    def review(self, kind: ResourceKind, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((kind.plural, namespace, spec))
        if self.error is not None:
            raise self.error
        return {"allowed": spec["resourceAttributes"]["name"] in self.may}


def rights(reviews: Reviews) -> tuple[EraseRights, ManualClock]:
    clock = ManualClock()
    return EraseRights(reviews, clock), clock


@pytest.mark.parametrize("groups", [(), ("a",), ('quote " and \\ backslash', "ärzte", "it's", "a,b", "[]")])
def test_the_annotations_say_who_the_requester_is(groups: tuple[str, ...]) -> None:
    requester = Requester("ana", groups)

    assert Requester.of_annotations(requester.annotations) == requester


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"lethe.dev/requested-by": "ana"},
        {"lethe.dev/requested-by": "ana", "lethe.dev/requested-by-groups": "[" * 100_000},
        {"lethe.dev/requested-by-groups": "[]"},
        {"lethe.dev/requested-by": "", "lethe.dev/requested-by-groups": "[]"},
        {"lethe.dev/requested-by": "ana", "lethe.dev/requested-by-groups": "a,b"},
        {"lethe.dev/requested-by": "ana", "lethe.dev/requested-by-groups": '"a"'},
        {"lethe.dev/requested-by": "ana", "lethe.dev/requested-by-groups": "[1]"},
    ],
)
def test_without_valid_annotations_there_is_no_requester_and_nothing_may_be_erased(annotations: Any) -> None:
    reviews = Reviews("bookings")
    refused = rights(reviews)[0].denied(a_restatement(meta={"annotations": annotations}), "bookings")

    assert refused is not None
    assert (refused.reason, reviews.asked) == (Reason.REQUESTER_NOT_ALLOWED, [])
    assert "lethe.dev/requested-by-groups" in refused.message


def test_the_api_server_is_asked_for_the_user_and_its_groups_in_the_namespace_of_the_dataset() -> None:
    reviews = Reviews("bookings")
    of, _ = rights(reviews)

    assert of.may_erase(ANA, "air", "bookings") is None
    refused = of.may_erase(ANA, "air", "loyalty")

    attributes = {"verb": "erase", "group": "lethe.dev", "resource": "datasets", "namespace": "air"}
    asked = {"user": "ana", "groups": ["privacy", "system:authenticated"]}
    assert reviews.asked == [
        ("localsubjectaccessreviews", "air", {**asked, "resourceAttributes": {**attributes, "name": name}})
        for name in ("bookings", "loyalty")
    ]
    assert refused is not None
    assert refused.reason == Reason.REQUESTER_NOT_ALLOWED
    for part in ("ana", "verb erase on datasets.lethe.dev loyalty in the namespace air"):
        assert part in refused.message


def test_an_answer_holds_for_one_requester_one_dataset_and_a_short_time() -> None:
    reviews = Reviews("bookings")
    of, clock = rights(reviews)
    for _ in range(2):
        assert of.may_erase(ANA, "air", "bookings") is None
        assert of.may_erase(ANA, "air", "loyalty") is not None
    assert len(reviews.asked) == 2

    for other in (Requester("bob", ANA.groups), Requester("ana", ())):
        of.may_erase(other, "air", "bookings")
    of.may_erase(ANA, "sea", "bookings")
    assert len(reviews.asked) == 5

    reviews.may = {"loyalty"}
    clock.now = DENIED_SECONDS
    assert of.may_erase(ANA, "air", "loyalty") is None, "a right may just have been granted"
    assert of.may_erase(ANA, "air", "bookings") is None
    clock.now = ALLOWED_SECONDS
    assert of.may_erase(ANA, "air", "bookings") is not None


def test_without_an_answer_nothing_may_be_erased_and_nothing_is_remembered() -> None:
    reviews = Reviews("bookings")
    of, _ = rights(reviews)
    reviews.error = RequestRefused(403, "Forbidden", "POST …: cannot create", "cannot create localsubjectaccessreviews")
    refused = of.may_erase(ANA, "air", "bookings")
    reviews.error = Away(0, "NoAnswer", "")
    with pytest.raises(Away):
        of.may_erase(ANA, "air", "bookings")
    reviews.error = None

    assert refused is not None
    assert (refused.reason, refused.transient) == (Reason.REQUESTER_NOT_ALLOWED, True)
    assert "cannot create localsubjectaccessreviews" in refused.message
    assert of.may_erase(ANA, "air", "bookings") is None
