"""Where the gateway is, as the command line says it. I/O: reads the token."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError

TOKEN: Final = "LETHE_GATEWAY_TOKEN"


@dataclass(frozen=True)
class Gateway:
    """Where the gateway is, and how to speak to it."""

    url: str
    token_file: Path | None = None  # None: the variable LETHE_GATEWAY_TOKEN
    ca_file: Path | None = None  # None: the system's certificates

    def token(self) -> str:
        """Read for each request, because tokens of pods are renewed in their files. Raises: InputError (`NoToken`)."""
        found = self.token_file.read_text().strip() if self.token_file is not None else os.environ.get(TOKEN, "")
        if not found:
            raise InputError(
                "NoToken",
                f"set {TOKEN}, or name a file with --token-file, such as one that `kubectl create token` has written.",
            )
        return found
