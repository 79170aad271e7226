#!/usr/bin/env bash
# Make the virtual environment that everything on this machine runs in, or that of a tool: venv.sh [checkov|engines|docs|flink|servers]
#
# It lies at $LETHE_CACHE/venv-HASH, by what is to be installed, and $LETHE_CACHE/venv or venv-TOOL points to it. Lethe itself is not in
# it: several checkouts share it, and PYTHONPATH (see lib.sh) says whose code is meant. dev/lock.sh says which versions it has.
source "$(dirname "$0")/lib.sh"

tool=${1:-}
LOCK=$ROOT/dev/requirements/${tool:-dev}.txt
LINK=$LETHE_CACHE/venv${tool:+-$tool}

make_venv() {
  local folder=$1
  rm -rf "$folder.new"
  python3 -m venv "$folder.new"
  # As an environment variable the constraints bind the isolated build of an sdist too; pip takes them without hashes there.
  # They keep their markers: checkov.txt has a version of numpy for each range of Python.
  grep -oE '^[A-Za-z0-9._-]+==[^ ;\\]+( ; [^\\]+)?' "$LOCK" > "$folder.new/constraints.txt"
  PIP_CONSTRAINT=$folder.new/constraints.txt "$folder.new/bin/python" -m pip install -q --disable-pip-version-check \
    --require-hashes -r "$LOCK"
  rm -rf "$folder"
  portable move-venv "$folder.new" "$folder"
}

main() {
  "$ROOT/dev/packages.sh" python
  local folder
  folder=$(portable digest "$LOCK")
  folder=$LETHE_CACHE/venv-${folder:0:12}
  [ -d "$folder" ] || progress "making the Python environment${tool:+ of $tool}" make_venv "$folder"
  ln -sfn "$folder" "$LINK"
}

locked venv main
