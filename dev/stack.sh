#!/usr/bin/env bash
# The cluster with the services that Lethe needs: stack.sh up | cluster | services | env | kubeconfig | status | down [--purge]
#
# kind if Docker runs, else the local node; an existing cluster only if CLUSTER names its context. KIND_CONFIG is the path of a
# configuration for kind in the place of kind-config.yaml, for example with another image of the node. CLUSTER_NAME and CLUSTER_INDEX
# choose between the clusters of the demo and of the tests (see lib.sh). Every command may be repeated at any time.
source "$(dirname "$0")/lib.sh"

SERVICES=lethe-services # namespace and release
FOLDER=$LETHE_STATE/$CLUSTER_NAME
MODE=$(mode)

kubeconfig() {
  case $MODE in
    node) "$ROOT/dev/no-docker/cluster.sh" kubeconfig ;;
    kind) echo "$FOLDER/kubeconfig" ;;
    existing) echo "$FOLDER-existing/kubeconfig" ;;
  esac
}
KUBECONFIG_THEIRS=${KUBECONFIG:-}
KUBECONFIG=$(kubeconfig)
export KUBECONFIG

cluster() {
  "$ROOT/dev/tools.sh"
  case $MODE in
    node)
      "$ROOT/dev/packages.sh" node
      "$ROOT/dev/images.sh" pause
      "$ROOT/dev/no-docker/cluster.sh" status > /dev/null || progress "starting the local node $CLUSTER_NAME" "$ROOT/dev/no-docker/cluster.sh" up
      ;;
    kind)
      mkdir -p "$FOLDER"
      [ "$(docker info --format '{{.NCPU}}')" -gt 2 ] \
        || say "warning: Docker has fewer than 3 CPUs. kind's own pods request almost one, so a run of Lethe may wait for CPUs for ever"
      kind get clusters 2> /dev/null | grep -qx "$CLUSTER_NAME" \
        || progress "creating the kind cluster $CLUSTER_NAME" kind create cluster --name "$CLUSTER_NAME" --config "${KIND_CONFIG:-$ROOT/kind-config.yaml}" --wait 180s
      kind export kubeconfig -q --name "$CLUSTER_NAME" --kubeconfig "$KUBECONFIG"
      ;;
    existing)
      # A copy with only this context, so that a change of the current context has no effect here
      mkdir -p "$FOLDER-existing"
      (
        umask 077
        KUBECONFIG=$KUBECONFIG_THEIRS kubectl config view --raw --minify --flatten --context "$CLUSTER" > "$KUBECONFIG.new"
      ) || die "the kubeconfig has no context $CLUSTER"
      mv "$KUBECONFIG.new" "$KUBECONFIG"
      ;;
  esac
}

# Values for the services: where the node keeps their data, so that it survives a restart of a pod, and how. The kubelet's folder is
# deleted with the cluster.
service_data() {
  local folder=/var/lib/kubelet/lethe-services run=()
  case $MODE in
    node) run=("$ROOT/dev/no-docker/cluster.sh" enter) ;;
    kind) run=(docker exec "$CLUSTER_NAME-control-plane") ;;
    existing) return ;;
  esac
  # The first time, an attribute marks the folder, if its filesystem has them and the node has Python.
  "${run[@]}" sh -c "[ -d $folder/s3/objects ] || { mkdir -p $folder/postgres $folder/s3/meta $folder/s3/objects;
    python3 -c 'import os; os.setxattr(\"$folder/s3/objects\", \"user.lethe\", b\"1\")' 2> /dev/null; true; }"
  "${run[@]}" chmod 777 $folder/postgres $folder/s3/meta $folder/s3/objects
  echo "hostPath=$folder"
  if "${run[@]}" python3 -c "import os; os.getxattr('$folder/s3/objects', 'user.lethe')" 2> /dev/null; then echo "sidecar=false"; fi
}

services() {
  local data
  # shellcheck disable=SC1090,SC1091
  source "$LETHE_LOADED"
  data=$(service_data | paste -sd,)
  helm_unstick "$SERVICES" "$SERVICES"
  progress "installing PostgreSQL and S3" helm upgrade --install "$SERVICES" "$ROOT/dev/services" --namespace "$SERVICES" --create-namespace \
    --set "images.postgres=$LETHE_POSTGRES_IMAGE,images.versitygw=$LETHE_VERSITYGW_IMAGE,images.spark=$LETHE_SPARK_IMAGE${data:+,$data},s3Cpu=${S3_CPU:-20m}" \
    --wait --timeout 5m
}

secret() { kubectl -n "$SERVICES" get secret lethe-services -o "go-template={{.data.$1 | base64decode}}"; }

# Where this machine reaches a port of the node. Docker Desktop's containers have no address on the host, so kind publishes it.
address() { # PORT
  local node
  if [ "$MODE" = kind ]; then
    docker port "$CLUSTER_NAME-control-plane" "$1/tcp" | head -n 1 | grep . \
      || die "the kind cluster $CLUSTER_NAME does not run, or does not publish port $1: run make down, then make cluster"
  else
    node=$(kubectl get nodes -o 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}') || die "the cluster does not run: run make cluster"
    echo "$node:$1"
  fi
}

environment() {
  local s3 postgres user password
  s3=$(address 30070) && postgres=$(address 30432)
  user=$(secret POSTGRES_USER) || die "the services are not installed: run make services"
  password=$(secret POSTGRES_PASSWORD)
  show() { printf 'export %s=%q\n' "$1" "$2"; }
  show KUBECONFIG "$KUBECONFIG"
  show LETHE_S3_ENDPOINT "http://$s3"
  show AWS_ACCESS_KEY_ID "$(secret AWS_ACCESS_KEY_ID)"
  show AWS_SECRET_ACCESS_KEY "$(secret AWS_SECRET_ACCESS_KEY)"
  show AWS_REGION us-east-1
  show LETHE_CATALOG_NAME main
  show LETHE_CATALOG_URI "postgresql+psycopg2://$user:$password@$postgres/lake"
  show LETHE_WAREHOUSE s3://lake/warehouse
}

status() {
  echo "cluster $CLUSTER_NAME ($MODE): $([ "$MODE" = node ] && "$ROOT/dev/no-docker/cluster.sh" status || echo "see below")"
  echo "kubeconfig: $KUBECONFIG"
  kubectl get nodes,pods -A --request-timeout=10s 2> /dev/null || echo "the API server does not answer"
}

down() {
  case $MODE in
    node) "$ROOT/dev/no-docker/cluster.sh" down "${1:-}" ;;
    kind)
      ! command -v kind > /dev/null || kind delete cluster --name "$CLUSTER_NAME" -q
      rm -rf "$FOLDER"
      ;;
    existing)
      helm uninstall -n "$SERVICES" "$SERVICES" --ignore-not-found
      kubectl delete namespace "$SERVICES" --ignore-not-found
      rm -rf "$FOLDER-existing"
      ;;
  esac
}

case ${1:-} in
  cluster) cluster ;;
  services) services ;;
  up)
    cluster
    "$ROOT/dev/images.sh" build
    "$ROOT/dev/images.sh" load
    services
    ;;
  env) environment ;;
  kubeconfig) echo "$KUBECONFIG" ;;
  status) status ;;
  down) down "${2:-}" ;;
  *) sed -n 2p "$0"; exit 2 ;;
esac
