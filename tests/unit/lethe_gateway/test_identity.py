"""Identity over an API server in memory, and by a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import Away, RequestRefused, ResourceKind
from lethe_gateway.identity.caller import Caller, Right, ShortCache
from lethe_gateway.identity.kubernetes import KubernetesIdentity, OneToken
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import InvalidSettings

from tests.support.clock import ManualClock

RIGHT = Right.to_list("ns")


class Reviews:
    """Answers reviews."""

    def __init__(self, **status: Any) -> None:
        self.status: dict[str, Any] = {
            "authenticated": True,
            "user": {"username": "ana", "uid": "1"},
            "allowed": True,
            **status,
        }
        self.created: list[Mapping[str, Any]] = []
        self.error: Exception | None = None

    def create(self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self.created.append(document)
        if self.error is not None:
            raise self.error
        return {"status": self.status}


def identity(reviews: Reviews, *audiences: str) -> tuple[KubernetesIdentity, ManualClock]:
    clock = ManualClock()
    return KubernetesIdentity(reviews, audiences, 10, clock), clock  # type: ignore[arg-type]


def rejected(of: KubernetesIdentity, token: str = "t") -> Kind:
    with pytest.raises(Problem) as e:
        of.authenticate(token)
    return e.value.kind


def test_a_token_is_reviewed_again_after_a_short_time() -> None:
    reviews = Reviews()
    of, clock = identity(reviews)
    for _ in range(3):
        assert of.authenticate("t").username == "ana"
    assert len(reviews.created) == 1
    clock.now = 10
    reviews.status["authenticated"] = False

    assert rejected(of) is Kind.UNAUTHENTICATED


def test_a_rejected_token_is_reviewed_again_sooner() -> None:
    reviews = Reviews(authenticated=False)
    of, clock = identity(reviews)
    assert [rejected(of), rejected(of), len(reviews.created)] == [Kind.UNAUTHENTICATED, Kind.UNAUTHENTICATED, 1]
    reviews.status["authenticated"] = True
    clock.now = 2

    assert of.authenticate("t").username == "ana"


def test_tokens_are_not_compared_by_their_owners() -> None:
    reviews = Reviews()
    of, _ = identity(reviews)
    of.authenticate("t")
    of.authenticate("u")

    assert [r["spec"]["token"] for r in reviews.created] == ["t", "u"]


@pytest.mark.parametrize("answered", [None, [], ["other"]])
def test_a_token_without_our_audience_is_rejected(answered: Any) -> None:
    """An API server that does not know audiences answers none."""
    reviews = Reviews(audiences=answered)
    of, _ = identity(reviews, "lethe")

    assert rejected(of) is Kind.UNAUTHENTICATED
    assert reviews.created[0]["spec"]["audiences"] == ["lethe"]


@pytest.mark.parametrize("status", [{}, {"authenticated": "yes"}, {"authenticated": None}])
def test_anything_but_a_plain_yes_is_a_rejection(status: dict[str, Any]) -> None:
    reviews = Reviews()
    reviews.status = status
    of, _ = identity(reviews)

    assert rejected(of) is Kind.UNAUTHENTICATED
    assert of.may(Caller("ana"), RIGHT) is False


@pytest.mark.parametrize("error", [Away(0, "NoAnswer", ""), RequestRefused(403, "Forbidden", "")])
def test_an_api_server_that_does_not_review_is_away_and_nothing_is_remembered(error: Exception) -> None:
    reviews = Reviews()
    reviews.error = error
    of, _ = identity(reviews)

    assert rejected(of) is Kind.API_SERVER_AWAY
    with pytest.raises(Problem):
        of.may(Caller("ana"), RIGHT)
    reviews.error = None
    assert of.authenticate("t").username == "ana"
    assert of.may(Caller("ana"), RIGHT) is True


def test_a_right_is_asked_for_the_whole_caller() -> None:
    reviews = Reviews()
    of, _ = identity(reviews)
    caller = Caller("ana", "1", ("a", "b"), {"scopes": ("x",)})

    of.may(caller, Right.to_read_batches("ns", "flights"))

    assert reviews.created[0]["spec"] == {
        "user": "ana",
        "uid": "1",
        "groups": ["a", "b"],
        "extra": {"scopes": ["x"]},
        "resourceAttributes": {
            "verb": "get",
            "group": "lethe.dev",
            "resource": "datasets",
            "namespace": "ns",
            "subresource": "batches",
            "name": "flights",
        },
    }


def test_a_right_of_one_caller_is_not_that_of_another() -> None:
    reviews = Reviews()
    of, clock = identity(reviews)
    assert of.may(Caller("ana", groups=("a",)), RIGHT)
    reviews.status["allowed"] = False

    assert not of.may(Caller("bob"), RIGHT)
    assert not of.may(Caller("ana", groups=("b",)), RIGHT)
    assert not of.may(Caller("ana", groups=("a",), extra={"scopes": ("user:info",)}), RIGHT), "a restricted token"
    assert of.may(Caller("ana", groups=("a",)), RIGHT)  # remembered
    clock.now = 10
    assert not of.may(Caller("ana", groups=("a",)), RIGHT)


def test_a_denied_right_is_none_though_it_is_allowed() -> None:
    of, _ = identity(Reviews(denied=True))

    assert of.may(Caller("ana"), RIGHT) is False


def test_a_caller_does_not_show_its_token() -> None:
    assert "secret" not in repr(Caller("ana", token="secret"))


def test_the_cache_is_bounded() -> None:
    cache: ShortCache[int, int] = ShortCache(2)
    for n in range(3):
        cache.put(n, n, 10)

    assert ([cache.get(n, 0) for n in range(3)], len(cache)) == ([None, 1, 2], 2)
    assert cache.get(1, 10) is None


def test_one_token_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right\n")
    file.chmod(0o600)
    of = OneToken(file)

    assert of.authenticate("right").token == "right"
    for token in ("", "wrong", "right\n", "é"):
        with pytest.raises(Problem):
            of.authenticate(token)
    file.write_text("new")
    assert of.authenticate("new")


@pytest.mark.parametrize(("content", "mode"), [("t", 0o640), ("t", 0o604), ("", 0o600)])
def test_a_file_that_others_can_read_or_that_is_empty_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)

    with pytest.raises(InvalidSettings, match="LETHE_GATEWAY_TOKEN_FILE"):
        OneToken(file)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        OneToken(tmp_path / "absent")
