"""Where `lethe local` keeps its files, and whether it runs there. I/O: looks at its folder."""

import fcntl
import os
from pathlib import Path
from typing import Final

HOME_ENV: Final = "LETHE_LOCAL"
"""Names the folder, where the command line names none."""
DEFAULT: Final = "~/.lethe"


def default_folder() -> Path:
    """The folder that LETHE_LOCAL names, or the default."""
    return resolved(Path(os.environ.get(HOME_ENV) or DEFAULT))


def resolved(folder: Path) -> Path:
    """The absolute path of a folder that a user names."""
    return folder.expanduser().resolve()


def is_running(folder: Path) -> bool:
    """Whether `lethe local up` runs there: it holds the lock. Its other files can be left by a kill."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
