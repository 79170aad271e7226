"""The operator's settings, from environment variables and files. Pure, apart from default arguments and `with_files`."""

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, assert_never

from lethe import tracing
from lethe.base.errors import InputError, InvalidSettings
from lethe.base.objects import Retention, parse_retention
from lethe.contract.dataset import PodSize, RunTemplate
from lethe.contract.kubernetes import GIB, MIB, Bytes
from lethe.contract.schema import ApiModel
from lethe.contract.settings import Launcher
from lethe.erasure.record import PublicKey, Signer, load_known_keys, load_signer
from pydantic import Field, ValidationError

from lethe_operator.resources.boundaries import UNLIMITED, Boundaries, parse_boundaries
from lethe_operator.resources.common import ONLY_SHARD, Shard
from lethe_operator.resources.observed import Engine, EventsSettings, WarmEngine

S = TypeVar("S", bound=ApiModel)


class CommitterSettings(ApiModel):
    """The committer of each watched namespace, which carries out runs that write no data files."""

    enabled: bool = False
    name: str = "lethe-committer"
    """Of its ServiceAccount, its Lease and its mailbox ConfigMap."""


class WarmDriverSettings(ApiModel):
    """The warm driver of each watched namespace, which carries out small runs in a Spark session that stays up."""

    enabled: bool = False
    name: str = "lethe-warm-driver"
    """Of its ServiceAccount, its mailbox ConfigMap and its Job."""
    idle_seconds: int = Field(default=600, gt=0)
    """It ends after this time without a run."""
    values_idle_seconds: int = Field(default=60, gt=0)
    """The same for the one with the values of Erases and Redacts."""
    max_bytes_per_run: Bytes = Field(default=256 * MIB, gt=0)
    """A run that reads more is a Job."""
    max_run_seconds: int = Field(default=300, gt=0)
    """A run that takes longer is stopped, and retried as a Job."""
    max_waiting: int = Field(default=8, gt=0)
    """Runs in the mailbox; with more, further runs are Jobs."""
    yield_after_seconds: int = Field(default=15, ge=0)
    """If no node has room for a run's pod for this long, an idle warm driver ends."""
    driver: PodSize = PodSize(cpu=1, memory=2 * GIB, scratch=8 * GIB)
    """Its pod."""
    metrics_port: int | None = None
    """Of its pod, for Prometheus; None: it serves no metrics."""

    def name_of(self, engine: WarmEngine) -> str:
        """Name of the mailbox ConfigMap and the Job of one of the two. They share the ServiceAccount."""
        match engine:
            case Engine.WARM_DRIVER:
                return self.name
            case Engine.VALUES_DRIVER:
                return f"{self.name}-values"
            case _:
                assert_never(engine)


class RunLimits(ApiModel):
    """The limits of a run's pods, apart from memory."""

    cpu_factor: float = Field(default=4, ge=0)
    """CPU limit divided by CPU request; 0: no limit."""
    scratch: Bytes = Field(default=64 * GIB, gt=0)
    """Bytes on the node's disk, where the run template sets no scratch."""


class IdleChecks(ApiModel):
    """How often catalogs and buffers are checked for changes that no event reports."""

    pointer_seconds: float = Field(default=5, gt=0)
    """Seconds between two queries for the pointer of a table, at least."""
    catalog_queries_per_second: float = Field(default=40, gt=0)
    """Limit for all catalogs that need a query for each table. SQL catalogs need one for a thousand tables, and do not count."""
    # What the listings of all idle buffers may use, up to the longest pause: a share of one core, and requests to stores.
    listing_core_share: float = Field(default=0.05, gt=0, le=1)
    listing_requests_per_second: float = Field(default=20, gt=0)


class PodTemplateAllowed(ApiModel):
    """What spec.runTemplate.podTemplate of a Dataset may name.

    Entries are patterns, in which * matches any characters. An empty list allows nothing.
    """

    env: tuple[str, ...] = ("APP_*",)
    """Names of environment variables."""
    labels: tuple[str, ...] = ()
    """Keys."""
    annotations: tuple[str, ...] = ()
    """Keys."""
    priority_classes: tuple[str, ...] = ()
    """Names of PriorityClasses."""
    schedulers: tuple[str, ...] = ()
    """Names."""
    tolerations: tuple[str, ...] = ()
    """Keys of taints; a toleration without a key needs the entry *."""
    config_maps: tuple[str, ...] = ()
    """Names of ConfigMaps, as volumes and in variables."""
    volume_claims: tuple[str, ...] = ()
    """Names of PersistentVolumeClaims."""
    mount_paths: tuple[str, ...] = ("/mnt",)
    """Paths below which additional volumes are mounted; no patterns."""


@dataclass(frozen=True)
class BackOff:
    """Pauses that double after each further failure."""

    base_seconds: float
    """The pause after a first failure."""
    max_seconds: float
    """The longest pause."""


@dataclass(frozen=True)
class Settings:
    """What the process is configured with, read once, when it starts."""

    watch_namespaces: tuple[str, ...] = ("default",)
    # Of drivers and executors.
    spark_image: str = "lethe-spark:dev"
    image_pull_policy: str = "IfNotPresent"
    catalogs_secret: str = "lethe-catalogs"
    """Name of the Secret with `.pyiceberg.yaml`, unless the boundary of the namespace names another."""
    # Defaults for spec.runTemplate of Datasets.
    run_template: RunTemplate = field(default_factory=RunTemplate)
    run_limits: RunLimits = field(default_factory=RunLimits)
    committer: CommitterSettings = field(default_factory=CommitterSettings)
    idle_checks: IdleChecks = field(default_factory=IdleChecks)
    # Whether Kubeflow's Spark operator is installed, so that runs may be SparkApplications.
    spark_applications: bool = False
    kueue_pods: bool = False
    """Whether Kueue admits plain pods, so that Jobs in a queue may have executors."""
    warm_drivers: WarmDriverSettings = field(default_factory=WarmDriverSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    """Status events."""
    events_secret: Path | None = None
    """The folder with the files of the sink's Secret; None: there is no Secret."""
    allowed_secrets: tuple[str, ...] = ()
    """Names of the Secrets that a Dataset's pod template may refer to."""
    pod_template: PodTemplateAllowed = field(default_factory=PodTemplateAllowed)
    """What else a Dataset's pod template may name."""
    erase_secrets: tuple[str, ...] = ("erase-*",)
    """Patterns for the names of the Secrets that a Restatement may refer to."""
    erase_right: bool = False
    """Whether the requester of a Restatement with a subject needs the verb `erase` on each Dataset. Only true where the chart's
    policies check who the requester is."""
    boundaries: Boundaries = UNLIMITED
    """What each namespace may use."""
    user_namespaces: bool = False
    """The pods of runs have user namespaces of their own."""
    digest_key_secret: str = "lethe-digest-key"
    """Name of the Secret with the key `key` for digests of erased values."""
    record_retention: Retention | None = None
    """Object lock of erasure records in S3; None: no lock."""
    signer: Signer | None = None
    """Signs erasure records; None: they are not signed."""
    former_keys: tuple[PublicKey, ...] = ()
    """Keys that have signed records before, which stay valid."""
    resync_seconds: float = 15
    """The interval at which a Dataset is reconciled while something runs or waits, and first when it is idle."""
    resync_max_seconds: float = 300
    """The longest interval of an idle Dataset: each idle reconcile doubles the interval up to this, each change resets it."""
    retry: BackOff = BackOff(10, 360)
    """Pauses after a run that failed by itself."""
    infrastructure_retry: BackOff = BackOff(5, 120)
    """Pauses after a run that failed because of its infrastructure, such as a lost node."""
    max_run_seconds: int = 6 * 3600
    """Kubernetes stops a run after this time."""
    api_server: str = "https://kubernetes.default.svc:443"
    """Where drivers reach the API server."""
    probes_port: int | None = 8080
    """The port of /healthz and /readyz; None: no probes."""
    # None: no metrics.
    metrics_port: int | None = None
    log_level: str = "INFO"
    log_format: str = ""
    """Of the operator and of runs: "json", or "" for text."""
    tracing: tuple[tuple[str, str], ...] = ()
    """Names and values of OpenTelemetry's variables, for runs; empty: nothing is traced."""
    operator: str = ""
    """The release's name in the Lease of each watched namespace, the same for all pods of a shard; "": it uses no such Leases."""
    leader_lease: str = ""
    """`<namespace>/<name>` of the Lease that the leader of a shard holds; "": this is the only process of its shard."""
    identity: str = ""
    """The name of this process in that Lease, different for each pod."""
    shard: Shard = ONLY_SHARD
    """Which part of the release's namespaces `watch_namespaces` has."""
    cluster: str = ""
    """Identifies the cluster in the claim of a buffer; "": unknown."""

    @property
    def reporters(self) -> tuple[str, ...]:
        """ServiceAccounts of the processes of a namespace that report into the ConfigMaps of Datasets."""
        return tuple(s.name for s in (self.committer, self.warm_drivers) if s.enabled)


def launchers(settings: Settings) -> tuple[Launcher, ...]:
    """The kinds of objects that may launch runs in this cluster."""
    return (Launcher.JOB, Launcher.SPARK_APPLICATION) if settings.spark_applications else (Launcher.JOB,)


def pod_template_of(settings: Settings, namespace: str) -> PodTemplateAllowed:
    """What the pod templates of a namespace may name. Lists of its boundary replace the chart's."""
    lists = settings.boundaries.of(namespace).pod_template.model_dump(exclude_none=True)
    return settings.pod_template.model_copy(update=lists)


def catalogs_secret_of(settings: Settings, namespace: str) -> str:
    """The name of the Secret with the catalogs for the runs of a namespace."""
    return settings.boundaries.of(namespace).catalogs_secret or settings.catalogs_secret


def from_environment(env: Mapping[str, str] = os.environ) -> Settings:
    """All settings that environment variables contain.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
    """
    namespaces = _names(env.get("LETHE_WATCH_NAMESPACES", "default"))
    if not namespaces or "*" in namespaces:
        raise InvalidSettings(
            "LETHE_WATCH_NAMESPACES must be a comma-separated list of at least one namespace, without '*'"
        )
    shard = _shard(env, "LETHE_SHARD")
    template = _document(RunTemplate, env, "LETHE_RUN_TEMPLATE", "a Dataset's spec.runTemplate")
    limits = _document(RunLimits, env, "LETHE_RUN_LIMITS", "the chart's value runLimits")
    committer = _document(CommitterSettings, env, "LETHE_COMMITTER", "the chart's value committer")
    idle_checks = _document(IdleChecks, env, "LETHE_IDLE_CHECKS", "the chart's value idleChecks")
    warm_drivers = _document(WarmDriverSettings, env, "LETHE_WARM_DRIVERS", "the chart's value warmDrivers")
    status_events = _document(EventsSettings, env, "LETHE_EVENTS", "the chart's value events")
    allowed = _document(PodTemplateAllowed, env, "LETHE_POD_TEMPLATE_ALLOWED", "the chart's value podTemplate.allowed")
    default = Settings()
    return Settings(
        watch_namespaces=shard.of(namespaces),
        spark_image=env.get("LETHE_SPARK_IMAGE") or default.spark_image,
        image_pull_policy=env.get("LETHE_IMAGE_PULL_POLICY") or default.image_pull_policy,
        catalogs_secret=env.get("LETHE_CATALOGS_SECRET") or default.catalogs_secret,
        run_template=template,
        run_limits=limits,
        committer=committer,
        idle_checks=idle_checks,
        spark_applications=_flag(env, "LETHE_SPARK_APPLICATIONS"),
        kueue_pods=_flag(env, "LETHE_KUEUE_PODS"),
        user_namespaces=_flag(env, "LETHE_USER_NAMESPACES"),
        warm_drivers=warm_drivers,
        events=status_events,
        events_secret=Path(env["LETHE_EVENTS_SECRET"]) if env.get("LETHE_EVENTS_SECRET") else None,
        allowed_secrets=_names(env.get("LETHE_POD_TEMPLATE_ALLOWED_SECRETS", "")),
        pod_template=allowed,
        digest_key_secret=env.get("LETHE_DIGEST_KEY_SECRET") or default.digest_key_secret,
        record_retention=_retention(env, "LETHE_ERASURE_RECORD_RETENTION"),
        erase_secrets=_names(env.get("LETHE_ERASE_ALLOWED_SECRETS", ",".join(default.erase_secrets))),
        erase_right=_flag(env, "LETHE_ERASE_RIGHT"),
        resync_seconds=_seconds(env, "LETHE_RESYNC_SECONDS", default.resync_seconds),
        resync_max_seconds=_seconds(env, "LETHE_RESYNC_MAX_SECONDS", default.resync_max_seconds),
        retry=_back_off(env, "LETHE_RETRY", default.retry),
        infrastructure_retry=_back_off(env, "LETHE_INFRASTRUCTURE_RETRY", default.infrastructure_retry),
        max_run_seconds=int(_seconds(env, "LETHE_MAX_RUN_SECONDS", default.max_run_seconds)),
        api_server=env.get("LETHE_API_SERVER") or default.api_server,
        probes_port=_port(env, "LETHE_PROBES_PORT", default.probes_port),
        metrics_port=_port(env, "LETHE_METRICS_PORT"),
        operator=env.get("LETHE_OPERATOR", default.operator),
        leader_lease=_lease(env, "LETHE_LEADER_LEASE"),
        identity=env.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        shard=shard,
        log_level=(env.get("LETHE_LOG_LEVEL") or default.log_level).upper(),
        log_format=env.get("LETHE_LOG_FORMAT", ""),
        tracing=tuple((n, env[n]) for n in tracing.VARIABLES if env.get(tracing.ENDPOINT) and env.get(n)),
    )


def with_files(settings: Settings, env: Mapping[str, str] = os.environ) -> Settings:
    """Add the boundaries from LETHE_BOUNDARIES_FILE and the signing key from LETHE_SIGNING_KEY_FILE.

    Without the first variable, there are no boundaries; without the second, nothing is signed. I/O.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
        InvalidBoundaries: The file of boundaries is not valid; the message names the field.
    """
    key = env.get("LETHE_SIGNING_KEY_FILE")
    if key:
        settings = replace(settings, signer=_signer(key), former_keys=_former_keys(key))
    path = env.get("LETHE_BOUNDARIES_FILE")
    if not path:
        return settings
    try:
        text = Path(path).read_text()
    except OSError as e:
        raise InvalidSettings(
            f"LETHE_BOUNDARIES_FILE names {path}, which cannot be read ({e.strerror}). The operator does not start without its "
            "configured boundaries. Run helm upgrade to restore their ConfigMap."
        ) from None
    return replace(settings, boundaries=parse_boundaries(text, path))


def _signer(path: str) -> Signer:
    try:
        return load_signer(Path(path).read_bytes(), path)
    except OSError as e:
        why = f"{path} cannot be read ({e.strerror})"
    except InputError as e:
        why = e.message
    raise InvalidSettings(f"LETHE_SIGNING_KEY_FILE: {why}. See the chart's value erase.signing.")


def _former_keys(path: str) -> tuple[PublicKey, ...]:
    """The keys in the other `.pem` files beside the signing key, which the same Secret holds.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
    """
    keys: list[PublicKey] = []
    for file in sorted(Path(path).parent.glob("*.pem")):
        if file == Path(path):
            continue
        try:
            keys += load_known_keys(file.read_bytes(), str(file))
        except (OSError, InputError) as e:
            why = e.message if isinstance(e, InputError) else f"{file} cannot be read ({e.strerror})"
            raise InvalidSettings(f"LETHE_SIGNING_KEY_FILE: {why}. See the chart's value erase.signing.") from None
    return tuple(keys)


def _document(model: type[S], env: Mapping[str, str], name: str, like: str) -> S:
    try:
        return model.model_validate(json.loads(env.get(name) or "{}"))
    except (json.JSONDecodeError, ValidationError) as e:
        raise InvalidSettings(f"{name} must be JSON like {like}: {e}") from None


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip() or "false"
    if text not in ("true", "false"):
        raise InvalidSettings(f"{name} must be true or false, found {text!r}")
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))


def _back_off(env: Mapping[str, str], name: str, default: BackOff) -> BackOff:
    base = _seconds(env, f"{name}_BASE_SECONDS", default.base_seconds)
    return BackOff(base, _seconds(env, f"{name}_MAX_SECONDS", default.max_seconds))


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1
    if value <= 0:
        raise InvalidSettings(f"{name} must be a number of seconds above 0, found {text!r}")
    return value


def _retention(env: Mapping[str, str], name: str) -> Retention | None:
    try:
        return parse_retention(env.get(name, "").strip())
    except InputError as e:
        raise InvalidSettings(f"{name}: {e.message}") from None


def _port(env: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    text = env.get(name, "" if default is None else str(default)).strip()
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidSettings(f"{name} must be a port number, or empty for no port, found {text!r}")
    return int(text)


def _lease(env: Mapping[str, str], name: str) -> str:
    text = env.get(name, "").strip()
    if text and not all(text.partition("/")[::2]):
        raise InvalidSettings(
            f"{name} must be <namespace>/<name of a Lease>, or empty for no leader election, found {text!r}"
        )
    return text


def _shard(env: Mapping[str, str], name: str) -> Shard:
    text = env.get(name) or "0/1"
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InvalidSettings(
            f"{name} must be <index>/<number of shards> with an index below the number, found {text!r}"
        )
    return Shard(int(index), int(count))
