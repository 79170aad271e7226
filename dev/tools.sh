#!/usr/bin/env bash
# Build the programs of the cluster and its command-line tools into $LETHE_CACHE/bin: tools.sh [TOOL...]
#
# Azurite is a program of Node.js; dev/azurite locks its packages. Apicurio and Trino are programs of Java, which a Maven repository has
# as an archive and as libraries ($MAVEN_REPO: a mirror). Mermaid draws the diagrams of the documentation site. All others are Go programs, built from their modules at pinned
# versions and checked by go.sum or the Go checksum database, so only a module proxy is needed. Each is in a folder named by its version
# (and, for ours, by a hash of its sources) and appears there by a rename, so an interrupted build leaves nothing incomplete. Several
# versions may exist side by side. GOARCH=arm64 builds Go's programs for another processor.
source "$(dirname "$0")/lib.sh"

# Of the cluster on this machine. The default is what the tests run on; dev/cluster/versions has the dependencies of the others.
KUBERNETES=${KUBERNETES:-1.36.3}
case $KUBERNETES in
  1.36.3) MODULES=go.mod ;;
  1.35.4 | 1.37.2) MODULES=../versions/go-${KUBERNETES%.*}.mod ;;
  *) die "KUBERNETES=$KUBERNETES: expected 1.35.4, 1.36.3 or 1.37.2" ;;
esac
MINOR=${KUBERNETES#1.}
MINOR=${MINOR%.*}
HELM=v4.3.1
HELM3=v3.20.0 # many users have it still
COREDNS=v1.14.7
VERSITYGW=v1.8.0
FAKE_GCS=v1.56.1
AZURITE=3.37.0 # as in dev/azurite
APICURIO=3.0.9
APICURIO_SHA256=2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43
MERMAID=11.12.0
MERMAID_SHA256=07e37dfa97b337ccc85365d57eddf99b9706f09db3b59b260d0333b23b343c4b
KUBE_SCORE=v1.20.0
PROMTOOL=v0.316.0 # of Prometheus 3.16.0
KSTATUS=v1.4.0 # as in dev/kstatus
SPARK_OPERATOR=v2.5.0
KUEUE=v0.17.0
SYFT=v1.57.0
CRANE=v0.22.1
COSIGN=v3.0.2
REGISTRY_SERVER=v3.1.2
KIND=v0.33.0 # kind-config.yaml pins the node image that was built for it
GO_MIN=1.26
GO=1.26.8 # fetched only where no recent Go is installed
GO_SHA256="linux-amd64 30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7
linux-arm64 02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99
darwin-amd64 fe99a2009e5bb51e06d7784f1a486478673512041c2671157bd382806e2aedcf
darwin-arm64 0aad5fb52b88498885290178adc0bcfe429bc63012621af9f83282eb640bd9c7"

SOURCES=$ROOT/dev/cluster/go
export CGO_ENABLED=0 GOTOOLCHAIN=local

go_is_recent() { "$1" env GOVERSION 2> /dev/null | portable version-fits $GO_MIN; }

platform() { # as Go names this machine
  case $(uname -sm) in
    "Linux x86_64") echo linux-amd64 ;;
    "Linux aarch64" | "Linux arm64") echo linux-arm64 ;;
    "Darwin x86_64") echo darwin-amd64 ;;
    "Darwin arm64") echo darwin-arm64 ;;
    *) die "please install Go $GO_MIN or later: none is pinned here for $(uname -sm)" ;;
  esac
}

# Go's own distribution is a module too: golang.org/toolchain. Every module proxy has its zip.
fetch_go() {
  local platform pinned zip=$LETHE_CACHE/go.zip.$$ tree=$LETHE_CACHE/go-$GO.$$
  platform=$(platform)
  pinned=$(sed -n "s/^$platform //p" <<< "$GO_SHA256")
  GO_ZIP=$zip GO_TREE=$tree GO_VERSION=$GO.$platform GO_SHA256=$pinned python3 - << 'P'
import hashlib, os, shutil, urllib.request, zipfile
e = os.environ
version = f"v0.0.1-go{e['GO_VERSION']}"
proxy = next((p for p in e.get("GOPROXY", "").replace("|", ",").split(",") if p.startswith("http")), "https://proxy.golang.org")
with urllib.request.urlopen(f"{proxy}/golang.org/toolchain/@v/{version}.zip") as answer, open(e["GO_ZIP"], "wb") as file:
    shutil.copyfileobj(answer, file)
with open(e["GO_ZIP"], "rb") as file:
    got = hashlib.file_digest(file, "sha256").hexdigest()
assert got == e["GO_SHA256"], f"the Go toolchain has SHA-256 {got}"
with zipfile.ZipFile(e["GO_ZIP"]) as archive:
    archive.extractall(e["GO_TREE"])
os.rename(f"{e['GO_TREE']}/golang.org/toolchain@{version}", f"{e['GO_TREE']}/go")
P
  rm -f "$zip"
  chmod +x "$tree"/go/bin/* "$tree"/go/pkg/tool/*/* # a module zip has no file modes
  # Another process may have been faster. A rename never merges two folders.
  python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$tree/go" "$LETHE_CACHE/go-$GO" 2> /dev/null || [ -x "$LETHE_CACHE/go-$GO/bin/go" ]
  rm -rf "$tree"
}

need_go() {
  [ -z "${go:-}" ] || return 0
  for go in go /usr/local/go/bin/go "$LETHE_CACHE/go-$GO/bin/go"; do
    go_is_recent "$go" && return
  done
  progress "fetching Go $GO" fetch_go
}

# What makes a tool puts its files into the folder of its first argument, which is empty. `made` then gives that folder its name.

build_kubernetes() { # FOLDER
  local version=k8s.io/component-base/version name
  # Without -X the server reports v0.0.0 and version checks fail. With -trimpath the Go cache works for any checkout.
  (cd "$SOURCES" && "$go" build -mod=readonly -modfile="$MODULES" -trimpath -o "$1/kubernetes" -ldflags "-s -w -X $version.gitVersion=v$KUBERNETES \
    -X $version.gitMajor=1 -X $version.gitMinor=$MINOR -X $version.gitCommit=none -X $version.gitTreeState=archive" . \
    && "$go" build -trimpath -ldflags "-s -w" -o "$1/pause" ./pause)
  for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl kubeadm etcd; do
    ln -s kubernetes "$1/$name"
  done
}

build_kubectl() { # FOLDER: for kind, which includes the other programs
  local version=k8s.io/component-base/version
  cd "$SOURCES"
  "$go" build -mod=readonly -modfile="$MODULES" -trimpath -o "$1/kubectl" -ldflags "-s -w -X $version.gitVersion=v$KUBERNETES \
    -X $version.gitMajor=1 -X $version.gitMinor=$MINOR" k8s.io/kubernetes/cmd/kubectl
}

# With GOBIN, `go install` refuses another processor. Below GOPATH it puts such programs into a folder of their own.
build_module() { # FOLDER PACKAGE@VERSION
  cd "$1"
  GOMODCACHE=$("$go" env GOMODCACHE) GOPATH=$1/path GOFLAGS=-trimpath "$go" install -ldflags "-s -w" "$2"
  find path/bin -type f -exec mv {} . \;
  rm -r path
}

build_helm3() { # FOLDER
  build_module "$1" helm.sh/helm/v3/cmd/helm@$HELM3
  mv "$1/helm" "$1/helm3"
}

build_ours() { # FOLDER SOURCES NAME: a program whose module is in this repository
  cd "$ROOT/$2"
  # A module may need a newer Go than the others. The go command fetches that one by the module proxy and verifies it.
  GOTOOLCHAIN=auto "$go" build -mod=readonly -trimpath -o "$1/$3" -ldflags "-s -w" .
}

# For an image, so for Linux: `go install` makes no programs for another system. A module that replaces its dependencies, or whose list
# of versions the proxy does not give, is built in its own folder. Its chart comes with it.
build_for_image() { # FOLDER MODULE@VERSION PACKAGE NAME [CHART]
  local source
  cd "$1"
  source=$("$go" mod download -json "$2" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
  cd "$source"
  GOOS=linux "$go" build -mod=readonly -trimpath -ldflags "-s -w" -o "$1/$4" "$3"
  [ -z "${5:-}" ] || {
    cp -R "$5" "$1/$4-chart"
    chmod -R u+w "$1/$4-chart"
  }
}

build_azurite() { # FOLDER
  mkdir "$1/azurite-files"
  cp "$ROOT"/dev/azurite/*.json "$1/azurite-files/"
  (cd "$1/azurite-files" && npm ci --ignore-scripts --no-audit --no-fund)
  # shellcheck disable=SC2016  # expanded when it runs
  printf '#!/bin/sh\nexec node "$(dirname "$(readlink "$0" || echo "$0")")"/azurite-files/node_modules/azurite/dist/src/blob/main.js "$@"\n' > "$1/azurite-blob"
  chmod +x "$1/azurite-blob"
}

fetch_archive() { # FOLDER PATH SHA256: from a Maven repository, into the folder
  curl -fsSL --retry 3 -o "$1/all.tar.gz" "${MAVEN_REPO:-https://repo1.maven.org/maven2}/$2"
  portable digest "$1/all.tar.gz" "$3"
  tar -xzf "$1/all.tar.gz" -C "$1"
  rm "$1/all.tar.gz"
}

fetch_apicurio() { # FOLDER
  mkdir "$1/apicurio"
  fetch_archive "$1/apicurio" io/apicurio/apicurio-registry-app/$APICURIO/apicurio-registry-app-$APICURIO-all.tar.gz $APICURIO_SHA256
  mv "$1/apicurio/apicurio-registry-app-$APICURIO-runner.jar" "$1/apicurio/runner.jar"
}

# Only what reads Iceberg, as libraries: dev/lock_trino.sh says why. What names the plugin is not among them.
fetch_trino() { # FOLDER
  python3 -m lethe.jars "$1/trino" --scope bench --list "$ROOT/dev/trino/jars.txt"
  mkdir -p "$1/trino/plugin/iceberg/services/META-INF/services"
  echo io.trino.plugin.iceberg.IcebergPlugin > "$1/trino/plugin/iceberg/services/META-INF/services/io.trino.spi.Plugin"
}

fetch_mermaid() { # FOLDER
  cd "$1"
  npm pack --silent "mermaid@$MERMAID"
  tar -xzf mermaid-*.tgz package/dist/mermaid.min.js
  portable digest package/dist/mermaid.min.js $MERMAID_SHA256
  mv package/dist/mermaid.min.js .
  rm -r package mermaid-*.tgz
}

# Debian has Prometheus with its tools. Its package is unpacked here and not installed, since it would start a server.
fetch_promtool() { # FOLDER
  cd "$1"
  apt-get -qq download prometheus || { "$ROOT/dev/packages.sh" lists && apt-get -qq download prometheus; }
  dpkg-deb -x prometheus_*.deb tree
  mv tree/usr/bin/promtool .
  rm -r tree prometheus_*.deb
}

made() { # FOLDER BUILDER [ARGUMENT...]: complete, or not there
  local part
  part=$(mktemp -d "$LETHE_CACHE/part.XXXXXX")
  (
    set -e
    "$2" "$part" "${@:3}"
  )
  chmod 755 "$part"
  mkdir -p "${1%/*}"
  mv "$part" "$1"
}

tool() { # NAME VERSION LABEL BUILDER [ARGUMENT...]
  local folder=$LETHE_CACHE/tools/$1-$2 label=$3 file
  shift 3
  if [ ! -d "$folder" ]; then
    [[ $1 == build_azurite || $1 == fetch_* ]] || need_go
    progress "$label" made "$folder" "$@"
  fi
  for file in "$folder"/*; do
    ln -sfn "$file" "$LETHE_CACHE/bin/${file##*/}"
  done
}

# The user's own program, if its version fits: it is not built then. A link to one that was built before would hide it.
use_installed() { # NAME VERSION-COMMAND LOW [HIGH]
  local name=$1 command=$2
  shift 2
  [ -z "${GOARCH:-}" ] || return 1
  (
    export PATH=${PATH//"$LETHE_CACHE/bin:"/}
    command -v "$name" > /dev/null && eval "$name $command" 2> /dev/null | portable version-fits "$@"
  ) || return 1
  rm -f "$LETHE_CACHE/bin/$name"
}

obtain() {
  mkdir -p "$LETHE_CACHE/bin"
  for name; do
    case $name in
      kubernetes) tool kubernetes "$KUBERNETES-$(hash_of dev/cluster/go)" "building Kubernetes $KUBERNETES (10 to 20 minutes, once)" build_kubernetes ;;
      any-kubectl) command -v kubectl > /dev/null || obtain kubectl ;;
      # kubectl may differ from the API server by one minor version
      kubectl) use_installed kubectl "version --client" 1.$((MINOR - 1)) 1.$((MINOR + 1)) \
        || tool kubectl "$KUBERNETES" "building kubectl $KUBERNETES" build_kubectl ;;
      helm) use_installed helm "version --short" 3.16 4 || tool helm $HELM "building Helm $HELM" build_module helm.sh/helm/v4/cmd/helm@$HELM ;;
      helm3) tool helm3 $HELM3 "building Helm $HELM3" build_helm3 ;;
      coredns) tool coredns $COREDNS "building CoreDNS $COREDNS" build_module github.com/coredns/coredns@$COREDNS ;;
      versitygw-image)
        tool versitygw-image $VERSITYGW "building versitygw $VERSITYGW for its image" build_for_image \
          github.com/versity/versitygw@$VERSITYGW ./cmd/versitygw versitygw-image
        ;;
      versitygw) tool versitygw $VERSITYGW "building versitygw $VERSITYGW" build_module github.com/versity/versitygw/cmd/versitygw@$VERSITYGW ;;
      fake-gcs-server) tool fake-gcs-server $FAKE_GCS "building fake-gcs-server $FAKE_GCS" build_module github.com/fsouza/fake-gcs-server@$FAKE_GCS ;;
      azurite)
        "$ROOT/dev/packages.sh" javascript
        tool azurite $AZURITE-"$(hash_of dev/azurite)" "installing Azurite $AZURITE" build_azurite
        ;;
      apicurio) tool apicurio $APICURIO "fetching the schema registry Apicurio $APICURIO" fetch_apicurio ;;
      trino) tool trino "$(hash_of dev/trino/jars.txt)" "fetching Trino (500 MB)" fetch_trino ;;
      iceberg-go) tool iceberg-go "$(hash_of dev/iceberg-go)" "building a reader with iceberg-go" build_ours dev/iceberg-go icebergreader ;;
      olm-validate) tool olm-validate "$(hash_of dev/olm-validate)" "building the checks of OLM bundles" build_ours dev/olm-validate olm-validate ;;
      kstatus) tool kstatus $KSTATUS-"$(hash_of dev/kstatus)" "building kstatus $KSTATUS" build_ours dev/kstatus kstatus ;;
      mermaid)
        "$ROOT/dev/packages.sh" javascript
        tool mermaid $MERMAID "fetching Mermaid $MERMAID" fetch_mermaid
        ;;
      kube-score) tool kube-score $KUBE_SCORE "building kube-score $KUBE_SCORE" build_module github.com/zegl/kube-score/cmd/kube-score@$KUBE_SCORE ;;
      promtool)
        if command -v apt-get > /dev/null && [ -z "${GOARCH:-}" ]; then
          tool promtool debian "fetching promtool" fetch_promtool
        else
          tool promtool $PROMTOOL "building promtool $PROMTOOL (5 to 15 minutes, once)" build_module github.com/prometheus/prometheus/cmd/promtool@$PROMTOOL
        fi
        ;;
      spark-operator)
        tool spark-operator $SPARK_OPERATOR "building the Spark operator $SPARK_OPERATOR" build_for_image \
          github.com/kubeflow/spark-operator/v2@$SPARK_OPERATOR ./cmd/operator spark-operator charts/spark-operator-chart
        ;;
      kueue) tool kueue $KUEUE "building Kueue $KUEUE" build_for_image sigs.k8s.io/kueue@$KUEUE ./cmd/kueue kueue charts/kueue ;;
      syft) tool syft $SYFT "building Syft $SYFT" build_module github.com/anchore/syft/cmd/syft@$SYFT ;;
      cosign) tool cosign $COSIGN "building cosign $COSIGN" build_module github.com/sigstore/cosign/v3/cmd/cosign@$COSIGN ;;
      crane) tool crane $CRANE "building crane $CRANE" build_module github.com/google/go-containerregistry/cmd/crane@$CRANE ;;
      registry) tool registry $REGISTRY_SERVER "building a registry $REGISTRY_SERVER" build_module github.com/distribution/distribution/v3/cmd/registry@$REGISTRY_SERVER ;;
      kind) use_installed kind version $KIND || tool kind $KIND "building kind $KIND" build_module sigs.k8s.io/kind@$KIND ;;
      *) die "unknown tool $name" ;;
    esac
  done
}

if [ $# = 0 ]; then
  case $(mode) in
    node) set -- kubernetes helm coredns ;;
    kind) set -- kind kubectl helm ;;
    existing) set -- kubectl helm ;;
  esac
fi
"$ROOT/dev/packages.sh" python
renice -n 10 -p $$ > /dev/null 2>&1 || true # what runs beside the builds comes first
# Each has a lock of its own: a long build delays only those who need its result.
for wanted; do locked "tool-$wanted" obtain "$wanted"; done
