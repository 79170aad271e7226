#!/usr/bin/env bash
# Run a command on the cluster of the tests: on_cluster.sh short | long COMMAND...
#
# The cluster is made, if it does not run, and is left up. Long tests also need the operators of other projects and the images of the
# previous version.
source "$(dirname "$0")/lib.sh"

"$ROOT/dev/stack.sh" up
LETHE_TEST_KUBECONFIG=$("$ROOT/dev/stack.sh" kubeconfig)
LETHE_TEST_ENV=$("$ROOT/dev/stack.sh" env)
export LETHE_TEST_KUBECONFIG LETHE_TEST_ENV
images=$("$ROOT/dev/images.sh" kafka)
if [ "$1" = long ]; then
  images+=$'\n'$("$ROOT/dev/images.sh" launchers)
  images+=$'\n'$("$ROOT/dev/images.sh" previous)
fi
set -a
# shellcheck disable=SC1090,SC1091
source "$LETHE_LOADED"
eval "$images"
set +a
shift
exec "$@"
