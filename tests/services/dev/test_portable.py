"""What runs where Docker runs works with the commands of macOS: bash 3.2, BSD's tools, and Python for the rest."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The scripts in dev/no-docker are for Linux; krew's archive is made for a release.
SCRIPTS = sorted([*(ROOT / "dev").glob("*.sh"), ROOT / "Makefile", ROOT / ".ci/run"])
PORTABLE = ROOT / "dev/portable.py"
# What each pattern finds is only in Linux, in GNU's tools or in bash 4.
FORBIDDEN = {
    r"(?<![-\w])(flock|timeout|sha256sum|md5sum|tac|nproc|realpath|setsid|mapfile|readarray|coproc)\b(?![-=])": "a command",
    r"\breadlink -[a-z]*[fem]": "an option of GNU readlink",
    r"\bsort -[a-zA-Z]*[zVRh]": "an option of GNU sort",
    r"\bmktemp [^|;)]*(-p\b|--)": "an option of GNU mktemp",
    r"\bsed (-[a-zA-Z]* )*(-i|--in-place)": "sed -i, whose argument differs",
    r"\bgrep -[a-zA-Z]*P": "an option of GNU grep",
    r"\bcp( -\S+)* -[a-zA-Z]*[rdLtTau]\b|\bcp [^|;]*--[a-z]": "an option of GNU cp: cp -R is in all",
    r"\b(tail|head|ps|tar) [^|;]*--(pid|sort|mtime|owner|group|transform)": "a long option of GNU",
    r"\bhead -n -|\btail -n \+0\b": "a count that BSD's tools lack",
    r"\bxargs [^|;]*(-r\b|-d\b|--)": "an option of GNU xargs",
    r"\bfind [^|;]*-(printf|regextype)\b": "an option of GNU find",
    r"\bdate [^|;)]*(-d\b|--|%N)": "an option of GNU date",
    r"\bstat (-c|--)": "an option of GNU stat",
    r"\bbase64 (-d|-w|--)": "an option of GNU base64",
    r"\bls [^|;]*--[a-z]": "a long option of GNU ls",
    r"\b(declare|local|typeset) -[a-zA-Z]*[An]\b": "a kind of variable of bash 4",
    r"\$\{[a-zA-Z_0-9]+(,,?|\^\^?|@[A-Z])\}": "an expansion of bash 4",
    r"\|&|&>>|\bwait -n|;;&|\bglobstar\b": "syntax of bash 4",
    r"\$\{[a-zA-Z_]+\[-1\]\}|\$\{EPOCH": "a variable of bash 4",
}
# Options that one of these functions gets are only used with buildah, or after a check that apt-get is there.
ONLY_LINUX = re.compile(r"^(debian_base)\(\) \{.*?^\}", re.MULTILINE | re.DOTALL)


def code(script: Path) -> list[tuple[int, str]]:
    """The numbered lines of a script without comments, and without Python between << 'P' and P."""
    text = re.sub(
        r"<< 'P'.*?^P$", lambda m: "\n" * m[0].count("\n"), script.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    text = ONLY_LINUX.sub(lambda m: "\n" * m[0].count("\n"), text)
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.split("\n")]
    return list(enumerate(lines, 1))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_uses_only_what_linux_and_macos_have(script: Path) -> None:
    wrong = [
        f"{script.name}:{number}: {what}: {line.strip()}"
        for number, line in code(script)
        for pattern, what in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert not wrong, "portable.py has a replacement for most:\n" + "\n".join(wrong)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_array_that_may_be_empty_is_guarded(script: Path) -> None:
    """Under `set -u` bash 3.2 takes an empty array for an unset variable."""
    text = "\n".join(line for _, line in code(script))
    maybe_empty = set(re.findall(r"\b([a-z_]+)=\(\)", text))
    unguarded = {
        name
        for name in maybe_empty
        if re.search(rf'(?<!\+)"\$\{{{name}\[@\]\}}"', text)
        and not re.search(rf"\[ \$\{{#{name}\[@\]\}} -gt 0 \]", text)
    }
    filled_in_every_case = {"run", "files", "ignored", "args", "labels"}
    assert unguarded <= filled_in_every_case


@pytest.mark.parametrize(
    "line",
    [
        "flock 8 || true",
        'x=$(mktemp -d -p "$HOME")',
        "sed -i s/a/b/ file",
        "sort -zV",
        "cp -L a b",
        "mapfile -t x < y",
        'echo "${x,,}"',
        "date -d yesterday",
        "base64 -d",
    ],
)
def test_the_check_finds_what_it_forbids(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in FORBIDDEN)


@pytest.fixture
def few_commands(tmp_path: Path) -> dict[str, str]:
    """An environment with Python, bash, and what busybox has in its place of GNU's commands."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox is not there: run dev/packages.sh busybox"
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (
        "awk",
        "cat",
        "cut",
        "dirname",
        "grep",
        "head",
        "mkdir",
        "mktemp",
        "mv",
        "rm",
        "sed",
        "sleep",
        "tail",
        "tr",
        "uname",
    ):
        (folder / name).symlink_to(busybox)
    (folder / "python3").symlink_to(sys.executable)
    bash = os.environ.get("LETHE_TEST_BASH") or shutil.which("bash")  # for example one of version 3.2
    assert bash is not None
    (folder / "bash").symlink_to(bash)
    return {
        "PATH": str(folder),
        "HOME": str(tmp_path),
        "LETHE_CACHE": str(tmp_path / "cache"),
        "LETHE_STATE": str(tmp_path / "state"),
    }


def bash(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [f"{environment['PATH']}/bash", "-c", f"source {ROOT}/dev/lib.sh\n{script}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


def test_the_shared_functions_run_with_few_commands(few_commands: dict[str, str]) -> None:
    done = bash(
        'double() { echo "$1$1"; }; locked a double x; progress "a step" sleep 0; hash_of dev/cluster/go; mode',
        few_commands,
    )

    assert done.returncode == 0, done.stderr
    doubled, digits, mode = done.stdout.split()
    assert doubled == "xx"
    assert re.fullmatch("[0-9a-f]{12}", digits)
    assert mode == "node"
    assert "a step: done" in done.stderr


def test_a_step_that_fails_shows_the_end_of_its_log(few_commands: dict[str, str]) -> None:
    done = bash("broken() { echo 'no space left'; return 7; }; progress 'a step' broken", few_commands)

    assert done.returncode == 7
    assert "FAILED" in done.stderr
    assert "    no space left" in done.stderr


def test_an_installed_tool_is_used_if_its_version_fits(few_commands: dict[str, str]) -> None:
    """Otherwise it is built: `go` of this test says that it is asked for."""
    folder = Path(few_commands["PATH"])
    for name, says in {"helm": "v3.18.6+gb76a950", "go": "go9.9.9"}.items():
        (folder / name).write_text(f"#!{folder}/bash\n[ $1 != install ] || exit 5\necho {says}\n")
        (folder / name).chmod(0o755)
    run = [f"{folder}/bash", str(ROOT / "dev/tools.sh"), "helm"]
    (folder / "git").symlink_to(folder / "bash")
    (folder / "java").symlink_to(folder / "bash")

    fits = subprocess.run(run, env=few_commands, capture_output=True, text=True, timeout=60, check=False)
    (folder / "helm").write_text(f"#!{folder}/bash\necho v3.15.0\n")
    too_old = subprocess.run(run, env=few_commands, capture_output=True, text=True, timeout=60, check=False)

    assert fits.returncode == 0, fits.stderr
    assert not (Path(few_commands["LETHE_CACHE"]) / "bin/helm").exists()
    assert too_old.returncode != 0
    assert "building Helm" in too_old.stderr


def portable(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", PORTABLE, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_a_hash_depends_on_names_and_contents_and_on_nothing_that_python_makes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_text("1")
    first = portable("hash", tmp_path, "a").stdout
    for made in ("a/__pycache__/one.pyc", "a/x.egg-info/PKG-INFO"):
        (tmp_path / made).parent.mkdir()
        (tmp_path / made).write_text("made")

    assert portable("hash", tmp_path, "a").stdout == first
    (tmp_path / "a/one").rename(tmp_path / "a/two")
    assert portable("hash", tmp_path, "a").stdout != first
    assert portable("hash", tmp_path, "missing").returncode != 0


@pytest.mark.parametrize(
    ("text", "bounds", "fits"),
    [
        ("Client Version: v1.35.2", ("1.35", "1.37"), True),
        ("Client Version: v1.37.9\nKustomize Version: v5.5.0", ("1.35", "1.37"), True),
        ("Client Version: v1.32.4-dispatcher", ("1.35", "1.37"), False),
        ("v4.3.1+gabc", ("3.16", "4"), True),
        ("v3.9.0", ("3.16", "4"), False),
        ("kind v0.33.0 go1.26.8 linux/amd64", ("v0.33.0",), True),
        ("kind v0.32.9 go1.26.8 linux/amd64", ("v0.33.0",), False),
        ("go1.100.1", ("1.26",), True),
        ("not found", ("1.26",), False),
    ],
)
def test_a_version_is_compared_by_its_numbers(text: str, bounds: tuple[str, ...], fits: bool) -> None:
    assert (portable("version-fits", *bounds, text=text).returncode == 0) is fits


def test_a_command_that_takes_too_long_is_ended() -> None:
    assert portable("within", "0.2", "sleep", "60").returncode == 124
    assert portable("within", "60", "sh", "-c", "exit 3").returncode == 3


def test_a_lock_is_held_until_the_shell_closes_the_file(tmp_path: Path) -> None:
    """The second process writes only after the first one, which holds the lock when the second one asks for it."""
    script = f"""
    set -e
    exec 8> {tmp_path}/lock
    {sys.executable} -I {PORTABLE} wait-for-lock 8
    (exec 8> {tmp_path}/lock; echo asks > {tmp_path}/asks; {sys.executable} -I {PORTABLE} wait-for-lock 8; echo second) 8>&- &
    until [ -e {tmp_path}/asks ]; do :; done
    echo first
    exec 8>&-
    wait
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["first", "second"]
