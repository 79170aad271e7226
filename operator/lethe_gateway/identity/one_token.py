"""Identity for `lethe local`: one token, in a file that only its owner can read. Its owner may do everything. I/O: the file."""

import hmac
import stat
from pathlib import Path

from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import unauthenticated
from lethe_gateway.settings import InvalidSettings


class OneToken:
    """Reads the file for each request, so a new token counts at once."""

    def __init__(self, file: Path) -> None:
        """Raises: InvalidSettings, if the file cannot be read, is empty, or can be read by others."""
        self._file = file
        try:
            mode = file.stat().st_mode
            token = self._token()
        except OSError as e:
            raise InvalidSettings(
                f"LETHE_GATEWAY_TOKEN_FILE names {file}, which cannot be read ({e.strerror})"
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidSettings(f"LETHE_GATEWAY_TOKEN_FILE: others can read {file}. Run: chmod 600 {file}")
        if not token:
            raise InvalidSettings(f"LETHE_GATEWAY_TOKEN_FILE: {file} is empty. Write a token into it.")

    def authenticate(self, token: str) -> Caller:
        """Raises: Problem (`unauthenticated`)."""
        try:
            valid = self._token()
        except OSError:
            raise unauthenticated() from None
        if not valid or not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), valid.encode()):
            raise unauthenticated()
        return Caller("lethe-local", token=token)

    def remembered(self, token: str) -> Caller | None:  # noqa: ARG002
        return None

    def may(self, caller: Caller, right: Right) -> bool:  # noqa: ARG002
        return True

    def _token(self) -> str:
        return self._file.read_text().strip()
