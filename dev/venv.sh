#!/usr/bin/env bash
# Make the virtual environment that everything on this machine runs in, or that of a tool: venv.sh [NAME]
#
# NAME is a file in dev/requirements: build, checkov, engines, docs, flink, rivals, servers, or an orchestrator (airflow, dagster, dbt, dlt).
# It lies at $LETHE_CACHE/venv-HASH, by what is to be installed, and $LETHE_CACHE/venv or venv-TOOL points to it. Lethe itself is not in
# it: several checkouts share it, and PYTHONPATH (see lib.sh) says whose code is meant. dev/lock.sh says which versions it has.
source "$(dirname "$0")/lib.sh"

tool=${1:-}
LOCK=$ROOT/dev/requirements/${tool:-dev}.txt
LINK=$LETHE_CACHE/venv${tool:+-$tool}

make_venv() {
  local folder=$1
  rm -rf "$folder.new"
  uv_ venv -q --relocatable --python "$(command -v python3)" "$folder.new"
  # The constraints bind the isolated build of an sdist too; they have no hashes there. They keep their markers: checkov.txt has a
  # version of numpy for each range of Python.
  grep -oE '^[A-Za-z0-9._-]+==[^ ;\\]+( ; [^\\]+)?' "$LOCK" > "$folder.new/constraints.txt"
  uv_ pip install -q --python "$folder.new/bin/python" --require-hashes --build-constraints "$folder.new/constraints.txt" -r "$LOCK"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
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
