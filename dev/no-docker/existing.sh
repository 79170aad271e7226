#!/usr/bin/env bash
# Prove what users do on a cluster of their own: existing.sh demo | down
#
# The cluster is a second local node, which pulls its images from a registry that runs on it. To `make demo-cluster` it is an existing
# cluster: it gets only the name of a context and the address of the registry.
export CLUSTER_NAME=lethe-other CLUSTER_INDEX=3 # before lib.sh, which derives places from them
# shellcheck source=lib.sh
source "$(dirname "$0")/../lib.sh"

ADDRESS=10.254.$CLUSTER_INDEX.2:5000
STORE=$LETHE_STATE/$CLUSTER_NAME-registry

answers() { curl -fsS -o /dev/null "http://$ADDRESS/v2/" 2> /dev/null; }

registry() {
  answers && return
  mkdir -p "$STORE"
  cat > "$STORE/config.yml" << C
version: 0.1
storage: {filesystem: {rootdirectory: $STORE/data}}
http: {addr: "$ADDRESS"}
C
  # Inside the node's namespaces, with which it ends
  setsid "$ROOT/dev/no-docker/cluster.sh" enter "$LETHE_CACHE/bin/registry" serve "$STORE/config.yml" > "$STORE/log" 2>&1 < /dev/null &
  for _ in $(seq 100); do
    answers && return
    sleep 0.1
  done
  die "the registry does not answer: see $STORE/log"
}

demo() {
  "$ROOT/dev/tools.sh" kubernetes helm coredns versitygw registry crane
  "$ROOT/dev/packages.sh" node
  "$ROOT/dev/images.sh" pause
  "$ROOT/dev/no-docker/cluster.sh" status > /dev/null || progress "starting the local node $CLUSTER_NAME" "$ROOT/dev/no-docker/cluster.sh" up
  registry
  KUBECONFIG=$("$ROOT/dev/no-docker/cluster.sh" kubeconfig)
  context=$(kubectl --kubeconfig "$KUBECONFIG" config current-context)
  export KUBECONFIG
  CLUSTER_NAME=lethe CLUSTER_INDEX=0 LETHE_REGISTRY_PLAIN_HTTP=1 \
    make -C "$ROOT" demo-cluster "CLUSTER=$context" "REGISTRY=$ADDRESS/lethe"
}

down() {
  "$ROOT/dev/no-docker/cluster.sh" down --purge
  rm -rf "$STORE" "$LETHE_STATE/lethe-existing"
}

case ${1:-} in
  demo) demo ;;
  down) down ;;
  *) sed -n 2p "$0"; exit 2 ;;
esac
