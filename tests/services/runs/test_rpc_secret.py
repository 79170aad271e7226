"""The secret of a run's Spark connections: who makes it, who may see it, and that no run with executors goes on without."""

import base64
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe.base.errors import TransientError
from lethe_local.api.objects import SECRETS
from lethe_spark.run import executors
from lethe_spark.run.executors import DRIVER_FILE, provide

from tests.support.api_server import NAMESPACE, ApiServer, running

PATH = SECRETS.path(NAMESPACE)
NAME = "flights-0123-1-rpc"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(executors, "PAUSES_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(executors, "FORMER_PAUSE_SECONDS", 0.01)
    with running(tmp_path) as found:
        yield found


def environment(server: ApiServer) -> dict[str, str]:
    return {**server.environment, "LETHE_RPC_SECRET": NAME, "POD_NAME": "driver", "POD_UID": "uid-1"}


def test_the_driver_creates_a_secret_that_its_pod_owns_and_no_other_user_may_read(server: ApiServer) -> None:
    confs = provide(environment(server))

    made = server.get(NAME, SECRETS)
    file = Path(confs[DRIVER_FILE])
    assert base64.b64decode(made["data"]["secret"]).decode() == file.read_text()
    assert len(file.read_text()) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert made["immutable"] is True
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "driver", "uid": "uid-1"}


def test_no_two_runs_have_the_same_secret(server: ApiServer) -> None:
    texts = set()
    for name in ("a", "b"):
        confs = provide({**environment(server), "LETHE_RPC_SECRET": name})
        texts.add(Path(confs[DRIVER_FILE]).read_text())

    assert len(texts) == 2


def test_a_driver_without_executors_has_none(server: ApiServer) -> None:
    assert provide(server.environment) == {}
    assert provide({"LETHE_RPC_SECRET": NAME}) == {}
    assert server.requests == []


def test_the_pod_of_a_resumed_run_waits_until_the_secret_of_the_former_pod_is_gone(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create(NAME, SECRETS, data={"secret": "former"})

    def collect(_seconds: float) -> None:
        if len(server.requests) == 3:
            server.delete(NAME, SECRETS)

    monkeypatch.setattr("lethe_spark.run.executors.time.sleep", collect)

    confs = provide(environment(server))

    made = server.get(NAME, SECRETS)
    assert base64.b64decode(made["data"]["secret"]).decode() == Path(confs[DRIVER_FILE]).read_text()
    assert len(server.requests) == 4


def test_a_secret_of_that_name_that_somebody_else_put_there_is_not_used(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever put it there knows it."""
    monkeypatch.setattr(executors, "FORMER_FOR_SECONDS", 0.1)
    server.create(NAME, SECRETS, data={"secret": "known"})

    with pytest.raises(TransientError, match=NAME) as raised:
        provide(environment(server))

    assert raised.value.reason == "NoRpcSecret"
    assert not Path(tempfile.gettempdir(), "lethe-rpc-secret").exists()


def test_a_lost_answer_is_asked_for_again_and_the_secret_found_is_its_own(server: ApiServer) -> None:
    server.lost_answers = [("POST", PATH)]

    confs = provide(environment(server))

    made = server.get(NAME, SECRETS)
    assert base64.b64decode(made["data"]["secret"]).decode() == Path(confs[DRIVER_FILE]).read_text()
    assert server.requests == [("POST", PATH)] * 2


@pytest.mark.parametrize(("refusals", "requests"), [([403], 1), ([503, 503, 503], 3)])
def test_no_run_with_executors_goes_on_without_one(server: ApiServer, refusals: list[int], requests: int) -> None:
    server.refusals = [("POST", "secrets", status) for status in refusals]

    with pytest.raises(TransientError) as raised:
        provide(environment(server))

    assert raised.value.reason == "NoRpcSecret"
    assert len(server.requests) == requests
