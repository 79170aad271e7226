#!/usr/bin/env bash
# Build the images and tools for arm64 on a Linux machine with another processor, and start their programs: emulated.sh
#
# QEMU emulates the processor. This needs root, no Docker, and about 90 minutes on 2 cores. What is built stays in $LETHE_CACHE/arm64.
# shellcheck source=lib.sh
source "$(dirname "$0")/../lib.sh"

BINFMT=/proc/sys/fs/binfmt_misc
[ "$(id -u)" = 0 ] || die "this needs root"
! docker_answers || die "Docker runs here: docker buildx build --platform linux/arm64 does the same"
"$ROOT/dev/packages.sh" node emulator
[ -e $BINFMT/register ] || mount -t binfmt_misc binfmt_misc $BINFMT
# Debian's line has the flag F: the kernel opens QEMU now, so programs in another root folder find it.
[ -e $BINFMT/qemu-aarch64 ] || cat /usr/lib/binfmt.d/qemu-aarch64.conf > $BINFMT/register

export ARCH=arm64 LETHE_CACHE=$LETHE_CACHE/arm64 LETHE_STATE=$LETHE_STATE/arm64
mkdir -p "$LETHE_CACHE" "$LETHE_STATE"
"$ROOT/dev/images.sh" build
"$ROOT/dev/images.sh" run operator python -c 'import platform, lethe_operator, pyarrow.parquet; print(platform.machine(), "operator")'
"$ROOT/dev/images.sh" run spark python -c 'import platform, lethe_spark, pyspark; print(platform.machine(), "Spark", pyspark.__version__)'
"$ROOT/dev/images.sh" run spark java -version
"$ROOT/dev/images.sh" run versitygw /versitygw --version
"$ROOT/dev/images.sh" run postgres sh -c '/usr/lib/postgresql/*/bin/postgres --version'

# The programs of a cluster, and what its user has. Each prints its version.
GOARCH=$ARCH "$ROOT/dev/tools.sh" kubernetes coredns kubectl helm kind
bin=$LETHE_CACHE/bin
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet etcd; do
  "$bin/$name" --version
done
"$bin/kubeadm" version -o short
"$bin/coredns" -version
"$bin/kubectl" version --client
"$bin/helm" version --short
"$bin/kind" version
