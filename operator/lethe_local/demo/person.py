"""The part of the demo about a person: one request erases her from three tables, and every byte is searched for her. I/O.

The search does not use Lethe: it decodes each file by itself, and reads all resources of the API server.
"""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import fastavro
import lethe
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.kube import DATASETS
from lethe.local_folder import HOME_ENV

from lethe_local.api.objects import kinds
from lethe_local.cli import apply_document, documents, kind_of
from lethe_local.demo.story import (
    BATCH_COLUMN,
    Batch,
    DemoStep,
    Story,
    World,
    check,
    expected,
    fail,
    promoted,
    say,
    succeeded,
    to_parquet,
)
from lethe_local.folder import NAMESPACE

PERSON: Final = "ada.lovelace.4f81@example.org"
AIRCRAFT: Final = "N299AT"
CARD: Final = 7_310_044_219
REQUEST: Final = "erase-ada"
OTHERS: Final = 20
"""Other travellers of each month."""
_PASSENGER: Final = pa.struct([("email", pa.string()), ("name", pa.string())])


@dataclass(frozen=True)
class Traveller:
    """Somebody with a booking in each month."""

    email: str
    name: str
    card: int
    aircraft: str


TRAVELLERS: Final = (
    *(Traveller(f"passenger{n}@example.org", f"Passenger {n}", 1_000 + n, f"N{n}") for n in range(OTHERS)),
    Traveller(PERSON, "Ada", CARD, AIRCRAFT),
)


def batches(dataset: str) -> Iterator[Batch]:
    """The batches of a Dataset, one for each month."""
    for month in range(1, 13):
        days = pa.array([date(2013, month, 1)] * len(TRAVELLERS), pa.date32())
        columns: dict[str, Any] = {"card": pa.array([t.card for t in TRAVELLERS], pa.int64()), "day": days}
        if dataset == "bookings":
            people = [{"email": t.email, "name": t.name} for t in TRAVELLERS]
            columns |= {"passenger": pa.array(people, _PASSENGER), "tailnum": [t.aircraft for t in TRAVELLERS]}
        else:
            columns |= {"points": pa.array([100] * len(TRAVELLERS), pa.int32())}
        yield Batch(f"2013-{month:02}", len(TRAVELLERS), to_parquet(pa.table(columns)))


def _all_promoted(dataset: str) -> Callable[[World], bool]:
    return lambda world: promoted(world.statuses.get(("Dataset", dataset), {})) == 12


@dataclass(frozen=True)
class PersonStory:
    """After the other steps of the demo."""

    story: Story

    def tell(self) -> None:
        """Run all steps in order. The first number that is wrong ends the process with exit code 1."""
        self.fill()
        self.erase()
        self.verify()
        self.search()

    def fill(self) -> None:
        """Add the tables of bookings and of the loyalty programme, and say which columns name a person."""
        story = self.story
        for name in ("bookings", "loyalty"):
            for batch in batches(name):
                story.lake.put_batch(story.lake.buffer.parent / name / f"{BATCH_COLUMN}={batch.id}", batch)
        step = DemoStep(
            "lethe local apply -f travellers.yaml: bookings, and a loyalty programme that knows only cards", story.look
        )
        for _, document in documents((story.lake.manifests / "travellers.yaml",)):
            apply_document(story.kube, kind_of(document["kind"]), document)
        via = {"dataset": "bookings", "from": "passenger.email", "to": "tailnum"}
        identities = [{"name": "customer", "column": "tailnum", "via": via}]
        story.kube.patch(DATASETS, NAMESPACE, "flights", {"spec": {"identities": identities}})
        for name in ("bookings", "loyalty"):
            step.wait(f"the batches of {name}", _all_promoted(name))
        step.done(
            f"a year of bookings: {12 * len(TRAVELLERS)} rows; the person has 12 bookings, a card and her own aircraft"
        )
        found = self._found()
        for place in ("air/flights/data/", "air/bookings/data/", "air/loyalty/data/"):
            if not any(place in name for name in found):
                fail(f"the search does not find the person in {place}")

    def erase(self) -> None:
        """Ask for the erasure by the command, and wait until all tables are verified."""
        arguments = ("erase", "--everywhere", "--subject", "customer", "--values", "-", "--name", REQUEST)
        step = DemoStep(
            f"lethe {' '.join(arguments)} --evict-by-seconds 60: one request for all tables", self.story.look
        )
        self._lethe(*arguments, "--evict-by-seconds", "60", "--ticket", "PRIVACY-12")
        step.wait(
            "the erasure from all tables",
            lambda world: succeeded(world.restatement(REQUEST), "Erased"),
            within_seconds=900,
            besides="WaitsForLookups",
        )
        status = self.story.look().restatement(REQUEST)
        rows = {d["name"]: d["rowsErased"] for d in status["subject"]["datasets"]}
        flights = expected()
        check("flights erased", int((flights["tailnum"] == AIRCRAFT).sum()), rows["flights"])
        for name in ("bookings", "loyalty"):
            check(f"rows of {name} erased", 12, rows[name])
            check(f"rows of {name}", 12 * OTHERS, self._count(name))
        check("flights", int((flights["tailnum"] != AIRCRAFT).sum()), self._count("flights"))
        step.done(", ".join(f"{count} rows of {name}" for name, count in sorted(rows.items())) + " are erased")

    def verify(self) -> None:
        """Verify the record of the request as somebody who has only the file."""
        record = self.story.look().restatement(REQUEST)["erasure"]["record"]
        step = DemoStep(f"lethe erasures verify {record.rpartition('/')[2]} --storage --values -", self.story.look)
        answer = json.loads(self._lethe("erasures", "verify", record, "--storage", "--values", "-", "--json"))
        if answer["problems"]:
            fail(f"the record of the request is not accepted: {answer['problems'][0]}")
        step.done("one record for the three tables is accepted")

    def search(self) -> None:
        """Search every byte and every resource, without Lethe."""
        step = DemoStep("Each file is decoded and searched, and each resource of the API server", self.story.look)
        left = self._found()
        buffer = f"{self.story.lake.buffer}/"
        if others := [name for name in left if not name.startswith(buffer)]:
            fail(f"the person is still in {others[0]}")
        step.done("no file of the tables, no log and no resource has her address, her card or her aircraft")
        say(
            f"    {len(left)} files of the producers' buffer still have the aircraft, until buffer.retentionSeconds is over"
        )

    def _count(self, name: str) -> int:
        return lethe.scan(f"air.{name}", catalog=self.story.lake.catalog).count()

    def _lethe(self, *arguments: str) -> str:
        """What a command prints that gets the person's address on standard input. It ends the demo if it fails."""
        environ = {**os.environ, HOME_ENV: str(self.story.lake.folder.path)}
        environ.pop("KUBECONFIG", None)
        command = [sys.executable, "-m", "lethe.cli", *arguments]
        done = subprocess.run(
            command, env=environ, input=f"{PERSON}\n", capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode != 0:
            fail(f"lethe {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _found(self) -> list[str]:
        """The files and resources that have the person."""
        story = self.story
        files = (p for p in story.lake.folder.path.rglob("*") if p.is_file())
        found = [str(path) for path in files if any(map(_has_person, _contents(path)))]
        for kind in kinds():
            for one in story.kube.list(kind.resource, NAMESPACE if kind.namespaced else ""):
                if _has_person(json.dumps(one).encode()):
                    found.append(f"{kind.key}/{one['metadata']['name']}")
        return found


def _has_person(content: bytes) -> bool:
    in_secret = base64.b64encode(PERSON.encode())[:36]
    forms = (PERSON.encode(), in_secret, AIRCRAFT.encode(), str(CARD).encode(), CARD.to_bytes(8, "little"))
    return any(form in content for form in forms)


def _contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and what they say after decoding. Nothing of a file that vanishes meanwhile."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    yield content
    if content.startswith(b"PAR1"):
        columns = pq.read_table(io.BytesIO(content)).columns
        yield "\n".join(str(value) for column in columns for value in column.to_pylist()).encode()
    elif content.startswith(b"Obj\x01"):
        yield "\n".join(map(str, fastavro.reader(io.BytesIO(content)))).encode()
    elif content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
