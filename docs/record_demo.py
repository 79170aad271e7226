"""Writes docs/images/demo.svg: what a terminal shows after `lethe demo`.

Run `python docs/record_demo.py` after changing the demo's output.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "images/demo.svg"
COLUMNS = 110
# Without fonts from another server: the reader's own monospace is used.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lethe-demo-") as name:
        folder = Path(name, "demo")
        command = [sys.executable, "-m", "lethe.cli", "demo", "--dir", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    console = Console(record=True, width=COLUMNS, file=sys.stderr)
    console.print(Text("$ lethe demo", style="bold"))
    console.print(Text(done.stdout.replace(str(folder), "~/.lethe-demo").rstrip()))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(console.export_svg(title="lethe demo", code_format=FORMAT))


if __name__ == "__main__":
    main()
