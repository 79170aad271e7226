#!/usr/bin/env bash
# Lint, then run the tests of some folders with everything they need: test.sh MARKERS FOLDER...
#
# MARKERS is what pytest's -m takes, '' for all tests. LINT=0 leaves the linters out. Tests that need a cluster get one of their
# own, which is left up for the next time; they run beside the others, one at a time: it has room for the runs of one test.
export CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 # before lib.sh, which derives places from them
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
markers=$1
shift
BIN=$LETHE_CACHE/venv/bin

"$ROOT/dev/venv.sh"
export LETHE_JARS=$LETHE_CACHE/jars
if [[ " $*" == *" tests/cluster"* ]]; then # those of the queue
  "$BIN/python" -m lethe.jars "$LETHE_JARS" --scope test
fi
if [[ " $*" == *" tests/s"* || " $*" == *" tests/local"* ]]; then # also tests/services and tests/spark
  "$ROOT/dev/packages.sh" java postgres
  if [[ " $*" == *" tests/services"* ]]; then # those of the console
    "$ROOT/dev/packages.sh" browser
  fi
  "$ROOT/dev/tools.sh" versitygw fake-gcs-server azurite kstatus # for both
  "$ROOT/dev/venv.sh" servers
  if [[ " $*" == *" tests/spark"* ]]; then # those of other engines
    "$ROOT/dev/venv.sh" engines
    "$ROOT/dev/tools.sh" iceberg-go
  fi
  if [[ " $*" == *" tests/local"* ]]; then # for the commands of the documentation
    command -v kubectl > /dev/null || "$ROOT/dev/tools.sh" kubectl
  fi
  if [ -z "$markers" ]; then # for long tests of launchers, of a schema registry, of two engines, and of a clock that jumps
    "$ROOT/dev/tools.sh" kubernetes spark-operator kueue apicurio trino
    "$ROOT/dev/venv.sh" flink
    "$ROOT/dev/packages.sh" compiler
  fi
  "$BIN/python" -m lethe.jars "$LETHE_JARS" --scope test
  progress "archiving the classes of a driver" "$BIN/python" spark_apps/archive_classes.py
fi
lint=0
[ "${LINT:-1}" = 0 ] || dev/lint.sh || lint=1

cluster=() local=()
for folder; do
  if [[ $folder == tests/cluster* ]]; then cluster+=("$folder"); else local+=("$folder"); fi
done
on_cluster=0 tests=0
logs=$LETHE_STATE/log
color=$([ -t 1 ] && echo yes || echo no) # the output goes through pipes and files
run() { "$BIN/python" -m pytest -p no:cacheprovider "--color=$color" -m "$markers" "$@"; }

on_cluster() {
  dev/stack.sh up || return
  LETHE_TEST_KUBECONFIG=$(dev/stack.sh kubeconfig)
  LETHE_TEST_ENV=$(dev/stack.sh env)
  export LETHE_TEST_KUBECONFIG LETHE_TEST_ENV
  set -a
  # shellcheck disable=SC1090,SC1091
  source "$LETHE_LOADED"
  set +a
  KAFKA=$(dev/images.sh kafka) || return
  eval "$KAFKA"
  export LETHE_KAFKA_IMAGE
  if [ -z "$markers" ]; then # only long tests need the operators of other projects and the previous version
    LAUNCHERS=$(dev/images.sh launchers) || return
    PREVIOUS=$(dev/images.sh previous) || return
    eval "$LAUNCHERS"$'\n'"$PREVIOUS"
  fi
  run "${cluster[@]}"
}

# Tests on the cluster wait for pods most of the time, so they run beside the others. Their output comes after that of the others.
if [ ${#cluster[@]} -gt 0 ]; then
  say "tests on a cluster: ${cluster[*]}, output in $logs/tests-cluster.log"
  set -m # a process group of its own, to be stopped as a whole
  on_cluster > "$logs/tests-cluster.log" 2>&1 < /dev/null &
  beside=$!
  set +m
  trap 'kill -- "-$beside" 2> /dev/null || true' EXIT
fi
if [ ${#local[@]} -gt 0 ]; then
  say "tests: ${local[*]}"
  # A worker has a Spark session of its own, 2 GiB with what it starts.
  run -n auto --maxprocesses 4 --dist worksteal "${local[@]}" | tee "$logs/tests.log" || tests=$?
fi
if [ ${#cluster[@]} -gt 0 ]; then
  portable follow "$beside" "$logs/tests-cluster.log"
  wait "$beside" || on_cluster=$?
fi
[ $lint = 0 ] || say "lint FAILED, see above"
# The last lines name what failed: pytest's summary of the tests without a cluster once more, if some of them did.
[ $tests = 0 ] || sed -n '/short test summary info/,$p' "$logs/tests.log"
[ $lint = 0 ] && [ $tests = 0 ] && [ $on_cluster = 0 ]
