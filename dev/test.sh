#!/usr/bin/env bash
# Lint, then run the tests of some folders with everything they need: test.sh MARKERS FOLDER...
#
# MARKERS is what pytest's -m takes, '' for all tests. LINT=0 leaves the linters out. Tests that need a cluster get one of their
# own, which is left up for the next time; they go after the others and one at a time, for it has room for one story.
export CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 # before lib.sh, which derives places from them
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
markers=$1
shift
BIN=$LETHE_CACHE/venv/bin

"$ROOT/dev/venv.sh"
if [[ " $*" == *" tests/spark"* ]]; then
  "$ROOT/dev/packages.sh" java postgres
  "$ROOT/dev/tools.sh" versitygw # their S3 server
  export LETHE_JARS=$LETHE_CACHE/jars
  "$BIN/python" spark_apps/fetch_jars.py "$LETHE_JARS" --scope test
  progress "archiving the classes of a driver" "$BIN/python" spark_apps/archive_classes.py
fi
lint=0
[ "${LINT:-1}" = 0 ] || dev/lint.sh || lint=1

cluster=() local=()
for folder; do
  if [[ $folder == tests/cluster* ]]; then cluster+=("$folder"); else local+=("$folder"); fi
done
tests=0
run() { "$BIN/python" -m pytest -p no:cacheprovider -m "$markers" "$@" || tests=$?; }

if [ ${#local[@]} -gt 0 ]; then
  say "tests: ${local[*]}"
  # A worker has a Spark session of its own, 2 GiB with what it starts.
  run -n auto --maxprocesses 4 --dist worksteal "${local[@]}"
fi
if [ ${#cluster[@]} -gt 0 ]; then
  say "the tests' cluster:"
  dev/stack.sh up
  LETHE_TEST_KUBECONFIG=$(dev/stack.sh kubeconfig)
  LETHE_TEST_ENV=$(dev/stack.sh env)
  export LETHE_TEST_KUBECONFIG LETHE_TEST_ENV
  set -a
  # shellcheck disable=SC1090,SC1091
  source "$LETHE_LOADED"
  set +a
  say "tests: ${cluster[*]}"
  run "${cluster[@]}"
fi
[ $lint = 0 ] || say "lint FAILED, see above"
[ $lint = 0 ] && [ $tests = 0 ]
