#!/usr/bin/env bash
# Lint, then run the tests with everything they need: test.sh PYTEST-ARGUMENT...
#
# LINT=0 leaves the linters out. Tests that need a cluster get one of their own, which is left up for the next time.
export CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 # before lib.sh, which derives places from them
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
BIN=$LETHE_CACHE/venv/bin

"$ROOT/dev/venv.sh"
"$ROOT/dev/packages.sh" java postgres
"$ROOT/dev/tools.sh" versitygw
export LETHE_JARS=$LETHE_CACHE/jars
"$BIN/python" spark_apps/fetch_jars.py "$LETHE_JARS" --scope test
lint=0
[ "${LINT:-1}" = 0 ] || dev/lint.sh || lint=1

if [[ " $* " == *tests/cluster* ]]; then
  say "the tests' cluster:"
  dev/stack.sh up
  LETHE_TEST_KUBECONFIG=$(dev/stack.sh kubeconfig)
  LETHE_TEST_ENV=$(dev/stack.sh env)
  export LETHE_TEST_KUBECONFIG LETHE_TEST_ENV
  set -a
  # shellcheck disable=SC1090,SC1091
  source "$LETHE_LOADED"
  set +a
fi

say "tests: $*"
tests=0
"$BIN/python" -m pytest -p no:cacheprovider "$@" || tests=$?
[ $lint = 0 ] || say "lint FAILED, see above"
[ $lint = 0 ] && [ $tests = 0 ]
