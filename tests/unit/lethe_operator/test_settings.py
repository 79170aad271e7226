"""Environment -> settings."""

import pytest
from lethe.base.errors import InvalidSettings
from lethe.contract.kubernetes import MIB
from lethe_operator.settings import from_environment


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = from_environment({})

    assert (settings.watch_namespaces, settings.resync_seconds, settings.retry.max_seconds) == (("default",), 15, 360)


def test_lists_are_split_at_commas_and_the_chart_s_run_template_is_read() -> None:
    settings = from_environment(
        {
            "LETHE_WATCH_NAMESPACES": "a, b,a",
            "LETHE_POD_TEMPLATE_ALLOWED_SECRETS": "s1,s2",
            "LETHE_RUN_TEMPLATE": '{"driver": {"cpu": "500m", "memory": "1Gi"}, "executors": {"max": 2}}',
        }
    )

    assert (settings.watch_namespaces, settings.allowed_secrets) == (("a", "b"), ("s1", "s2"))
    assert (
        settings.run_template.driver.cpu,
        settings.run_template.driver.memory,
        settings.run_template.executors.max,
    ) == (0.5, 1024 * MIB, 2)


def test_metrics_are_served_when_a_port_is_named() -> None:
    assert [from_environment({"LETHE_METRICS_PORT": p}).metrics_port for p in ("9090", "")] == [9090, None]


@pytest.mark.parametrize(
    "env",
    [
        {"LETHE_WATCH_NAMESPACES": " , "},
        {"LETHE_WATCH_NAMESPACES": "*"},
        {"LETHE_RUN_TEMPLATE": "{"},
        {"LETHE_RUN_TEMPLATE": '{"driver": {"memory": "much"}}'},
        {"LETHE_IDLE_CHECKS": '{"pointerSeconds": 0}'},
        {"LETHE_RESYNC_SECONDS": "0"},
        {"LETHE_RESYNC_MAX_SECONDS": "0"},
        {"LETHE_RETRY_BASE_SECONDS": "soon"},
        {"LETHE_INFRASTRUCTURE_RETRY_MAX_SECONDS": "0"},
        {"LETHE_ERASURE_RECORD_RETENTION": "FOREVER:1"},
        {"LETHE_METRICS_PORT": "http"},
        {"LETHE_METRICS_PORT": "70000"},
        {"LETHE_PROBES_PORT": "0"},
        {"LETHE_LEADER_LEASE": "lethe-operator"},
        {"LETHE_SHARD": "2/2"},
        {"LETHE_SHARD": "first"},
    ],
)
def test_a_variable_that_cannot_be_used_is_named(env: dict[str, str]) -> None:
    (name,) = env

    with pytest.raises(InvalidSettings, match=name):
        from_environment(env)


def test_replicas_have_different_names_and_shards_different_namespaces() -> None:
    both = [from_environment({"LETHE_LEADER_LEASE": "system/lethe-operator"}) for _ in range(2)]
    assert [s.leader_lease for s in both] == ["system/lethe-operator"] * 2
    assert len({s.identity for s in both}) == 2
    assert from_environment({"POD_NAME": "pod-1"}).identity == "pod-1"
    assert from_environment({}).probes_port == 8080

    shards = [from_environment({"LETHE_WATCH_NAMESPACES": "a,b,c,d", "LETHE_SHARD": f"{n}/2"}) for n in range(2)]
    assert sorted(n for s in shards for n in s.watch_namespaces) == ["a", "b", "c", "d"]
