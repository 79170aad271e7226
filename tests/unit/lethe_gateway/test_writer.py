"""What a rejected change of a resource means for the caller."""

import pytest
from lethe.kube import AlreadyExists, Away, Conflict, KubeError, NotFound, RequestRefused
from lethe_gateway.problems import Kind
from lethe_gateway.resources.client import problem_of_change

RIGHT = "create restatements.lethe.dev in the namespace ns"
POST = "POST /apis/lethe.dev/v1alpha1/namespaces/ns/restatements: "


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RequestRefused(403, "Forbidden", f'{POST}restatements.lethe.dev is forbidden: User "ana" cannot create resource'),
            Kind.FORBIDDEN,
            f"You need the right to {RIGHT}.",
        ),
        # Admission and quota answer 403, too.
        (RequestRefused(403, "Forbidden", f"{POST}exceeded quota: q"), Kind.REJECTED, "exceeded quota: q"),
        (RequestRefused(422, "Invalid", f"{POST}spec.batchIds: Required value"), Kind.REJECTED, "spec.batchIds: Required value"),
        (AlreadyExists(409, "AlreadyExists", f'{POST}"r" already exists'), Kind.ALREADY_EXISTS, '"r" already exists.'),
        (NotFound(404, "NotFound", f"{POST}gone"), Kind.NOT_FOUND, ""),
        (RequestRefused(401, "Unauthorized", POST), Kind.UNAUTHENTICATED, ""),
        (Away(0, "", f"{POST}connection refused"), Kind.API_SERVER_AWAY, "does not answer"),
        (Conflict(409, "Conflict", POST), Kind.API_SERVER_AWAY, "Try again later"),
    ],
)  # fmt: skip
def test_it_says_what_the_api_server_said(error: KubeError, kind: Kind, said: str) -> None:
    problem = problem_of_change(error, RIGHT)

    assert problem.kind is kind
    assert said in problem.detail
    assert "/apis/" not in problem.detail
