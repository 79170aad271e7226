"""What one file, upload or message may cost its decoder, in all processes. docs/limits.md has the table. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 1024**2
TOO_COSTLY: Final = "FileTooCostly"
"""The reason for a file that exceeds a limit, or that ends its decoder."""
MEMORY_ENV: Final = "LETHE_DECODER_MEMORY_BYTES"


@dataclass(frozen=True)
class Limits:
    """Limits of one file. Sizes are those of the file as it is stored, in bytes."""

    memory_bytes: int = 512 * MIB
    """Memory of the decoder, beyond what it needs to start."""
    cpu_seconds: float = 20
    cpu_seconds_per_mib: float = 20
    """Processor time for each MiB, in addition."""
    wall_factor: float = 5
    """Wall-clock time as a multiple of the processor time; only for a decoder that waits for itself."""
    nesting: int = 100
    """Levels of objects and arrays in JSON."""
    columns: int = 10_000
    rows: int = 1_000_000
    rows_per_byte: int = 10_000
    """Rows for each byte of the file, in addition."""
    expanded_bytes: int = 256 * MIB
    """Bytes of the decoded rows, or of decompressed text."""
    expanded_per_byte: int = 200
    """Expanded bytes for each byte of the file, in addition."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Limits":
        """The limits of this process. A pod with more memory may allow more of it."""
        return cls(memory_bytes=max(cls.memory_bytes, int(environ.get(MEMORY_ENV) or 0)))

    def cpu_of(self, size: int) -> float:
        """The seconds of processor time that a file may take."""
        return self.cpu_seconds + self.cpu_seconds_per_mib * size / MIB

    def wall_of(self, size: int) -> float:
        """The seconds of wall-clock time that a file may take."""
        return self.wall_factor * self.cpu_of(size)

    def rows_of(self, size: int) -> int:
        """The largest number of rows in a file of this size, given in bytes as it is stored."""
        return self.rows + self.rows_per_byte * size

    def expanded_of(self, size: int) -> int:
        """The bytes to which a file may expand."""
        return self.expanded_bytes + self.expanded_per_byte * size
