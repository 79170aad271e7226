#!/usr/bin/env bash
# A real one-node Kubernetes without Docker: cluster.sh up | down [--purge] | status | kubeconfig | load LAYOUT IMAGE | enter COMMAND
#
# The node is one set of net, mount, pid, uts and ipc namespaces whose PID 1 is this script (_init). If that process is killed, the
# kernel ends every component and pod and removes their mounts, interfaces and iptables rules, so `down` has little to clean up.
# The node has no default route, so nothing in it can connect to another machine.
set -euo pipefail
# shellcheck source=lib.sh
source "$(dirname "$(readlink -f "$0")")/../lib.sh"

NAME=$CLUSTER_NAME # at most 12 characters: NAME0 is an interface
N=$CLUSTER_INDEX   # 0 to 63; each cluster beside another needs its own
STATE=$LETHE_STATE/$NAME
HOST=10.254.$N.1 NODE=10.254.$N.2 LINK=10.254.$N.0/30 PODS=10.244.$N.0/24 SVCS=10.96.$N.0/24
VERSION=v1.36.3
export KUBECONFIG=$STATE/kubeconfig
SELF=$(readlink -f "$0")

CG=/sys/fs/cgroup
V2=
if [ -e $CG/cgroup.controllers ]; then
  V2=1
  HIERARCHIES=("$CG")
else
  mapfile -t HIERARCHIES < <(find $CG -mindepth 1 -maxdepth 1 -type d)
fi

# A process is identified by its id and its start time, because ids are reused. A zombie counts as ended.
started() { sed 's/.*) //' "/proc/$1/stat" 2> /dev/null | awk '$1 != "Z" {print $20}' || true; }
alive() { [ -s "$STATE/init" ] && read -r pid born parent < "$STATE/init" && [ "$(started "$pid")" = "$born" ]; }
healthy() { alive && kubectl get node node --request-timeout=3s 2> /dev/null | grep -q ' Ready'; }
ctl() { ctr -a "$STATE/containerd.sock" -n k8s.io "$@"; }

# A client that connects to an address of a stopped cluster would follow this machine's default route to another host. With these
# routes it fails at once. They exist before the node starts and stay after `down`. While the node runs, its own link has a better
# metric.
guard() { for range in $PODS $SVCS $LINK; do ip route "$1" unreachable "$range" metric 4000000; done; }

down() {
  if alive; then
    kill -KILL "$pid"
    while alive || [ -n "$(started "$parent")" ]; do sleep 0.05; done
  fi
  ip link del "${NAME}0" 2> /dev/null || true
  local hierarchy
  for hierarchy in "${HIERARCHIES[@]}"; do # remove the cgroups, deepest first, once their processes have ended
    [ -d "$hierarchy/$NAME" ] || continue
    for _ in $(seq 100); do
      find "$hierarchy/$NAME" -depth -type d -exec rmdir {} + 2> /dev/null && break
      sleep 0.05
    done
  done
  # containerd's root stays, with the images; everything else belongs to this run of the node
  rm -rf "${STATE:?}"/{init,kubeconfig,pki,etcd,kubelet,cni,log,conf,containerd.sock,containerd.sock.ttrpc}
  if [ "${1:-}" = --purge ]; then
    rm -rf "${STATE:?}"
    guard del 2> /dev/null || true
    # Removing a mount point removes the mount in all namespaces, so do it only if no other node has one there
    grep -qs ' /var/lib/kubelet ' /proc/*/mountinfo || rmdir /var/lib/kubelet /var/lib/cni 2> /dev/null || true
  fi
}

up() {
  [ "$(id -u)" = 0 ] || die "the local node needs root (or run where Docker answers, for kind)"
  [ ${#STATE} -lt 80 ] || die "LETHE_STATE is too long a path for the sockets in it: $STATE"
  if healthy; then return; fi
  guard replace
  down
  mkdir -p "$STATE"/{pki,log/var,etcd,containerd,kubelet,cni,conf}
  local hierarchy file
  if [ -n "$V2" ]; then
    xargs -n 1 < $CG/cgroup.controllers | while read -r file; do echo "+$file" > $CG/cgroup.subtree_control 2> /dev/null || true; done
  fi
  for hierarchy in "${HIERARCHIES[@]}"; do mkdir -p "$hierarchy/$NAME"; done
  if [ -d "$CG/cpuset/$NAME" ]; then # v1: a new cpuset has no CPUs until it is given some
    for file in cpus mems; do cat $CG/cpuset/cpuset.$file > "$CG/cpuset/$NAME/cpuset.$file"; done
  fi
  # With v1, all pods together would get as much of the CPUs as one busy process of this machine.
  for file in "$CG"/*/"$NAME"/cpu.shares; do [ ! -e "$file" ] || echo 4096 > "$file"; done
  mkdir -p /var/lib/kubelet /var/lib/cni # mount points only: on the host they stay empty
  setsid unshare --net --mount --pid --uts --ipc --fork --kill-child=KILL --mount-proc --propagation private \
    "$SELF" _init > "$STATE/log/init.log" 2>&1 < /dev/null 7>&- 8>&- 9>&- &
  parent=$!
  for _ in $(seq 250); do
    pid=$(pgrep -P $parent || true)
    [ -n "$pid" ] && break
    sleep 0.02
  done
  echo "$pid $(started "$pid") $parent" > "$STATE/init"
  ip link add "${NAME}0" type veth peer name eth0 netns "$pid"
  echo 0 > "/proc/sys/net/ipv4/conf/${NAME}0/forwarding" # this machine routes nothing for the node
  ip addr add "$HOST/30" dev "${NAME}0"
  ip link set "${NAME}0" up
  for _ in $(seq 480); do
    healthy && break
    alive || break
    sleep 0.25
  done
  healthy || die "the node did not come up: see $STATE/log"
  until kubectl get serviceaccount default > /dev/null 2>&1; do sleep 0.1; done
}

configure() {
  cat > conf/kubeadm.yaml << C
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: $NODE, bindPort: 6443}
nodeRegistration: {name: node, criSocket: "unix://$STATE/containerd.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $VERSION
clusterName: $NAME
certificatesDir: $STATE/pki
encryptionAlgorithm: ECDSA-P256
networking: {serviceSubnet: $SVCS, podSubnet: $PODS, dnsDomain: cluster.local}
C
  # No forwarder: names outside the cluster fail at once
  cat > conf/coredns << C
.:53 {
  bind $NODE
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $STATE/conf/super-admin.conf
  }
}
C
  mkdir -p conf/cni
  cat > conf/cni/10-pods.conflist << C
{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"$PODS"}]],"routes":[{"dst":"0.0.0.0/0"}]}},{"type":"portmap","capabilities":{"portMappings":true}}]}
C
  # The opt plugin would make a folder under /opt of the host. The oom settings: the score may not be lowered everywhere.
  cat > conf/containerd.toml << C
version = 2
root = "$STATE/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt"]
grpc.address = "$STATE/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  registry = { config_path = "$STATE/conf/certs.d" }
  cni = { bin_dir = "/usr/lib/cni", conf_dir = "$STATE/conf/cni" }
C
  # A registry on the node itself (dev/no-docker/existing.sh) has no certificate.
  mkdir -p "conf/certs.d/$NODE:5000"
  printf '[host."http://%s:5000"]\n' "$NODE" > "conf/certs.d/$NODE:5000/hosts.toml"
  # Images are imported, so a collected one could not be pulled again: never collect, and never evict for a fullish disk.
  cat > conf/kubelet.yaml << C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$NAME
failSwapOn: false
failCgroupV1: false # hosts with cgroup v1 still work, though Kubernetes supports v2 only
containerRuntimeEndpoint: unix://$STATE/containerd.sock
volumePluginDir: /var/lib/kubelet/volumeplugins
clusterDNS: [$NODE]
clusterDomain: cluster.local
resolvConf: ""
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
C
}

network() {
  until ip link set eth0 up 2> /dev/null; do sleep 0.02; done # the host hands the link in once it knows our process id
  ip link set lo up
  ip addr add "$NODE/30" dev eth0
  echo 1 > /proc/sys/net/ipv4/ip_forward
  echo 0 > /proc/sys/net/ipv4/icmp_ratelimit                               # a dial without a route fails at once, each time
  iptables -I FORWARD -i cni0 -o eth0 -m conntrack --ctstate NEW -j REJECT # pods open nothing towards the host
  # connect() needs a route to a service address before kube-proxy's rules rewrite it: an empty bridge is enough
  ip link add svc0 type bridge
  ip link set svc0 up
  ip route add "$SVCS" dev svc0 src "$NODE"
}

background() {
  local name=$1
  shift
  "$@" > "log/$name.log" 2>&1 < /dev/null &
}

_init() { # PID 1 of the node
  trap 'exit 0' TERM
  hostname node
  mount --make-rshared / # pods' mounts propagate, but only inside this mount namespace
  mount -t tmpfs tmpfs /run
  mkdir -p /run/netns /run/lock
  mount --bind "$STATE/kubelet" /var/lib/kubelet
  mount --bind "$STATE/cni" /var/lib/cni
  mount --bind "$STATE/log/var" /var/log
  network
  cd "$STATE"
  configure
  background containerd containerd --config conf/containerd.toml
  background etcd etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  kubeadm init phase certs all --config conf/kubeadm.yaml
  kubeadm init phase kubeconfig all --config conf/kubeadm.yaml --kubeconfig-dir "$STATE/conf"
  local pki=$STATE/pki admin=$STATE/conf/super-admin.conf
  background apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$NODE" --secure-port=6443 \
    --service-cluster-ip-range="$SVCS" --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" --kubelet-client-key="$pki/apiserver-kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP --requestheader-client-ca-file="$pki/front-proxy-ca.crt" \
    --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User \
    --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true
  until [ "$(kubectl --kubeconfig "$admin" get --raw /readyz 2> /dev/null)" = ok ]; do sleep 0.1; done
  # As kubeadm does: the group of admin.conf, and the user as which the API server calls the kubelet, for logs and exec
  kubectl --kubeconfig "$admin" create clusterrolebinding kubeadm:cluster-admins --clusterrole=cluster-admin --group=kubeadm:cluster-admins
  kubectl --kubeconfig "$admin" create clusterrolebinding kubeadm:apiserver-kubelet-client --clusterrole=system:kubelet-api-admin \
    --user=kube-apiserver-kubelet-client
  background controller-manager kube-controller-manager --kubeconfig=conf/controller-manager.conf \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --use-service-account-credentials \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --allocate-node-cidrs --cluster-cidr="$PODS" \
    --node-cidr-mask-size=24 --service-cluster-ip-range="$SVCS" --leader-elect=false --flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins
  background scheduler kube-scheduler --kubeconfig=conf/scheduler.conf --leader-elect=false
  # conntrack's sysctls cannot be written from a network namespace of one's own, hence the 0
  background proxy kube-proxy --kubeconfig="$admin" --cluster-cidr="$PODS" --hostname-override=node --conntrack-max-per-core=0 \
    --nodeport-addresses="$NODE/32" --metrics-bind-address=127.0.0.1:10249
  background coredns coredns -conf conf/coredns
  until ctl version > /dev/null 2>&1; do sleep 0.1; done
  ctl images ls -q | grep -q '^localhost/pause:1$' || ctl images import "$LETHE_CACHE/pause.tar"
  background kubelet kubelet --config=conf/kubelet.yaml --kubeconfig=conf/kubelet.conf --hostname-override=node --node-ip="$NODE"
  cp "$admin" kubeconfig
  while :; do wait -n || sleep 1; done # PID 1 reaps every orphan
}

# An image goes in without the blobs that containerd has already, so a changed last layer is all that a rebuilt one costs.
load() { # LAYOUT IMAGE
  if ctl images ls -q | grep -qxF "$2"; then return; fi
  local part
  part=$(mktemp -d -p "$LETHE_STATE")
  ctl content ls -q | sed 's|sha256:|blobs/sha256/|' | sort > "$part/have"
  ln -s "$1/blobs" "$1/oci-layout" "$part/"
  python3 - "$1/index.json" "$2" > "$part/index.json" << 'P' # containerd takes every image that the index lists
import json, sys
index = json.load(open(sys.argv[1]))
index["manifests"] = [m for m in index["manifests"] if m["annotations"]["org.opencontainers.image.ref.name"] == sys.argv[2]]
assert index["manifests"], f"{sys.argv[2]} is not in {sys.argv[1]}"
json.dump(index, sys.stdout)
P
  (cd "$part" && find -L oci-layout index.json blobs -type f | sort | comm -23 - have | tar -chf - -T -) | ctl images import - > /dev/null
  rm -rf "$part"
}

case ${1:-} in
  up) locked "$NAME" up ;;
  down) locked "$NAME" down "${2:-}" ;;
  status) if healthy; then echo up; elif alive; then echo broken; exit 1; else echo down; exit 1; fi ;;
  kubeconfig) echo "$KUBECONFIG" ;;
  load) shift; load "$@" ;;
  enter) shift; alive; exec nsenter -t "$pid" -n -m -p -u -i -- "$@" ;;
  _init) _init ;;
  *) sed -n 2p "$SELF"; exit 2 ;;
esac
