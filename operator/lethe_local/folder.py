"""The folder of `lethe local`: its state, credentials, lock, and the logs of all processes. I/O: files."""

import datetime
import fcntl
import ipaddress
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from lethe.base.errors import InputError
from lethe.contract.result import lines_of_run

from lethe_local import node

CATALOG: Final = "local"  # the catalog that a new folder has
NAMESPACE: Final = "default"
WARM_DRIVER: Final = "lethe-warm-driver"  # the Job, and its mailbox
VALUES_DRIVER: Final = f"{WARM_DRIVER}-values"  # the same for runs with values


@dataclass(frozen=True)
class Folder:
    """The paths of the files."""

    path: Path

    @property
    def state(self) -> Path:
        """The objects, as a SQLite file."""
        return self.path / "state.db"

    @property
    def account(self) -> Path:
        """A folder like that of a ServiceAccount: `token` and `ca.crt`; also the key of the server."""
        return self.path / "account"

    @property
    def certificate(self) -> tuple[Path, Path]:
        """The certificate of the API server, which clients trust, and its private key. `prepare` creates both."""
        return self.account / "ca.crt", self.account / "server.key"

    @property
    def kubeconfig(self) -> Path:
        """For the commands of `lethe local`, and for kubectl. It exists while `lethe local up` runs."""
        return self.path / "kubeconfig"

    @property
    def catalogs(self) -> Path:
        """PyIceberg's configuration."""
        return self.path / ".pyiceberg.yaml"

    @property
    def kafka_clusters(self) -> Path:
        """The Kafka clusters that the inlet reads. If the file does not exist, there is no inlet."""
        return self.path / "kafka.yaml"

    @property
    def parts(self) -> Path:
        """A folder for each process that always runs."""
        return self.path / "parts"

    @property
    def runs(self) -> Path:
        """A folder for each pod."""
        return self.path / "runs"

    @property
    def token(self) -> str:
        """The bearer token of all clients, read from its file. `prepare` creates it."""
        return (self.account / "token").read_text()

    def prepare(self) -> None:
        """Create what does not exist.

        Raises:
            InputError: `FolderNotWritable`.
        """
        try:
            for folder in (self.path, self.account, self.parts, self.runs, self.path / "warehouse"):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not (self.account / "token").exists():
                _write_private(self.account / "token", secrets.token_urlsafe(32).encode())
            if not all(p.exists() for p in self.certificate):
                _make_certificate(*self.certificate)
            if not self.catalogs.exists():
                self.catalogs.write_text(_catalogs(self.path))
        except OSError as e:
            raise InputError(
                "FolderNotWritable",
                f"{self.path}: {e.strerror}. `lethe local` keeps tables, state and logs there. Name another folder with --dir.",
            ) from None

    def locked(self) -> IO[str]:
        """Lock the folder, as long as the result is open.

        Raises:
            InputError: `AlreadyRunning`.
        """
        file = (self.path / "lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise InputError(
                "AlreadyRunning",
                f"{self.path}: `lethe local up` runs there already (process {file.read().strip() or 'unknown'}). Use it, stop "
                "it, or name another folder with --dir.",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def write_kubeconfig(self, port: int) -> None:
        """Write the file with the address and the token of the API. Only its owner may read it."""
        server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(self.certificate[0])}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lethe-local", "cluster": server}],
            "users": [{"name": "lethe-local", "user": {"token": self.token}}],
            "contexts": [
                {
                    "name": "lethe-local",
                    "context": {"cluster": "lethe-local", "user": "lethe-local", "namespace": NAMESPACE},
                }
            ],
            "current-context": "lethe-local",
        }
        _write_private(self.kubeconfig, yaml.safe_dump(document).encode())


def _catalogs(path: Path) -> str:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{path}/catalog.db",
        "warehouse": f"file://{path}/warehouse",
        "init_catalog_tables": "true",
    }
    return yaml.safe_dump({"catalog": {CATALOG: properties}}, sort_keys=False)


def _write_private(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.touch(mode=0o600)
    part.write_bytes(content)
    os.replace(part, path)


def _make_certificate(certificate: Path, key_file: Path) -> None:
    """A certificate for the loopback, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lethe-local")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(key_file, key.private_bytes(*form))
    _write_private(certificate, signed.public_bytes(serialization.Encoding.PEM))


LOOK_SECONDS: Final = 0.3
LAST_LINES: Final = 200


def lines_of(folder: Folder, name: str, last: int, follow: bool) -> Iterator[str]:
    """The log of `operator`, `committer`, or a run. `last` and `follow` as of `log_lines`.

    Raises:
        InputError: `NoLog`.
    """
    file = log_of(folder, name)
    if file is not None:
        yield from log_lines(file, last, follow)
        return
    lines = warm_lines(folder, name)
    if not lines:
        raise InputError(
            "NoLog",
            f"{folder.runs} has no log of {name}: a log is deleted with its run, and the committer writes those of its runs into "
            "its own. `lethe runs` shows the names of runs; `lethe local logs committer` shows the log of the committer.",
        )
    yield from lines[-last:]


def log_of(folder: Folder, name: str) -> Path | None:
    """The log of `operator`, `committer`, or a run with a process of its own; None: there is none."""
    part = folder.parts / name / "log"
    return part if part.exists() else next(_logs_of(folder, name), None)


def warm_lines(folder: Folder, run: str) -> list[str]:
    """The log of a run that a warm driver has carried out; empty: none has."""
    logs = (list(lines_of_run(log_lines(log, 0, follow=False), run)) for log in _logs_of(folder, WARM_DRIVER))
    return next(filter(None, logs), [])


def _logs_of(folder: Folder, job: str) -> Iterator[Path]:
    """The logs of the processes of a Job, the newest first."""
    yield from sorted(folder.runs.glob(f"{job}-*/log"), key=lambda p: p.stat().st_mtime, reverse=True)


def log_lines(file: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines of a log, and then, with `follow`, each new one until its process has ended.

    Args:
        last: How many; 0: all.
    """
    with file.open(errors="replace") as log:
        rest = ""
        for line in deque(log, maxlen=last or None):
            if follow and not line.endswith("\n"):  # the process has not written its end yet
                rest = line
            else:
                yield line.rstrip("\n")
        while follow:
            ended = not node.is_running(file.parent)
            *whole, rest = (rest + log.read()).split("\n")
            yield from whole
            if ended:
                break
            time.sleep(LOOK_SECONDS)
        if rest:
            yield rest
