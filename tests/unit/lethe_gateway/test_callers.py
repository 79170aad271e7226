"""Who asks, from where, how often, and what a request may use."""

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InvalidSettings
from lethe.base.short_cache import ShortCache
from lethe.kube import Away, RequestRefused, ResourceKind
from lethe_gateway.console.sessions import client_address
from lethe_gateway.guard import Guard
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.identity.kubernetes import KubernetesIdentity, OneToken
from lethe_gateway.limits import AllBusy, CallerBusy, Concurrency, RateLimit
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.services import Services
from lethe_gateway.settings import GatewaySettings, from_environment

from tests.support.clock import ManualClock
from tests.support.gateway_parts import OneTable, Resources, Rights, Writer

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
        self.asked: list[Mapping[str, Any]] = []
        self.error: Exception | None = None

    def review(self, kind: ResourceKind, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self.asked.append(spec)
        if self.error is not None:
            raise self.error
        return self.status


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
    assert len(reviews.asked) == 1
    clock.now = 10
    reviews.status["authenticated"] = False

    assert rejected(of) is Kind.UNAUTHENTICATED


def test_a_rejected_token_is_reviewed_again_sooner() -> None:
    reviews = Reviews(authenticated=False)
    of, clock = identity(reviews)
    assert [rejected(of), rejected(of), len(reviews.asked)] == [Kind.UNAUTHENTICATED, Kind.UNAUTHENTICATED, 1]
    reviews.status["authenticated"] = True
    clock.now = 2

    assert of.authenticate("t").username == "ana"


def test_tokens_are_not_compared_by_their_owners() -> None:
    reviews = Reviews()
    of, _ = identity(reviews)
    of.authenticate("t")
    of.authenticate("u")

    assert [r["token"] for r in reviews.asked] == ["t", "u"]


@pytest.mark.parametrize("answered", [None, [], ["other"]])
def test_a_token_without_our_audience_is_rejected(answered: Any) -> None:
    """An API server that does not know audiences answers none."""
    reviews = Reviews(audiences=answered)
    of, _ = identity(reviews, "lethe")

    assert rejected(of) is Kind.UNAUTHENTICATED
    assert reviews.asked[0]["audiences"] == ["lethe"]


@pytest.mark.parametrize(
    "status", [{}, {"authenticated": "yes"}, {"authenticated": None}, {"allowed": True, "denied": True}]
)
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

    assert reviews.asked[0] == {
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


def waits(limit: RateLimit, *asked: tuple[str, float]) -> list[float]:
    """How long each has to wait, by its key and the time."""
    return [limit.wait_seconds(key, now) for key, now in asked]


def test_after_a_burst_the_rate_counts_for_each_key() -> None:
    """An allowance does not grow beyond the burst, and a clock that goes back takes nothing away."""
    slow, quick = RateLimit(per_second=1, burst=1), RateLimit(per_second=2, burst=3)

    assert waits(quick, *[("a", 0.0)] * 4, ("a", 0.5), ("a", 0.5)) == [0, 0, 0, 0.5, 0, 0.5]
    assert waits(quick, *[("a", 1000.0)] * 4) == [0, 0, 0, 0.5]
    assert waits(slow, ("a", 0), ("a", 0), ("b", 0)) == [0, 1, 0]
    assert waits(RateLimit(per_second=1, burst=2), ("a", 100), ("a", 50)) == [0, 0]


def test_asking_takes_nothing() -> None:
    limit = RateLimit(per_second=1, burst=1)

    assert [limit.wait_seconds("a", 0, take=0) for _ in range(3)] == [0, 0, 0]
    assert [limit.wait_seconds("a", 0), limit.wait_seconds("a", 0, take=0)] == [0, 1]


def test_the_number_of_remembered_keys_is_bounded() -> None:
    limit = RateLimit(per_second=1, burst=1, remembered=2)

    assert waits(limit, ("a", 0), ("b", 0), ("c", 0), ("c", 0), ("a", 0)) == [0, 0, 0, 1, 0]  # `a` was forgotten


def test_places_are_limited_for_each_key_and_for_all() -> None:
    places = Concurrency(per_key=2, total=3)
    for key in "aab":
        places.enter(key)

    with pytest.raises(CallerBusy):
        places.enter("a")
    with pytest.raises(AllBusy):
        places.enter("c")
    places.leave("b")
    places.enter("c")
    for key in "aac":
        places.leave(key)
    assert places.active == 0


def test_a_key_may_have_fewer_places_than_others() -> None:
    places = Concurrency(per_key=3, total=9)
    places.enter("caller", "dataset", fewer={"dataset": 1})

    with pytest.raises(CallerBusy) as busy:
        places.enter("caller", "dataset", fewer={"dataset": 1})

    assert busy.value.most == 1
    places.enter("caller", "other", fewer={"other": 1})


PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def scope(
    client: str = "10.1.1.1", forwarded: str = "", path: str = "/v1/namespaces", method: str = "GET"
) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    return {"type": "http", "client": (client, 1234), "headers": headers, "path": path, "method": method}


@pytest.mark.parametrize(
    ("client", "forwarded", "expected"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),  # not a proxy: its header is a claim
        ("10.1.1.1", "198.51.100.1", "198.51.100.1"),
        ("10.1.1.1", "1.2.3.4, 198.51.100.1, 10.2.2.2", "198.51.100.1"),  # the first one was sent by the client
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("10.1.1.1", "10.2.2.2", "10.2.2.2"),
        ("10.1.1.1", "not an address", "not an address"),
        ("10.1.1.1", "", "10.1.1.1"),
    ],
)
def test_the_address_is_the_last_one_that_is_not_a_proxy(client: str, forwarded: str, expected: str) -> None:
    assert client_address(scope(client, forwarded), PROXIES) == expected


def test_proxies_are_networks() -> None:
    assert from_environment({"LETHE_GATEWAY_PROXIES": "10.0.0.0/8, fd00::/8"}).proxies == PROXIES
    with pytest.raises(InvalidSettings, match="LETHE_GATEWAY_PROXIES must be networks such as"):
        from_environment({"LETHE_GATEWAY_PROXIES": "10.0.0.1/8"})


@pytest.mark.parametrize(
    ("method", "path", "seconds"),
    [
        ("GET", "/v1/namespaces/ns/changes", None),
        ("GET", "/v1/namespaces/ns/datasets/changes", 30),
        ("GET", "/v1/namespaces/ns/datasets/flights/batches/2026/changes", 30),
        ("PUT", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}/files/0", 300),
        ("POST", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}/files/0", 30),
        ("GET", f"/v1/namespaces/ns/datasets/flights/uploads/{'0' * 32}:complete", 30),
    ],
)
def test_only_streams_last_for_ever_and_only_files_are_large(method: str, path: str, seconds: float | None) -> None:
    services = Services(GatewaySettings(namespaces=("ns",)), Rights(), Resources(), OneTable(), Writer(Resources()))

    bounds = Guard(lambda *_: None, services)._bounds(scope(path=path, method=method))  # type: ignore[arg-type, return-value]

    assert bounds.seconds == seconds
    assert (bounds.body_bytes == 16 << 20) == (seconds == 300)
