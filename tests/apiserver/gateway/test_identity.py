"""Who may see what, as a real API server decides it."""

import base64
import json
import time

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from lethe.kube import DATASETS, SERVICE_ACCOUNTS, KubeError

from tests.support.clock import wait_until
from tests.support.gateway_lake import dataset
from tests.support.gateway_site import Site
from tests.support.servers.gateway import kube_of, running, token_of
from tests.support.servers.kubernetes import api_server

DATASET = "/v1/namespaces/default/datasets/flights"


def test_the_gateway_itself_may_read_nothing(site: Site) -> None:
    """Whoever takes its token sees no resource."""
    own = kube_of(site.server, site.token("lethe-gateway"))

    with pytest.raises(KubeError) as e:
        own.get(DATASETS, "default", "flights")

    assert e.value.status == 403


@pytest.mark.parametrize("header", ["", "Bearer", "Basic YTpi", "Bearer nonsense", "Bearer é", "bearer a b"])
def test_without_a_valid_token_everything_is_401(site: Site, header: str) -> None:
    with site.gateway.client() as client:
        for path in (DATASET, "/v1/namespaces", "/nothing"):
            answer = client.get(path, headers={"Authorization": header.encode()} if header else {})

            assert (answer.status_code, answer.json()["type"]) == (401, "https://lethe.dev/problems/unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_an_expired_token_is_401(site: Site) -> None:
    """Signed by the cluster's own key, and right in everything but its time."""
    now = int(time.time())

    def status(**times: int) -> int:
        with site.gateway.client(_signed_again(site, site.token("analyst"), **times)) as client:
            return client.get(DATASET).status_code

    assert (status(exp=now + 600), status(iat=now - 700, nbf=now - 700, exp=now - 60)) == (200, 401)


def test_a_token_ends_with_its_account(site: Site) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "short-lived"}}
    site.server.kube.create(SERVICE_ACCOUNTS, "default", account)
    with site.client("short-lived") as client:
        assert client.get("/v1/namespaces").json() == {"items": []}

        site.server.kube.delete(SERVICE_ACCOUNTS, "default", "short-lived")

        wait_until(lambda: client.get("/v1/namespaces").status_code == 401, 30)


def test_a_token_of_another_cluster_is_401(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    with api_server(tmp_path_factory.mktemp("foreign")) as other:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "analyst"}}
        other.kube.create(SERVICE_ACCOUNTS, "default", account)
        token = token_of(other.kube, "analyst")
    with site.gateway.client(token) as client:
        assert client.get(DATASET).status_code == 401


def test_what_a_caller_may_not_see_looks_as_if_it_were_absent(site: Site) -> None:
    """The analyst has no rights in secret-project, where there is a Dataset; there is no namespace `absent`."""
    paths = [
        "/v1/namespaces/secret-project/datasets/hidden",
        "/v1/namespaces/secret-project/datasets/absent",
        "/v1/namespaces/absent/datasets/hidden",
        "/v1/namespaces/not-served/datasets/hidden",
        "/v1/namespaces/default/datasets/absent",
        "/v1/namespaces/secret-project/datasets/hidden/batches",
        "/v1/namespaces/secret-project/datasets/hidden/batches/A",
        "/v1/namespaces/absent/datasets/hidden/erasures",
        "/v1/namespaces/secret-project/datasets",
        "/v1/namespaces/absent/datasets",
        "/v1/namespaces/secret-project/restatements",
        "/v1/namespaces/secret-project/changes",
        "/v1/namespaces/absent/changes",
        "/v1/nothing",
    ]
    with site.client("analyst") as client:
        answers = [client.get(path) for path in paths]

    assert {a.status_code for a in answers} == {404}
    assert len({a.content for a in answers}) == 1
    assert len({frozenset(a.headers.items()) - {("date", a.headers["date"])} for a in answers}) == 1


def test_namespaces_are_those_that_the_caller_may_list(site: Site) -> None:
    for account, expected in (("analyst", ["default"]), ("planner", ["default"]), ("outsider", [])):
        with site.client(account) as client:
            assert client.get("/v1/namespaces").json() == {"items": expected}


def test_batches_need_a_right_of_their_own(site: Site) -> None:
    with site.client("planner") as client:
        assert client.get(DATASET).status_code == 200
        for path in ("batches", "batches/A", "erasures", "erasures/erase-d"):
            answer = client.get(f"{DATASET}/{path}")

            assert (answer.status_code, answer.json()["type"]) == (403, "https://lethe.dev/problems/forbidden")
            assert "get datasets.lethe.dev/batches flights" in answer.json()["detail"]


def test_a_dataset_does_not_open_the_table_of_another(site: Site) -> None:
    """Whoever may create Datasets must not read, through the gateway's credentials, a table that belongs to another Dataset, nor
    learn that it exists, nor which catalogs there are."""
    tables = {"thief": "air.flights", "guess": "air.nothing", "batches": "air.flights_batches"}
    documents = [dataset(name, table=table) for name, table in tables.items()] + [dataset("stray", catalog="prod")]
    for document in documents:
        site.server.kube.create(DATASETS, "default", document)
    try:
        with site.client("analyst") as client:
            answers = {n: client.get(f"/v1/namespaces/default/datasets/{n}/batches") for n in (*tables, "stray")}
    finally:
        for document in documents:
            site.server.kube.delete(DATASETS, "default", document["metadata"]["name"])

    stray = answers.pop("stray")
    assert (stray.status_code, "lite" in stray.text) == (409, False)
    assert {a.json()["type"] for a in answers.values()} == {"https://lethe.dev/problems/no-table"}
    assert len({a.text.replace(tables[n], "") for n, a in answers.items()}) == 1


def test_a_token_needs_one_of_the_audiences(site: Site) -> None:
    """It also needs that of the API server, because resources are read with it."""
    both = ["https://kubernetes.default.svc", "lethe"]
    with running(site.folder / "audiences", **{**site.environ, "LETHE_GATEWAY_AUDIENCES": "lethe"}) as gateway:
        for audiences, expected in ((None, 401), (["other"], 401), (["lethe"], 401), (both, 200)):
            spec = {"audiences": audiences} if audiences else {}
            with gateway.client(site.token("analyst", **spec)) as client:
                assert client.get(DATASET).status_code == expected, audiences


def test_the_access_log_has_one_line_for_each_request_and_nothing_that_names_anybody(site: Site) -> None:
    token = site.token("analyst")
    with running(site.folder / "access-log", **site.environ) as gateway:
        with gateway.client(token) as client:
            client.get(f"{DATASET}/batches/my-secret-batch")
            asked = {"params": {"cursor": "a-value"}, "headers": {"Authorization": "Bearer a-bad-token"}}
            client.get("/v1/namespaces/my-secret-namespace/datasets", **asked)
        wait_until(lambda: len(gateway.access()) >= 2, 30)  # a line is written after its answer was sent

    other, one = sorted(gateway.access(), key=lambda line: line["status"])
    assert (one["route"], one["namespace"]) == (
        "/v1/namespaces/{namespace}/datasets/{dataset}/batches/{batchId:path}",
        "default",
    )
    assert one["dataset"] == "flights"
    assert (one["status"], one["problem"], other["status"], other["problem"]) == (
        404,
        "not-found",
        401,
        "unauthenticated",
    )
    text = gateway.log.read_text()
    for secret in (token, "my-secret", "a-value", "a-bad-token", "system:serviceaccount", "analyst"):
        assert secret not in text


def test_limits_of_one_caller_do_not_touch_another(site: Site) -> None:
    limits = '{"requestsPerSecond": 0.1, "burst": 2, "failuresPerMinute": 3}'
    with (
        running(site.folder / "limited", **{**site.environ, "LETHE_GATEWAY_LIMITS": limits}) as gateway,
        gateway.client(site.token("analyst")) as greedy,
        gateway.client(site.token("planner")) as modest,
        gateway.client("invalid") as bad,
    ):
        assert [greedy.get(DATASET).status_code for _ in range(3)] == [200, 200, 429]
        refused = greedy.get(DATASET)
        assert (refused.json()["type"], int(refused.headers["retry-after"]) > 1) == (
            "https://lethe.dev/problems/too-many-requests",
            True,
        )
        assert modest.get(DATASET).status_code == 200
        assert [bad.get(DATASET).status_code for _ in range(4)] == [401, 401, 401, 429]
        assert modest.get(DATASET).status_code == 200  # its token is known


def test_a_body_that_is_too_large_is_413(site: Site) -> None:
    with site.client("analyst") as client:
        answer = client.request("GET", DATASET, content=b"x" * (1 << 20) + b"x")

    assert (answer.status_code, answer.json()["type"]) == (413, "https://lethe.dev/problems/body-too-large")


def _signed_again(site: Site, token: str, **claims: int) -> str:
    """A token with other claims."""
    head, body, _ = token.split(".")
    changed = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | claims
    text = f"{head}.{_encoded(json.dumps(changed).encode())}"
    key = serialization.load_pem_private_key((site.folder / "cluster/api/sa.key").read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return f"{text}.{_encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
