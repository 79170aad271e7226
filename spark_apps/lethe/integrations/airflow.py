"""Lethe in Airflow 3: operators that deliver a batch and create a Restatement, and a sensor for a batch. I/O: HTTP, and files.

What a DAG run delivers has its run id as the reference. Operators wait in the triggerer, so that they take no worker's slot.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from lethe.base.errors import InputError, TransientError
from lethe.client import Document, GatewayClient

CONNECTION: Final = "lethe_default"
_RETURNED: Final = ("id", "name", "state", "phase", "rows", "snapshotIdText", "result")
"""The fields of a batch or a Restatement that become an XCom."""


class LetheHook(BaseHook):
    """Connects to the gateway.

    The connection has its URL as `host`, a token of the cluster as `password`, and as `extra` the `namespace` (by default
    `default`), and if needed the `ca_file`, and a `token_file` to read the current token from instead of the password.
    """

    conn_name_attr = "lethe_conn_id"
    default_conn_name = CONNECTION
    conn_type = "lethe"
    hook_name = "Lethe"

    def __init__(self, lethe_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self.lethe_conn_id = lethe_conn_id

    def get_conn(self) -> GatewayClient:
        """A client of the gateway."""
        return _client(self.get_connection(self.lethe_conn_id))


class LetheTrigger(BaseTrigger):
    """Waits in the triggerer until a batch is promoted, or a Restatement is committed.

    Its event has the `reached` document, or the `error` that says why that will not happen.
    """

    def __init__(self, awaited: Mapping[str, str], lethe_conn_id: str = CONNECTION, poll_seconds: float = 5) -> None:
        """Create `LetheTrigger`.

        Args:
            awaited: A `dataset` and the `batch_id`, or a `restatement`.
            lethe_conn_id: The connection.
            poll_seconds: Between two looks.
        """
        super().__init__()
        self.awaited = dict(awaited)
        self.lethe_conn_id = lethe_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        arguments = {"awaited": self.awaited, "lethe_conn_id": self.lethe_conn_id, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the event. While the gateway is away, the wait goes on until the task's timeout."""
        with _client(await BaseHook.aget_connection(self.lethe_conn_id)) as gateway:
            look = _look(gateway, self.awaited)
            while True:
                try:
                    reached = await asyncio.to_thread(look)
                except TransientError as e:
                    self.log.warning("%s", e)
                    reached = None
                except InputError as e:
                    yield TriggerEvent({"error": str(e)})
                    return
                if reached is not None:
                    yield TriggerEvent({"reached": _returned(reached)})
                    return
                await asyncio.sleep(self.poll_seconds)


class _Waiting:
    """An operator that waits in the triggerer, or in the worker if it is not `deferrable`."""

    lethe_conn_id: str
    deferrable: bool
    wait_seconds: float

    def wait_for(self, **awaited: str) -> Document:
        """What was waited for, if the operator is not deferrable.

        Raises:
            AirflowFailException: NotPromoted, NotRestated: a retry would end in the same way.
            TransientError: NotPromotedYet, NotRestatedYet, or the gateway is away.
        """
        if self.deferrable:
            self.defer(  # type: ignore[attr-defined]  # of BaseOperator
                trigger=LetheTrigger(awaited, self.lethe_conn_id),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.wait_seconds),
            )
        with LetheHook(self.lethe_conn_id).get_conn() as gateway, _failing_for_good():
            if "restatement" in awaited:
                return _returned(gateway.wait(awaited["restatement"], self.wait_seconds))
            return _returned(gateway.wait_for_batch(awaited["dataset"], awaited["batch_id"], self.wait_seconds))

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Document:  # noqa: ARG002
        """End the task with the event of the trigger.

        Raises:
            AirflowFailException: A retry would end in the same way.
        """
        if error := event.get("error"):
            raise AirflowFailException(error)
        return dict(event["reached"])


class LetheDeliverOperator(_Waiting, BaseOperator):
    """Uploads the data files of a folder as one batch, whose reference is the run id, and waits until it is promoted.

    A retry goes on where the last attempt ended, and never delivers the batch twice.
    """

    template_fields = ("dataset", "folder", "batch_id")

    def __init__(
        self,
        *,
        dataset: str,
        folder: str,
        batch_id: str = "{{ run_id }}",
        wait: bool = True,
        deferrable: bool = True,
        wait_seconds: float = 3600,
        lethe_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        """Create `LetheDeliverOperator`.

        Args:
            dataset: The name of the Dataset.
            folder: The folder with the batch's files.
            batch_id: The id of the batch. An id is used once: after a run was taken back, start a new one instead of clearing it.
            wait: False: the task ends when the batch is in the buffer.
            deferrable: Whether the triggerer waits.
            wait_seconds: How long to wait at most.
            lethe_conn_id: The connection.
            kwargs: Those of every operator.
        """
        super().__init__(**kwargs)
        self.dataset, self.folder, self.batch_id = dataset, folder, batch_id
        self.wait, self.deferrable, self.wait_seconds = wait, deferrable, wait_seconds
        self.lethe_conn_id = lethe_conn_id

    def execute(self, context: Mapping[str, Any]) -> Document:
        """Upload the batch, and wait.

        Raises:
            AirflowFailException: The id of the batch is used: a retry would end in the same way.
            Exception: The other errors of `GatewayClient.put`.
        """
        with LetheHook(self.lethe_conn_id).get_conn() as gateway, _failing_for_good("BatchIdUsed"):
            gateway.put(self.dataset, self.batch_id, self.folder, reference=context["run_id"])
        if not self.wait:
            return {"id": self.batch_id, "state": "buffered"}
        return self.wait_for(dataset=self.dataset, batch_id=self.batch_id)


class LetheRestateOperator(_Waiting, BaseOperator):
    """Creates a Restatement, and waits for its commit. A retry finds the one that it created before."""

    template_fields = ("spec", "name")

    def __init__(
        self,
        *,
        spec: Mapping[str, Any],
        name: str = "",
        deferrable: bool = True,
        wait_seconds: float = 3600,
        lethe_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        """Create `LetheRestateOperator`.

        Args:
            spec: As in YAML: `{"datasetRef": {"name": "flights"}, "operation": "Revert", "selector": {"reference": run_id}}`.
            name: Empty: made from the spec, so that the same spec is carried out once.
            deferrable: Whether the triggerer waits.
            wait_seconds: How long to wait at most.
            lethe_conn_id: The connection.
            kwargs: Those of every operator.
        """
        super().__init__(**kwargs)
        self.spec, self.name = dict(spec), name
        self.deferrable, self.wait_seconds, self.lethe_conn_id = deferrable, wait_seconds, lethe_conn_id

    def execute(self, context: Mapping[str, Any]) -> Document:  # noqa: ARG002
        """Create the Restatement, and wait. Raises: those of `GatewayClient.restate`."""
        with LetheHook(self.lethe_conn_id).get_conn() as gateway:
            created = gateway.restate(self.spec, self.name)
        return self.wait_for(restatement=created["name"])


class LetheBatchSensor(_Waiting, BaseSensorOperator):
    """Waits until a batch, which another program delivers, is promoted. It fails if the batch is refused or taken back."""

    template_fields = ("dataset", "batch_id")

    def __init__(
        self, *, dataset: str, batch_id: str, deferrable: bool = True, lethe_conn_id: str = CONNECTION, **kwargs: Any
    ) -> None:
        """Create `LetheBatchSensor`.

        Args:
            dataset: The name of the Dataset.
            batch_id: The id of the batch.
            deferrable: Whether the triggerer waits. Otherwise the sensor pokes.
            lethe_conn_id: The connection.
            kwargs: Those of every sensor, such as `timeout`.
        """
        super().__init__(**kwargs)
        self.dataset, self.batch_id = dataset, batch_id
        self.deferrable, self.lethe_conn_id, self.wait_seconds = deferrable, lethe_conn_id, self.timeout

    def execute(self, context: Mapping[str, Any]) -> Document | None:
        """Defer, or poke."""
        if self.deferrable:
            return self.wait_for(dataset=self.dataset, batch_id=self.batch_id)
        return super().execute(context)

    def poke(self, context: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the batch is promoted.

        Raises:
            AirflowFailException: It was refused or taken back: a retry would end in the same way.
            TransientError: The gateway is away.
        """
        with LetheHook(self.lethe_conn_id).get_conn() as gateway, _failing_for_good():
            return gateway.promoted(self.dataset, self.batch_id) is not None


@contextmanager
def _failing_for_good(*reasons: str) -> Iterator[None]:
    """Fail the task without further retries, as the trigger does.

    Args:
        reasons: Those for which a retry would end in the same way; none: all that a user has to change.

    Raises:
        AirflowFailException: For one of these reasons.
    """
    try:
        yield
    except InputError as e:
        if reasons and e.reason not in reasons:
            raise
        raise AirflowFailException(str(e)) from e


def _client(connection: Any) -> GatewayClient:
    extra = connection.extra_dejson
    token: str | Callable[[], str] = connection.password or ""
    if file := extra.get("token_file"):
        token = lambda: Path(file).read_text().strip()  # noqa: E731
    return GatewayClient(connection.host, token, extra.get("namespace", "default"), extra.get("ca_file"))


def _look(gateway: GatewayClient, awaited: Mapping[str, str]) -> Callable[[], Document | None]:
    if "restatement" in awaited:
        return lambda: gateway.restated(awaited["restatement"])
    return lambda: gateway.promoted(awaited["dataset"], awaited["batch_id"])


def _returned(document: Mapping[str, Any]) -> Document:
    return {name: document[name] for name in _RETURNED if name in document}
