"""Connections of this process to the Kubernetes API. I/O."""

from collections.abc import Mapping
from typing import Any, Final

import kubernetes.client
import kubernetes.config
from kubernetes.config.config_exception import ConfigException
from lethe.contract.settings import Launcher
from lethe.kube import JOBS, SPARK_APPLICATIONS, USUAL, ApiEndpoint, Kube, ResourceKind, TimeLimits

# Of the requests for Leases: a renewal that hangs leaves time for another one.
OF_LEASES: Final = TimeLimits(connect_seconds=1, read_seconds=2, retries=0)
KIND_OF: Final[Mapping[Launcher, ResourceKind]] = {
    Launcher.JOB: JOBS,
    Launcher.SPARK_APPLICATION: SPARK_APPLICATIONS,
}


def connect(limits: TimeLimits = USUAL) -> Kube:
    """Connect with the pod's ServiceAccount, else with the kubeconfig.

    Raises:
        ConfigException: There is no configuration of a cluster.
    """
    return Kube(api_server(), limits)


def connect_for_callers(limits: TimeLimits = USUAL) -> Kube:
    """A client without credentials, for `with_token`.

    Raises:
        ConfigException: There is no configuration of a cluster.
    """
    server = api_server()
    return Kube(ApiEndpoint(server.url, server.ca_file, server.verify), limits)


def connect_for_leases() -> Kube:
    """A client with connections of its own and short time limits.

    Raises:
        ConfigException: There is no configuration of a cluster.
    """
    return Kube(api_server(), OF_LEASES)


def api_server() -> ApiEndpoint:
    """The API server of the pod's ServiceAccount, else of the kubeconfig.

    Raises:
        ConfigException: There is no configuration of a cluster.
    """
    try:
        kubernetes.config.load_incluster_config()
    except ConfigException:
        kubernetes.config.load_kube_config()
    return of_configuration(kubernetes.client.Configuration.get_default_copy())


def of_configuration(configuration: Any) -> ApiEndpoint:
    """What a configuration of the package `kubernetes` says."""

    def authorization() -> str:
        for key in ("BearerToken", "authorization"):  # the name depends on the version of the package
            # The call refreshes the token.
            text = configuration.get_api_key_with_prefix(key)
            if text:
                return str(text) if " " in str(text) else f"Bearer {text}"
        return ""

    return ApiEndpoint(
        configuration.host,
        configuration.ssl_ca_cert,
        configuration.verify_ssl,
        configuration.cert_file,
        configuration.key_file,
        authorization,
    )
