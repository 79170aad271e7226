"""AWS Glue as the catalog: PyIceberg's client and that of Iceberg's Java library, on tables and buffers in S3."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

import lethe
import lethe_spark
import pytest
from lethe.base.errors import ConflictError, InputError
from lethe.contract.run import BufferRef, RestatementRequest
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from lethe_spark.jobs.vacuum import purge
from lethe_spark.jvm.gateway import jvm
from lethe_spark.jvm.scan_tasks import ScannedFiles
from lethe_spark.sql import rest_servers
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.erases import Names, but, row
from tests.spark.support.maintenance import maintain
from tests.spark.support.story import ALL_GONE, Row, Story, of_arrow, of_batches, of_spark, put_on
from tests.spark.support.unknown_types import KINDS, add_column
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers import glue as servers
from tests.support.servers.faults import Switch
from tests.support.servers.faulty_proxy import before, forward_to
from tests.support.servers.glue import Glue
from tests.support.servers.stores import Place, s3_server


@dataclass(frozen=True)
class Glued:
    """A Dataset whose table is in Glue, and whose buffer is in S3."""

    story: Story
    glue: Glue
    place: Place
    folder: str = "buffer"

    @property
    def buffer(self) -> BufferRef:
        return BufferRef(uri=self.place.at(self.folder))

    def consolidate(self, *batch_ids: str, **at: object) -> None:
        for batch_id in batch_ids:
            put_on(self.place, self.folder, batch_id)
        self.story.run(self.story.consolidation(*batch_ids, buffer=self.buffer), **at)  # type: ignore[arg-type]

    def restate(self, request: RestatementRequest, **at: object) -> bool:
        spec = self.story.restatement(request, buffer=self.buffer)
        (result,) = self.story.run(spec, **at).requests  # type: ignore[arg-type]
        return result.succeeded

    def rows(self) -> Counter[Row]:
        return of_arrow(lethe.scan(self.story.full_name).to_arrow())


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glue]:
    with servers.running(tmp_path_factory.mktemp("glue") / "server") as found:
        yield found


@pytest.fixture
def glued(spark: SparkSession, lake: Lake, glue: Glue, request: pytest.FixtureRequest) -> Iterator[Glued]:
    """Batches A and B are in the table. The parameter is its format version.

    Glue's client in Java has the credentials of its process: on EKS those of the pod's role, here two system properties.
    """
    system = jvm(spark).java.lang.System
    with ExitStack() as stack:
        place = stack.enter_context(s3_server()).place("air")
        for name, value in (("aws.accessKeyId", servers.KEY), ("aws.secretAccessKey", servers.SECRET)):
            system.setProperty(name, value)
            stack.callback(system.clearProperty, name)
        # Spark keeps a catalog under its name, and each test has a store of its own.
        catalog = f"glued_{place.properties['s3.endpoint'].rpartition(':')[2]}"
        style = {"s3.path-style-access": "true"}
        lake.add_catalog(catalog, warehouse=place.at("wh"), **glue.properties, **place.properties, **style)
        make_session(catalog)
        found = Glued(
            Story.begin(spark, lake, catalog=catalog, format_version=getattr(request, "param", 2)), glue, place
        )
        found.consolidate("A", "B")
        yield found


def test_a_table_is_filled_reverted_read_and_vacuumed(glued: Glued) -> None:
    promoted = glued.rows()
    reverted = glued.restate(a_request("revert", batch_ids=["A"]))
    glued.story.run(glued.story.vacuuming(ALL_GONE, buffer=glued.buffer))

    assert (promoted, reverted, glued.rows()) == (of_batches("A", "B"), True, of_batches("B"))
    assert set(glued.story.table().scan().to_arrow()["batch_id"].to_pylist()) == {"B"}
    assert glued.glue.unversioned == 0


def test_of_two_restatements_at_one_moment_none_is_lost(glued: Glued) -> None:
    """The second one commits while the first one's update is on its way to Glue, which then refuses it: its version is old."""
    theirs: list[bool] = []
    refused = glued.glue.refused
    request = a_request("theirs", batch_ids=["B"])

    def commit_theirs_first() -> None:
        glued.glue.before_update = lambda: theirs.append(glued.restate(request))

    mine = glued.restate(a_request("mine", batch_ids=["A"]), before_commit=commit_theirs_first)

    assert (mine, theirs) == (True, [True])
    assert glued.glue.refused > refused
    assert set(glued.story.ledger().requests) == {"ns/mine/0", "ns/theirs/0"}
    assert glued.rows() == Counter()


@pytest.mark.parametrize("glued", [3], indirect=True)
@pytest.mark.parametrize("kind", some(KINDS, "variant"))
def test_batches_go_on_beside_a_column_of_a_type_that_lethe_does_not_know_and_after_it(glued: Glued, kind: str) -> None:
    """Glue's client of PyIceberg loads the table from its metadata, and that of Java tells Glue the columns of each commit."""
    story, columns = glued.story, ("v", "day", "batch_id")

    def rows() -> Counter[Row]:
        found = of_arrow(lethe.scan(story.full_name, columns=columns).to_arrow())
        assert of_spark(lethe_spark.read(story.spark, story.full_name).select(*columns)) == found
        return found

    add_column(story, kind)

    glued.consolidate("D")
    assert glued.restate(a_request("revert", batch_ids=["A"]))
    assert rows() == of_batches("B", "D")
    assert story.run(story.vacuuming(ALL_GONE, buffer=glued.buffer)).tombstones_purged == 1
    assert rows() == of_batches("B", "D")
    with pytest.raises(InputError, match=f"column shape has the type {kind}"):
        lethe.scan(story.full_name)

    story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    glued.consolidate("E")
    assert glued.rows() == of_batches("B", "D", "E")


# --- REST ------------------------------------------------------------------------------------------------------------
# Properties of a REST catalog, which PyIceberg and Spark must send alike. The server is Iceberg's own.


CALLERS = ("python", "spark")


@dataclass
class Heard:
    """Requests to the catalog: their path, headers and body."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def headers(self, name: str) -> set[str]:
        """The values that requests had for a header, other than those for a token."""
        return {h.get(name.lower(), "") for path, h, _ in self.requests if not path.endswith("/tokens")}


@pytest.fixture
def server(rest: Switch) -> str:
    """The server of the catalog `rest`."""
    assert rest.fault is None
    return str(catalogs.properties("rest")["uri"])


@contextmanager
def heard(server: str, lake: Lake, name: str, **properties: str) -> Iterator[Heard]:
    """A catalog of that name, whose requests are heard."""
    found, forward = Heard(), forward_to(server)

    def noted(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        found.requests.append((path.partition("?")[0], {k.lower(): v for k, v in headers.items()}, body))
        return forward(method, path, headers, body)

    with before(noted) as proxy:
        lake.add_catalog(name, type="rest", uri=proxy.endpoint, **properties)
        yield found


def ask(caller: str, spark: SparkSession, name: str) -> None:
    """Ask the catalog for its namespaces."""
    if caller == "python":
        catalogs.load(name).list_namespaces()
    else:
        make_session(name)
        spark.sql(f"SHOW NAMESPACES IN {name}").collect()


@pytest.mark.parametrize("caller", some(CALLERS, "spark"))
def test_requests_are_signed(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    signing = {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-central-1",
        "rest.signing-name": "glue",
        "client.access-key-id": "AKIDEXAMPLE",
        "client.secret-access-key": "of-the-signer",
        "client.region": "eu-central-1",
    }
    with heard(server, lake, f"signed_{caller}", **signing) as found:
        ask(caller, spark, f"signed_{caller}")

    assert found.requests
    for value in found.headers("Authorization"):
        assert value.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        assert "/eu-central-1/glue/aws4_request" in value


@pytest.mark.parametrize("caller", some(CALLERS, "python"))
def test_tokens_are_asked_for_an_audience(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    wanted = {"scope": "lake:read", "audience": "https://lake.example", "resource": "urn:lake"}
    with heard(server, lake, f"for_audience_{caller}", credential="me:secret", **wanted) as found:
        ask(caller, spark, f"for_audience_{caller}")

    asked = [parse_qs(body.decode()) for path, _, body in found.requests if path.endswith("/tokens")]
    assert asked
    assert {k: asked[0][k] for k in wanted} == {k: [v] for k, v in wanted.items()}
    assert all(v.startswith("Bearer ") for v in found.headers("Authorization"))


@pytest.mark.parametrize("caller", some(CALLERS, "spark"))
def test_each_request_has_the_headers(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    with heard(server, lake, f"with_header_{caller}", **{"header.X-Tenant": "lake-1"}) as found:
        ask(caller, spark, f"with_header_{caller}")

    assert found.headers("X-Tenant") == {"lake-1"}
    assert found.headers("X-Iceberg-Access-Delegation") == {"vended-credentials"}


# --- scans that a REST catalog plans ---------------------------------------------------------------------------------
# A REST catalog that wants to plan scans itself, and leaves out rows. The server and its planner are Iceberg's own.


CATALOG = "planned"


@pytest.fixture(scope="module")
def planner(spark: SparkSession, lake: Lake, rest: Switch) -> Iterator[list[str]]:
    """The catalog `planned`: it says of each table that it plans the scans, and a plan has only the first file. Returns the
    requests for plans."""
    assert (rest.fault, spark.sparkContext._jsc is None) == (None, False)
    forward, plans = forward_to(str(catalogs.properties("rest")["uri"])), list[str]()

    def answered(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        plainly = {k: v for k, v in headers.items() if k.lower() != "accept-encoding"}
        status, fields, content = forward(method, path, plainly, body)
        if status != 200 or not content.startswith(b"{"):
            return status, fields, content
        document = json.loads(content)
        if "metadata" in document:
            document["config"] = {**document.get("config", {}), "scan-planning-mode": "server"}
        if "plan" in path.rpartition("/tables/")[2]:
            plans.append(path)
            if document.get("file-scan-tasks"):
                document["file-scan-tasks"] = document["file-scan-tasks"][:1]
        changed = json.dumps(document).encode()
        kept = [(k, v) for k, v in fields if k.lower() not in ("content-length", "content-encoding", "etag")]
        return status, [*kept, ("Content-Length", str(len(changed)))], changed

    with before(answered) as proxy, pytest.MonkeyPatch.context() as patch:
        # As in a user's own Spark session, it is asked directly: otherwise the guard would drop what it says of plans.
        patch.setattr(rest_servers, "spark_properties", catalogs.spark_properties)
        lake.add_catalog(CATALOG, type="rest", uri=proxy.endpoint)
        make_session(CATALOG)
        yield plans


def plain(story: Story) -> Counter[Row]:
    story.spark.catalog.clearCache()
    return of_spark(story.spark.table(story.full_name))


def through_rest(story: Names) -> Names:
    """The same table, by a catalog that plans nothing."""
    return replace(story, catalog="rest")


def test_rewrites_keep_the_rows_that_the_plan_of_a_catalog_leaves_out(
    spark: SparkSession, lake: Lake, planner: list[str]
) -> None:
    story = Names.begin(spark, lake, catalog=CATALOG).filled()
    make_session("rest")
    everything = of_batches("A", "B", "D")
    assert plain(through_rest(story)) == everything
    assert plain(story) < everything
    assert planner

    assert story.revert("A").succeeded
    assert maintain(story, key="1", compact_small_files=True).tombstones_purged == 1
    assert story.erase(row("B", 1)).succeeded

    assert plain(through_rest(story)) == but(row("B", 1), batches=("B", "D"))


def test_a_rewrite_that_did_not_read_every_row_is_not_committed(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever leaves out rows between Spark and the files."""
    story = Story.begin(spark, lake).filled("AB")
    assert story.revert("A").succeeded
    head, files = story.head().snapshot_id, story.data_folder()
    original: Any = purge.scan_tasks

    def without_a_row(*arguments: Any) -> ScannedFiles:
        scanned: ScannedFiles = original(*arguments)
        return replace(scanned, frame=scanned.frame.filter("v % 1000 <> 1"))

    monkeypatch.setattr(purge, "scan_tasks", without_a_row)

    with pytest.raises(ConflictError, match=r"have 8 rows by the table's metadata, and Spark read 6") as refused:
        story.vacuum()

    assert refused.value.reason == "RowsDiffer"
    assert (story.head().snapshot_id, story.data_folder()) == (head, files)
