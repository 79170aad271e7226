"""A PostgreSQL of the tests' own: a throw-away cluster on the loopback, in a temporary folder."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

USER = "lethe"
DATABASE = "lake"


@dataclass(frozen=True)
class Postgres:
    port: int

    @property
    def uri(self) -> str:
        """The URI for SQLAlchemy. The server trusts all connections from this machine."""
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/{DATABASE}"


def free_port() -> int:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def programs() -> Path:
    """The folder of `initdb`, which Debian does not put on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    on_path = shutil.which("initdb")
    assert found or on_path, "no PostgreSQL here: run `dev/packages.sh postgres`"
    return (found[-1] if found else Path(str(on_path))).resolve().parent


@contextmanager
def running() -> Iterator[Postgres]:
    """A server with the database `lake` for as long as the block lasts."""
    # Not below pytest's temporary folder, which other users may not read.
    folder = Path(tempfile.mkdtemp(prefix="lethe-postgres-"))
    # PostgreSQL refuses to run as root, so another user owns the folder.
    user = None
    if os.geteuid() == 0:
        user = "postgres" if subprocess.run(["id", "postgres"], capture_output=True).returncode == 0 else "nobody"
        shutil.chown(folder, user)
    port, bin, data = free_port(), programs(), folder / "data"

    def run(*command: str) -> None:
        prefix = ["runuser", "-u", user, "--"] if user else []
        done = subprocess.run([*prefix, *command], cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"

    run(f"{bin}/initdb", "-D", str(data), "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync=off"
    # -w waits until the server answers, not for a time
    run(f"{bin}/pg_ctl", "-D", str(data), "-w", "-t", "30", "-l", str(folder / "log"), "-o", options, "start")
    try:
        run(f"{bin}/createdb", "-h", "127.0.0.1", "-p", str(port), "-U", USER, DATABASE)
        yield Postgres(port)
    finally:
        run(f"{bin}/pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)
