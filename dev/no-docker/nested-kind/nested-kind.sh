#!/usr/bin/env bash
# kind on a machine without Docker, as root: nested-kind.sh start | run COMMAND... | stop [--purge]
#
# Users with Docker do not need this: `make demo-cluster` uses Docker. This is equipment to test that path where no Docker runs and no
# registry answers. `start` runs a Docker daemon in a network namespace that has no link to this machine's network, so neither it nor a
# container nor a pod can connect to anything else. It then makes the image of kind's node from Debian's packages, kind's own files (a Go
# module) and the programs of dev/tools.sh. `run` runs a command in that namespace, for example
#
#     dev/no-docker/nested-kind/nested-kind.sh run make demo-cluster
#
# The cluster's CoreDNS forwards to Docker's, and that one to a server in the namespace which answers that no other name exists: without
# an answer, each new connection to S3 would wait for four seconds.
#
# Everything that has to be downloaded must be there before: `start` builds the images with buildah and loads them into Docker.
# The node is different from kind's own image in its packages (Debian's containerd and runc), in its network plugin (ptp for the addresses
# of one node, instead of kindnetd), and has no provisioner of volumes: no registry of modules has these programs. `stop` ends everything
# and keeps Docker's images for the next `start`; --purge removes these, too (about 8 GB).
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"

HERE=$ROOT/dev/no-docker/nested-kind
STATE=$LETHE_STATE/nested-kind
DOCKER=$LETHE_CACHE/nested-docker # Debian's package, unpacked: installing it would start a daemon
CRICTL=v1.36.0
KUBERNETES=${KUBERNETES:-$(sed -n 's/^KUBERNETES=.*:-\([0-9.]*\)}.*/\1/p' "$ROOT/dev/tools.sh")}
KIND=$(sed -n 's/^KIND=\(v[0-9.]*\).*/\1/p' "$ROOT/dev/tools.sh")
NODE_IMAGE=localhost/lethe-kind-node:v$KUBERNETES

inside() { # COMMAND...: in the daemon's network, with its client and the configuration of its kind
  nsenter --net="/proc/$(cat "$STATE/pid")/ns/net" -- env "PATH=$DOCKER/usr/bin:$PATH" "DOCKER_HOST=unix://$STATE/docker.sock" "KIND_CONFIG=$STATE/kind-config.yaml" "$@"
}

runs() { [ -s "$STATE/pid" ] && [ "$(cat "/proc/$(cat "$STATE/pid")/comm" 2> /dev/null)" = dockerd ] && inside docker info > /dev/null 2>&1; }

fetch_docker() {
  local folder
  folder=$(mktemp -d)
  chmod 755 "$folder" # apt downloads as another user
  (cd "$folder" && apt-get download -q docker.io && dpkg-deb -x docker.io_*.deb unpacked)
  rm -rf "$DOCKER"
  mv "$folder/unpacked" "$DOCKER"
  rm -rf "$folder"
}

to_docker() { # BUILDAH-IMAGE NAME: through a file, because an archive for Docker cannot be written to a pipe
  local archive=$LETHE_CACHE/tmp/nested-kind.tar
  rm -f "$archive"
  buildah_ push -q "$1" "docker-archive:$archive:$2"
  inside docker load -q -i "$archive"
  rm -f "$archive"
}

has() { inside docker image inspect "$1" > /dev/null 2>&1; }

daemon() {
  mkdir -p "$STATE/data"
  # shellcheck disable=SC2016  # expanded by the inner shell
  PATH=$DOCKER/usr/sbin:$DOCKER/usr/bin:$PATH setsid unshare --net --mount --propagation private sh -c '
    ip link set lo up
    echo $$ > "$1/pid"
    exec dockerd --data-root "$1/data" --exec-root "$1/exec" -p "$1/dockerd.pid" -H "unix://$1/docker.sock" --storage-driver overlay2 \
      --add-runtime "restricted=$2" --default-runtime restricted --dns 172.17.0.1' \
    sh "$STATE" "$HERE/runtime.py" > "$LETHE_STATE/log/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 150); do
    runs && break
    sleep 0.2
  done
  runs || die "the Docker daemon does not answer: see $LETHE_STATE/log/dockerd.log"
  answer_names
}

answer_names() { # at the address of Docker's first bridge
  printf '.:53 {\n  template ANY ANY {\n    rcode NXDOMAIN\n  }\n}\n' > "$STATE/Corefile"
  setsid nsenter --net="/proc/$(cat "$STATE/pid")/ns/net" "$LETHE_CACHE/bin/coredns" -conf "$STATE/Corefile" \
    > "$LETHE_STATE/log/nested-names.log" 2>&1 < /dev/null &
  echo $! > "$STATE/names.pid"
}

node_image() {
  local go context=$LETHE_CACHE/nested-context source part image from
  # shellcheck disable=SC2031
  go=$(command -v go || echo /usr/local/go/bin/go)
  rm -rf "$context"
  mkdir -p "$context/bin"
  [ -x "$LETHE_CACHE/tools/crictl-$CRICTL/crictl" ] || CGO_ENABLED=0 GOFLAGS=-trimpath GOBIN=$LETHE_CACHE/tools/crictl-$CRICTL \
    "$go" install -ldflags "-s -w" "sigs.k8s.io/cri-tools/cmd/crictl@$CRICTL"
  source=$(cd "$context" && "$go" mod download -json "sigs.k8s.io/kind@$KIND" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
  cp -r "$source/images/base/files" "$context/kind"
  chmod -R u+w "$context/kind"
  cp -L "$LETHE_CACHE"/bin/{kubernetes,coredns,pause} "$LETHE_CACHE/tools/crictl-$CRICTL/crictl" "$context/bin/"
  cp "$HERE/pods.conflist" "$context/"
  for part in node kubernetes coredns pause; do
    buildah_ build --layers --pull-never --network host -v /etc/resolv.conf:/etc/resolv.conf:ro -v /etc/hosts:/etc/hosts:ro \
      --target $part -t localhost/nested-kind-$part -f "$HERE/Containerfile" "$context"
  done
  rm -rf "$context"
  # The images for containerd are imported in a container, as kind does it. They are unpacked in the node: overlays do not nest.
  to_docker localhost/nested-kind-node localhost/nested-kind-node:1
  inside docker rm -f nested-kind-import 2> /dev/null || true
  inside docker run -d --name nested-kind-import --privileged --entrypoint sleep localhost/nested-kind-node:1 infinity
  inside docker exec -d nested-kind-import containerd
  until inside docker exec nested-kind-import ctr version > /dev/null 2>&1; do sleep 0.2; done
  ctl() { inside docker exec -i nested-kind-import ctr -n k8s.io "$@"; }
  for part in kubernetes coredns pause; do
    rm -f "$LETHE_CACHE/tmp/nested-kind.tar"
    buildah_ push -q localhost/nested-kind-$part "docker-archive:$LETHE_CACHE/tmp/nested-kind.tar:localhost/nested-kind-$part:1"
    ctl images import --no-unpack --all-platforms - < "$LETHE_CACHE/tmp/nested-kind.tar"
  done
  rm "$LETHE_CACHE/tmp/nested-kind.tar"
  for image in $(inside docker exec nested-kind-import kubeadm config images list --kubernetes-version "v$KUBERNETES"); do
    case $image in
      */pause:*) continue ;; # containerd's configuration, which is kind's, names another version
      */coredns:*) from=coredns ;;
      *) from=kubernetes ;;
    esac
    ctl images tag "localhost/nested-kind-$from:1" "$image"
  done
  ctl images tag localhost/nested-kind-pause:1 "$(sed -n 's/.*sandbox_image = "\(.*\)"/\1/p' "$source/images/base/files/etc/containerd/config.toml")"
  inside docker exec nested-kind-import pkill containerd
  inside docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' nested-kind-import "$NODE_IMAGE"
  inside docker rm -f nested-kind-import
}

# kind's configuration for this node: kind-config.yaml with this image and what the node cannot have. The control plane requests almost
# a CPU, which a machine with two cannot spare.
configure() {
  local name
  mkdir -p "$STATE/patches"
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
    echo "spec: {containers: [{name: $name, resources: {requests: {cpu: 10m}}}]}" > "$STATE/patches/$name+strategic.yaml"
  done
  sed "s#^\( *image:\).*#\1 $NODE_IMAGE#" "$ROOT/kind-config.yaml"
  cat << C
    extraMounts: [{hostPath: $STATE/patches, containerPath: /kind/patches, readOnly: true}]
networking: {disableDefaultCNI: true}
kubeadmConfigPatches:
  - |
    kind: InitConfiguration
    patches: {directory: /kind/patches}
  - |
    kind: KubeletConfiguration
    failCgroupV1: false # hosts with cgroup v1 still work, though Kubernetes supports v2 only
C
}

own_images() { # the images of Lethe and its services, from the layouts of dev/images.sh
  local image layout
  for image in "$@"; do
    has "$image" && continue
    layout=${image%:*}
    layout=$LETHE_CACHE/layouts/${layout##*/lethe-}
    python3 "$HERE/docker_archive.py" "${layout/%kafka/spark}" "$image" | inside docker load -q
  done
}

start() {
  [ "$(id -u)" = 0 ] || die "a Docker daemon needs root"
  ! docker_answers || die "Docker runs here: this is only for machines without it"
  "$ROOT/dev/packages.sh" node
  "$ROOT/dev/venv.sh"
  "$ROOT/dev/tools.sh" kubernetes coredns helm kubectl kind # the first one for the image of the node
  "$ROOT/dev/images.sh" build
  [ -x "$DOCKER/usr/sbin/dockerd" ] || progress "fetching Docker" fetch_docker
  runs || daemon
  has "$NODE_IMAGE" || progress "making the image of kind's node" node_image
  configure > "$STATE/kind-config.yaml"
  # shellcheck disable=SC1091
  source "$LETHE_STATE/images.env"
  progress "loading Lethe's images into Docker" own_images \
    "$LETHE_OPERATOR_IMAGE" "$LETHE_SPARK_IMAGE" "$LETHE_POSTGRES_IMAGE" "$LETHE_VERSITYGW_IMAGE" "$("$ROOT/dev/images.sh" kafka-image)"
}

stop() {
  [ ! -s "$STATE/names.pid" ] || kill "$(cat "$STATE/names.pid")" 2> /dev/null || true
  rm -f "$STATE/names.pid"
  if runs; then
    # shellcheck disable=SC2046  # one argument each
    inside docker rm -f -v $(inside docker ps -aq) > /dev/null 2>&1 || true
  fi
  if [ -s "$STATE/pid" ] && [ "$(cat "/proc/$(cat "$STATE/pid")/comm" 2> /dev/null)" = dockerd ]; then
    kill "$(cat "$STATE/pid")"
    while [ -e "/proc/$(cat "$STATE/pid")" ]; do sleep 0.1; done
  fi
  rm -f "$STATE/pid"
  [ "${1:-}" != --purge ] || rm -rf "$STATE"
}

case ${1:-} in
  start) start ;;
  run) shift; runs || die "the daemon does not run: $0 start"; inside "$@" ;;
  stop) stop "${2:-}" ;;
  *) sed -n 2p "$0"; exit 2 ;;
esac
