#!/usr/bin/env bash
# Build the images for arm64 on a Linux machine with another processor, and start their programs: emulated.sh
#
# QEMU emulates the processor. This needs root, no Docker, and about an hour on 2 cores. The images stay in $LETHE_CACHE/arm64.
source "$(dirname "$0")/lib.sh"

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
