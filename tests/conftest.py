"""Rules for all tests. docs/tests.md says what each folder is for."""

import os
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import documented_errors, profile

# What a machine cannot have, whatever is installed on it. Each other reason to skip a test fails the run: the tier has to
# install what the test needs.
PLATFORM_REASONS = (
    "only root may",
    "the kernel has no /proc",
    "this checkout has no history",
    "no JDK of version 25 or later",
)


# Of Hypothesis. The same examples each time. No limit of time, since a busy machine is no failure. No example changes the
# fixtures of its test.
_EXAMPLES = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("test", _EXAMPLES, max_examples=25)
settings.register_profile("all", _EXAMPLES, max_examples=500)
settings.load_profile(os.environ.get("LETHE_HYPOTHESIS_PROFILE") or "test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and call.excinfo is not None:
        reason = str(call.excinfo.value)
        if not reason.startswith(PLATFORM_REASONS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped: {reason}\ntests/conftest.py lists the reasons that count"
    return report


def pytest_configure(config: pytest.Config) -> None:
    # Of all JVMs that tests start: sessions, runs, servers. They live too short for code to be worth a second compilation.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    # kubectl remembers for hours what the API server at an address serves, and tests use ports again.
    cache = tempfile.TemporaryDirectory(prefix="lethe-kubectl-")
    config.add_cleanup(cache.cleanup)
    os.environ["KUBECACHEDIR"] = cache.name
    profile.register(config)
    documented_errors.check_provoked_errors()
