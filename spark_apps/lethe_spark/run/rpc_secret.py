"""Creates the secret by which a driver and its executors authenticate each other. I/O: a Kubernetes Secret and a file.

Without it, every pod that reaches the driver could connect to Spark's ports and run code. By default, Spark puts the secret into
the environment of the executors' pods, where all users who may read pods can see it. Instead, the driver generates the secret
and creates a Secret that Kubernetes deletes together with the driver's pod. The executors mount it. The operator does not know
it.
"""

import base64
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lethe.base.errors import TransientError
from lethe.kube import SECRETS, KubeError

from lethe_spark.run.kube import DRIVER, PodApi

log = logging.getLogger(__name__)

NAME: Final = (
    "LETHE_RPC_SECRET"  # of the Secret that the executors mount; the operator sets it for a driver with executors
)
KEY: Final = "secret"
DRIVER_FILE: Final = "spark.authenticate.secret.driver.file"
PAUSES_SECONDS: Final = (0.5, 2.0)
# The pod of a resumed run has the run's name for the Secret, and Kubernetes deletes that of the former pod some seconds after it.
FORMER_FOR_SECONDS: Final = 60.0
FORMER_PAUSE_SECONDS: Final = 2.0


def provide(environ: Mapping[str, str]) -> dict[str, str]:
    """Create the secret of this run. Does nothing for a driver without executors.

    Returns:
        The Spark settings that name the secret; empty for a driver without executors.

    Raises:
        TransientError: It cannot be created: a run with executors does not start without it.
    """
    name, api = environ.get(NAME), PodApi.from_environment(environ, DRIVER)
    if not name or api is None:
        return {}
    secret = secrets.token_hex(32)
    _create(api, name, secret, environ)
    file = Path(tempfile.gettempdir(), "lethe-rpc-secret")
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as stream:
        stream.write(secret)
    return {DRIVER_FILE: str(file)}


def manifest(name: str, secret: str, pod: str, pod_uid: str) -> dict[str, object]:
    """The Secret, owned by the driver's pod. Pure."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "immutable": True,
        "data": {KEY: base64.b64encode(secret.encode()).decode()},
    }


def _create(api: PodApi, name: str, secret: str, environ: Mapping[str, str]) -> None:
    document = manifest(name, secret, environ["POD_NAME"], environ["POD_UID"])
    until = time.monotonic() + FORMER_FOR_SECONDS
    pauses = iter(PAUSES_SECONDS)
    unknown = False  # whether an answer was lost: then an existing Secret may be the driver's own
    while True:
        try:
            api.kube.create(SECRETS, api.namespace, document)
            return
        except KubeError as e:
            unknown = unknown or e.status == 0
            if e.status == 409 and unknown:
                return
            if e.status == 409 and time.monotonic() < until:
                log.info("waiting until Kubernetes has deleted the Secret %s of a former pod", name)
                pause: float | None = FORMER_PAUSE_SECONDS
            else:
                pause = next(pauses, None) if e.status == 0 or e.status >= 500 else None
            if pause is None:
                raise _failed(name, str(e)) from None
        time.sleep(pause)


def _failed(name: str, why: str) -> TransientError:
    return TransientError(
        "NoRpcSecret",
        f"the Secret {name}, with which the driver and its executors authenticate each other, could not be "
        f"created ({why}). No executor is started without one. The next attempt uses another name.",
    )
