#!/usr/bin/env bash
# Build the images and load them into the cluster: images.sh build | load | tags | pause | kafka | kafka-image | launchers | previous |
# release operator|spark VERSION ARCHIVE | push ARCHIVE REFERENCE | run operator|spark|postgres|versitygw COMMAND...
#
# Tags are hashes of the inputs, so an existing tag is never built again and a changed file always gives a new tag. The references
# are written to $LETHE_STATE/images.env. With Docker, the Dockerfiles are built unchanged. Without it, buildah builds the same files
# on a base that debootstrap makes, and Lethe's own code is added as one layer (see app_layer.py). ARCH=arm64 builds them for another
# processor, which dev/no-docker/emulated.sh emulates.
source "$(dirname "$0")/lib.sh"

DEBIAN_MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
BASE=docker.io/library/debian:bookworm-slim
LAYOUTS=$LETHE_CACHE/layouts
# The S3 server in its image is a program for Linux. There, it is the one that tests start too.
GATEWAY="versitygw"
[[ $(uname -s) == Linux && -z ${ARCH:-} ]] || GATEWAY="versitygw-image"

# The inputs of each image: first those of its base, whose build takes minutes, then those of the last layer.
OPERATOR_BASE=(operator/Dockerfile dev/requirements/common.txt dev/requirements/operator.txt)
SPARK_BASE=(spark_apps/Dockerfile dev/requirements/common.txt dev/requirements/spark.txt spark_apps/lethe/jars
  spark_apps/archive_classes.py spark_apps/lethe_spark/run/launching.py)
operator_base=localhost/lethe-operator-base:$(hash_of "${OPERATOR_BASE[@]}")
spark_base=localhost/lethe-spark-base:$(hash_of "${SPARK_BASE[@]}")
operator=localhost/lethe-operator:$(hash_of "${OPERATOR_BASE[@]}" operator/lethe_gateway operator/lethe_inlet operator/lethe_operator spark_apps/lethe)
spark=localhost/lethe-spark:$(hash_of "${SPARK_BASE[@]}" spark_apps/lethe spark_apps/lethe_spark)
postgres=localhost/lethe-postgres:$(hash_of dev/services/postgres)
# The operators of other projects, which only tests of launchers need. The first one has the Spark image as its base.
spark_operator=localhost/lethe-spark-operator:$(hash_of "${SPARK_BASE[@]}" spark_apps/lethe spark_apps/lethe_spark dev/launchers dev/tools.sh)
kueue=localhost/lethe-kueue:$(hash_of dev/launchers dev/tools.sh)
# A broker of Kafka, which the demo and tests of the inlet need. The Spark image is its base.
kafka=localhost/lethe-kafka:$(hash_of "${SPARK_BASE[@]}" spark_apps/lethe spark_apps/lethe_spark dev/services/kafka)
versitygw=localhost/lethe-versitygw:$(hash_of dev/services/versitygw dev/tools.sh)

ca_bundle() {
  local file
  for file in "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}"; do
    if [ -s "$file" ]; then
      echo "$file"
      return
    fi
  done
}

bake() { # IMAGE ARGUMENT...: with Docker or buildah
  local ca secret=()
  ca=$(ca_bundle)
  [ -z "$ca" ] || secret=(--secret "id=ca,src=$ca")
  if docker_answers; then
    DOCKER_BUILDKIT=1 docker build ${secret[@]+"${secret[@]}"} -t "$@"
  else
    # the host's network: otherwise buildah creates a bridge on this machine
    buildah_ build ${ARCH:+--arch "$ARCH"} --layers --pull-never --network host --build-arg "DEBIAN=$BASE" ${secret[@]+"${secret[@]}"} \
      -v /etc/resolv.conf:/etc/resolv.conf:ro -v /etc/hosts:/etc/hosts:ro -t "$@"
  fi
}

binary_context() { # dev/tools.sh builds versitygw, so no image is pulled for it
  local context=$LETHE_CACHE/versitygw-context
  mkdir -p "$context"
  cp "$LETHE_CACHE/bin/$GATEWAY" "$context/versitygw"
  echo "$context"
}

debian_base() {
  local rootfs=$LETHE_CACHE/rootfs container
  rm -rf "$rootfs"
  debootstrap ${ARCH:+--arch="$ARCH"} --variant=minbase bookworm "$rootfs" "$DEBIAN_MIRROR"
  chroot "$rootfs" apt-get clean
  container=$(buildah_ from ${ARCH:+--arch "$ARCH"} scratch)
  buildah_ add -q "$container" "$rootfs" /
  buildah_ commit -q "$container" $BASE
  buildah_ rm "$container"
  rm -rf "$rootfs"
}

pause_image() { # the container that holds a pod's namespaces open on the local node
  [ ! -e "$LETHE_CACHE/pause.tar" ] || return 0
  local container
  container=$(buildah_ from scratch)
  buildah_ copy -q "$container" "$LETHE_CACHE/bin/pause" /pause
  buildah_ config --entrypoint '["/pause"]' "$container"
  buildah_ commit -q "$container" localhost/pause:1
  buildah_ rm "$container"
  buildah_ push -q localhost/pause:1 "oci-archive:$LETHE_CACHE/pause.tar.new:localhost/pause:1"
  mv "$LETHE_CACHE/pause.tar.new" "$LETHE_CACHE/pause.tar"
}

layout_of() { # operator, spark, ...: images of one kind share a layout and its blobs
  local kind=${1%:*}
  kind=${kind##*/lethe-}
  echo "$LAYOUTS/${kind%-base}"
}

in_layout() { grep -qF "\"$1\"" "$(layout_of "$1")/index.json" 2> /dev/null; }

to_layout() { # IMAGE ARGUMENT...: bake and write out, without images of older inputs: a layout has only one base
  local layout
  layout=$(layout_of "$1")
  bake "$@"
  rm -rf "$layout.new"
  mkdir -p "$layout.new"
  buildah_ push -q "$1" "oci:$layout.new:$1"
  rm -rf "$layout"
  mv "$layout.new" "$layout"
}

debian() { # without Docker, what all images are built on
  "$ROOT/dev/packages.sh" node
  buildah_ inspect $BASE > /dev/null 2>&1 || progress "making the Debian base image" debian_base
}

base_layers() { # BASE DOCKERFILE LABEL
  in_layout "$1" || {
    debian
    progress "building the $3 image's base" to_layout "$1" --target base -f "$ROOT/$2" "$ROOT"
  }
}

app_layer() { # BASE IMAGE DOCKERFILE LABEL
  base_layers "$1" "$3" "$4"
  in_layout "$2" || (cd "$ROOT" && python3 dev/no-docker/app_layer.py "$(layout_of "$2")" "$1" "$2" "$3" .)
}

docker_has() { docker image inspect "$1" > /dev/null 2>&1; }

build() {
  env ${ARCH:+GOARCH="$ARCH"} "$ROOT/dev/tools.sh" $GATEWAY
  if docker_answers; then
    docker_has "$postgres" || progress "building the PostgreSQL image" bake "$postgres" -f "$ROOT/dev/services/postgres/Dockerfile" "$ROOT"
    docker_has "$versitygw" || progress "building the S3 image" bake "$versitygw" -f "$ROOT/dev/services/versitygw/Dockerfile" "$(binary_context)"
    docker_has "$operator" || progress "building the operator image" bake "$operator" -f "$ROOT/operator/Dockerfile" "$ROOT"
    docker_has "$spark" || progress "building the Spark image" bake "$spark" -f "$ROOT/spark_apps/Dockerfile" "$ROOT"
  else
    debian
    in_layout "$postgres" || progress "building the PostgreSQL image" to_layout "$postgres" -f "$ROOT/dev/services/postgres/Dockerfile" "$ROOT"
    in_layout "$versitygw" || progress "building the S3 image" to_layout "$versitygw" -f "$ROOT/dev/services/versitygw/Dockerfile" "$(binary_context)"
    app_layer "$operator_base" "$operator" operator/Dockerfile operator
    app_layer "$spark_base" "$spark" spark_apps/Dockerfile Spark
  fi
  tags > "$LETHE_STATE/images.env.new"
  mv "$LETHE_STATE/images.env.new" "$LETHE_STATE/images.env"
}

# An existing cluster that is not kind's pulls from a registry. The others get the images loaded.
reference() { if [ -n "${REGISTRY:-}" ]; then echo "${REGISTRY%/}/${1#localhost/}"; else echo "$1"; fi; }

tags() {
  echo "export LETHE_OPERATOR_IMAGE=$(reference "$operator")"
  echo "export LETHE_SPARK_IMAGE=$(reference "$spark")"
  echo "export LETHE_POSTGRES_IMAGE=$(reference "$postgres")"
  echo "export LETHE_VERSITYGW_IMAGE=$(reference "$versitygw")"
}

to_registry() { # IMAGE LAYOUT
  local target=${REGISTRY%/}/${1#localhost/}
  if docker_answers; then
    docker tag "$1" "$target"
    docker push -q "$target"
  else
    local one
    "$ROOT/dev/tools.sh" crane
    mkdir -p "$LETHE_CACHE/tmp"
    one=$(mktemp -d "$LETHE_CACHE/tmp/image.XXXXXX")
    python3 "$ROOT/dev/no-docker/oci_copy.py" "$2" "$1" "$one/layout"
    crane push ${LETHE_REGISTRY_PLAIN_HTTP:+--insecure} "$one/layout" "$target"
    rm -rf "$one"
  fi
}

to_kind() { # CLUSTER IMAGE
  docker exec "$1-control-plane" crictl inspecti "$2" > /dev/null 2>&1 || kind load docker-image --name "$1" "$2"
}

load_one() { # IMAGE LAYOUT
  local image=$1 layout=$2 context=${CLUSTER:-}
  case $(mode) in
    node) progress "loading $image" "$ROOT/dev/no-docker/cluster.sh" load "$layout" "$image" ;;
    kind) progress "loading $image" to_kind "$CLUSTER_NAME" "$image" ;;
    existing)
      if [[ $context == kind-* && -z ${REGISTRY:-} ]]; then
        progress "loading $image" to_kind "${context#kind-}" "$image"
      else
        [ -n "${REGISTRY:-}" ] || die "CLUSTER=$context pulls its images from a registry: set REGISTRY=host/folder"
        progress "pushing $image" to_registry "$image" "$layout"
      fi
      ;;
  esac
}

has_kafka() { if docker_answers; then docker_has "$kafka"; else grep -qF "\"$kafka\"" "$LAYOUTS/spark/index.json"; fi; }

build_kafka() {
  local context=$LETHE_CACHE/kafka-context
  "$LETHE_CACHE/venv/bin/python" -m lethe.jars "$LETHE_CACHE/jars" --scope test
  rm -rf "$context"
  mkdir -p "$context"
  cp -R "$LETHE_CACHE/jars/kafka" "$context/"
  if docker_answers; then
    progress "building Kafka's image" bake "$kafka" --build-arg "SPARK=$spark" -f "$ROOT/dev/services/kafka/Containerfile" "$context"
  else
    python3 "$ROOT/dev/no-docker/app_layer.py" "$LAYOUTS/spark" "$spark" "$kafka" "$ROOT/dev/services/kafka/Containerfile" "$context"
  fi
}

# After build: the image of a Kafka broker, by its name on stdout.
kafka_image() {
  has_kafka || build_kafka >&2
  echo "$kafka"
}

# After build: the same, in the cluster, as an export on stdout.
kafka() {
  kafka_image > /dev/null
  load_one "$kafka" "$LAYOUTS/spark"
  echo "export LETHE_KAFKA_IMAGE=$(reference "$kafka")"
}

# After build: the images of the operators of other projects, in the cluster, as exports on stdout.
launchers() {
  local context=$LETHE_CACHE/launchers-context
  "$ROOT/dev/tools.sh" spark-operator kueue
  rm -rf "$context"
  mkdir -p "$context"
  cp "$LETHE_CACHE/bin/spark-operator" "$LETHE_CACHE/bin/kueue" "$ROOT/dev/launchers/spark-operator/controller" "$context/"
  if docker_answers; then
    docker_has "$spark_operator" || progress "building the Spark operator's image" bake "$spark_operator" \
      --build-arg "SPARK=$spark" -f "$ROOT/dev/launchers/spark-operator/Containerfile" "$context"
    docker_has "$kueue" || progress "building Kueue's image" bake "$kueue" -f "$ROOT/dev/launchers/kueue/Containerfile" "$context"
  else
    grep -qF "\"$spark_operator\"" "$LAYOUTS/spark/index.json" \
      || python3 "$ROOT/dev/no-docker/app_layer.py" "$LAYOUTS/spark" "$spark" "$spark_operator" "$ROOT/dev/launchers/spark-operator/Containerfile" "$context"
    in_layout "$kueue" || progress "building Kueue's image" to_layout "$kueue" -f "$ROOT/dev/launchers/kueue/Containerfile" "$context"
  fi
  load_one "$spark_operator" "$LAYOUTS/spark"
  load_one "$kueue" "$(layout_of "$kueue")"
  echo "export LETHE_SPARK_OPERATOR_IMAGE=$(reference "$spark_operator")"
  echo "export LETHE_KUEUE_IMAGE=$(reference "$kueue")"
}

# After build: the images of the version from which tests upgrade, in the cluster, as exports on stdout. Its code is on the bases of
# this checkout.
previous() {
  local commit sources=$LETHE_CACHE/previous
  commit=$(sed -n 's/^PREVIOUS = "\(.*\)"$/\1/p' "$ROOT/tests/cluster/previous.py")
  git -C "$ROOT" cat-file -e "$commit^{commit}" 2> /dev/null || return 0 # a shallow clone: the tests fail and say so
  operator=localhost/lethe-operator:$commit
  spark=localhost/lethe-spark:$commit
  rm -rf "$sources"
  mkdir -p "$sources"
  git -C "$ROOT" archive "$commit" | tar -x -C "$sources"
  if docker_answers; then
    docker_has "$operator" || progress "building the previous operator image" bake "$operator" -f "$sources/operator/Dockerfile" "$sources"
    docker_has "$spark" || progress "building the previous Spark image" bake "$spark" -f "$sources/spark_apps/Dockerfile" "$sources"
  else
    (
      cd "$sources"
      in_layout "$operator" || python3 "$ROOT/dev/no-docker/app_layer.py" "$(layout_of "$operator")" "$operator_base" "$operator" operator/Dockerfile .
      in_layout "$spark" || python3 "$ROOT/dev/no-docker/app_layer.py" "$(layout_of "$spark")" "$spark_base" "$spark" spark_apps/Dockerfile .
    )
  fi
  load_one "$operator" "$(layout_of "$operator")"
  load_one "$spark" "$(layout_of "$spark")"
  echo "export LETHE_PREVIOUS_OPERATOR_IMAGE=$(reference "$operator")"
  echo "export LETHE_PREVIOUS_SPARK_IMAGE=$(reference "$spark")"
}

# An image of a version, with labels, as an OCI archive.
release() { # operator|spark VERSION ARCHIVE
  local image=localhost/lethe-$1:$2 base=${1}_base dockerfile=operator/Dockerfile labels=() args=() label layout
  [ "$1" = operator ] || dockerfile=spark_apps/Dockerfile
  label=org.opencontainers.image
  labels=("$label.title=lethe-$1" "$label.version=$2" "$label.revision=$(git -C "$ROOT" rev-parse HEAD)" "$label.licenses=Apache-2.0"
    "$label.source=${LETHE_REPOSITORY:-https://github.com/lethe-lake/lethe}" "$label.created=$(git -C "$ROOT" log -1 --format=%cI)")
  if docker_answers; then
    for label in "${labels[@]}"; do args+=(--label "$label"); done
    progress "building the $1 image" bake "$image" "${args[@]}" -f "$ROOT/$dockerfile" "$ROOT"
    docker save -o "$3" "$image"
  else
    layout=$(layout_of "$image")
    base_layers "${!base}" "$dockerfile" "$1"
    (cd "$ROOT" && python3 dev/no-docker/app_layer.py "$layout" "${!base}" "$image" "$dockerfile" . "${labels[@]}")
    progress "writing the $1 image" python3 "$ROOT/dev/no-docker/oci_copy.py" "$layout" "$image" "$3"
  fi
}

# An archive of an OCI layout, or of Docker, which has manifest.json.
push() { # ARCHIVE REFERENCE
  local one
  "$ROOT/dev/tools.sh" crane
  if tar -tf "$1" manifest.json > /dev/null 2>&1; then
    crane push "$1" "$2"
  else
    mkdir -p "$LETHE_CACHE/tmp"
    one=$(mktemp -d "$LETHE_CACHE/tmp/image.XXXXXX")
    tar -xf "$1" -C "$one"
    crane push "$one" "$2"
    rm -rf "$one"
  fi
}

# After build, without Docker: a command in a container of an image.
run() { # operator|spark|postgres|versitygw COMMAND...
  local image=${!1} archive=$LETHE_CACHE/tmp/run.tar container
  shift
  python3 "$ROOT/dev/no-docker/oci_copy.py" "$(layout_of "$image")" "$image" "$archive"
  container=$(buildah_ from -q ${ARCH:+--arch "$ARCH"} "oci-archive:$archive")
  rm "$archive"
  buildah_ run "$container" -- "$@"
  buildah_ rm "$container" > /dev/null
}

load() {
  # The images of the last build, not those of files that changed since or of a build that runs meanwhile
  local image
  [ -e "$LETHE_STATE/images.env" ] || die "nothing is built yet: run make images"
  cp "$LETHE_STATE/images.env" "$LETHE_LOADED.new"
  # shellcheck disable=SC1090,SC1091
  source "$LETHE_LOADED.new"
  for image in "$LETHE_OPERATOR_IMAGE" "$LETHE_SPARK_IMAGE" "$LETHE_POSTGRES_IMAGE" "$LETHE_VERSITYGW_IMAGE"; do
    image=localhost/${image##*/}
    load_one "$image" "$(layout_of "$image")"
  done
  mv "$LETHE_LOADED.new" "$LETHE_LOADED"
}

case ${1:-} in
  build) locked images build ;;
  load) load ;;
  tags) tags ;;
  pause) locked images pause_image > /dev/null ;;
  kafka) locked images kafka ;;
  kafka-image) locked images kafka_image ;;
  launchers) locked images launchers ;;
  previous) locked images previous ;;
  release) locked images release "$2" "$3" "$4" ;;
  push) push "$2" "$3" ;;
  run) shift; run "$@" ;;
  *) sed -n 2,3p "$0"; exit 2 ;;
esac
