"""Iceberg's REST compatibility kit, asking the server that Spark asks about tables in a folder.

One JVM runs the kit and makes the metadata, both with the Iceberg of the Spark image. Each test of the kit gets an empty folder:
the kit empties a catalog by dropping its tables, which this one does not do.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from lethe.hadoop import FolderCatalog
from lethe_spark.jvm.gateway import java_list
from lethe_spark.jvm.metadata import JvmMetadata, escape_requests
from lethe_spark.jvm.standalone_jvm import SmallJvm
from lethe_spark.run.launching import class_path, jar_folders, launch_confs
from lethe_spark.sql.rest_servers import TOKEN, FolderServer, FolderTables

DOCS: Final = Path(__file__).parents[3] / "docs" / "sdk.md"
# RESTCompatibilityKitViewCatalogTests is left out as a whole: the catalog has no views.
CLASS: Final = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
FLAGS: Final = {
    "rck.requires-namespace-create": "false",
    "rck.supports-serverside-retry": "true",
    "rck.purge-test-namespaces": "false",
}
# What the catalog does not do, and the kit has no flag for. Each of these tests has to fail.
EXCLUDED: Final = {
    "A namespace exists as soon as it is used, has no properties, and cannot be dropped": {
        "testCreateExistingNamespace",
        "testCreateNamespace",
        "testCreateNamespaceWithProperties",
        "testDropNamespace",
        "testDropNonEmptyNamespace",
        "testDropNonexistentNamespace",
        "testListNonExistingNamespace",
        "testLoadNamespaceMetadata",
        "testRemoveNamespaceProperties",
        "testRemoveNamespacePropertiesNamespaceDoesNotExist",
        "testSetNamespaceProperties",
        "testSetNamespacePropertiesNamespaceDoesNotExist",
        "testUpdateAndSetNamespaceProperties",
        "testUpdateNamespaceProperties",
    },
    "Namespaces and tables are not listed": {"testListNamespaces", "testListTables"},
    "A table cannot be dropped": {
        "testDefaultTableProperties",
        "testDefaultTablePropertiesCreateTransaction",
        "testDefaultTablePropertiesReplaceTransaction",
        "testDropMissingTable",
        "testDropTable",
        "testDropTableWithPurge",
        "testDropTableWithoutPurge",
        "testOverrideTableProperties",
        "testOverrideTablePropertiesCreateTransaction",
        "testOverrideTablePropertiesReplaceTransaction",
        "testUUIDValidation",
    },
    "A table cannot be renamed": {
        "dropAfterRenameDoesntCorruptTable",
        "renameTableNamespaceMissing",
        "testRenameTable",
        "testRenameTableDestinationTableAlreadyExists",
        "testRenameTableMissingSourceTable",
    },
    "The name of a table determines its location": {
        "testCompleteCreateOrReplaceTransactionCreate",
        "testCompleteCreateOrReplaceTransactionReplace",
        "testCompleteCreateTable",
        "testCompleteCreateTransaction",
        "testCompleteCreateTransactionMultipleSchemas",
        "testCompleteCreateTransactionV2",
        "testCompleteReplaceTransaction",
        "testCreateTableWithDefaultColumnValue",
        "testLoadTable",
    },
    "A metadata file from elsewhere cannot be registered": {"testRegisterExistingTable", "testRegisterTable"},
    "A folder without a metadata file is no table": {"testLoadTableWithMissingMetadataFile"},
}


pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Kit:
    """The kit, in a JVM, against a server."""

    jvm: SmallJvm
    server: FolderServer
    metadata: JvmMetadata

    def tests(self) -> dict[str, list[str]]:
        """JUnit's unique ids by the name of the method: of the test, or of each of its cases."""
        plan = self._launcher().discover(self._request("selectClass", CLASS))
        (tests,) = (tests for engine in plan.getRoots() for tests in plan.getChildren(engine))  # one engine has tests
        found: dict[str, list[str]] = {}
        for test in plan.getChildren(tests):
            name, identity = str(test.getDisplayName()).partition("(")[0], str(test.getUniqueId())
            assert name not in found
            # A method with parameters gets its cases only when it runs; none has more than five.
            cases = [f"{identity}/[test-template-invocation:#{n}]" for n in range(1, 6)]
            found[name] = cases if test.isContainer() else [identity]
        return found

    def run(self, identity: str, folder: Path) -> Counter[str]:
        """Run one test in an empty folder: how often it passed, failed, or was left out by the kit. Empty: there is none."""
        self.server.tables = FolderTables(FolderCatalog("kit", warehouse=f"file://{folder}"), self.metadata)
        platform, new_array = self.jvm.gateway.jvm.org.junit.platform.launcher, self.jvm.gateway.new_array
        listeners = new_array(platform.TestExecutionListener, 1)
        listeners[0] = listener = platform.listeners.SummaryGeneratingListener()
        self._launcher().execute(self._request("selectUniqueId", identity), listeners)
        summary = listener.getSummary()
        for failure in summary.getFailures():
            print(failure.getTestIdentifier().getDisplayName(), failure.getException().toString())
        counts = {
            "passed": summary.getTestsSucceededCount(),
            "failed": summary.getTotalFailureCount(),
            "left out": summary.getTestsAbortedCount() + summary.getTestsSkippedCount(),
        }
        return +Counter(counts)

    def _launcher(self) -> Any:
        return self.jvm.gateway.jvm.org.junit.platform.launcher.core.LauncherFactory.create()

    def _request(self, select: str, what: str) -> Any:
        jvm = self.jvm.gateway.jvm
        selector = getattr(jvm.org.junit.platform.engine.discovery.DiscoverySelectors, select)(what)
        builder = jvm.org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder.request()
        return builder.selectors(java_list(jvm, [selector])).configurationParameter("rck.local", "false").build()


@pytest.fixture(scope="module")
def kit() -> Iterator[Kit]:
    folders = jar_folders(os.environ)
    path = class_path([*folders, f"{folders[0]}/kit"])
    assert any("iceberg-open-api" in jar for jar in path), f"no jars in {folders[0]}/kit: run `make jars`"
    jvm = SmallJvm.start(launch_confs({"spark.driver.extraClassPath": os.pathsep.join(path)}, os.environ))
    escape_requests(jvm.gateway)
    metadata = JvmMetadata(jvm.gateway)
    server = FolderServer(FolderTables(FolderCatalog("kit", warehouse="file:///nowhere"), metadata))
    for key, value in {**FLAGS, "uri": server.uri, f"header.{TOKEN}": server.token}.items():
        jvm.gateway.jvm.java.lang.System.setProperty(key, value)
    yield Kit(jvm, server, metadata)
    server.close()
    jvm.gateway.shutdown()
    jvm.process.communicate(timeout=30)


def test_the_kit_passes_except_for_what_the_catalog_does_not_do(kit: Kit, tmp_path: Path) -> None:
    results: dict[str, Counter[str]] = {}
    for number, (name, identities) in enumerate(kit.tests().items()):
        results[name] = Counter()
        for case, identity in enumerate(identities):
            found = kit.run(identity, tmp_path / f"{number}-{case}")
            if not found:
                break
            results[name] += found

    excluded = {name for names in EXCLUDED.values() for name in names}
    assert {name for name, found in results.items() if found["failed"]} == excluded
    passed = [name for name, found in results.items() if set(found) == {"passed"}]
    by_flag = [name for name, found in results.items() if set(found) == {"left out"}]
    assert len(passed) + len(by_flag) + len(excluded) == len(results)
    text = " ".join(DOCS.read_text().split())
    assert f"{len(passed)} of the {len(results)} tests for tables and namespaces pass" in text
    assert f"leaves out {len(by_flag)} itself" in text
    for reason, names in EXCLUDED.items():
        assert f"| {reason} | {len(names)} |" in text
