#!/usr/bin/env bash
# Install the Debian packages that the given parts need and this machine lacks:
# packages.sh python|java|postgres|javascript|browser|busybox|compiler|emulator|node|lists ...
# If the commands exist, it does nothing and needs no root. `lists` only updates the lists of packages.
source "$(dirname "$0")/lib.sh"

java_major() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'; }
lacks() { ! command -v "$1" > /dev/null; }

missing=() lists=
for part; do
  case $part in
    python)
      lacks git && missing+=(git)
      # Debian puts ensurepip into python3-venv, not into python3
      python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
        || missing+=(python3 python3-venv)
      lacks apt-get || [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
      ;;
    java)
      major=$(java_major 2> /dev/null || true)
      [ "${major:-0}" -ge 17 ] || missing+=(openjdk-17-jre-headless)
      ;;
    postgres)
      # Debian does not put the server's programs on the PATH
      compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null || missing+=(postgresql)
      ;;
    javascript)
      lacks node && missing+=(nodejs)
      lacks npm && missing+=(npm)
      ;;
    browser)
      lacks chromium && lacks google-chrome && missing+=(chromium fonts-dejavu-core)
      ;;
    compiler)
      lacks cc && missing+=(gcc libc6-dev)
      ;;
    busybox)
      lacks busybox && missing+=(busybox)
      ;;
    emulator)
      lacks qemu-aarch64-static && missing+=(qemu-user-static)
      ;;
    node)
      lacks containerd && missing+=(containerd)
      lacks runc && missing+=(runc)
      [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
      lacks iptables && missing+=(iptables)
      lacks ip && missing+=(iproute2)
      lacks pgrep && missing+=(procps)
      lacks buildah && missing+=(buildah)
      lacks debootstrap && missing+=(debootstrap)
      ;;
    lists) lists=1 ;;
    *) die "unknown part $part" ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || [ -n "$lists" ] || exit 0

lacks apt-get && die "please install what Debian calls ${missing[*]} (Python 3.11 or later, Java 17 or later)"
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
# shellcheck disable=SC2317  # called through progress
install_packages() {
  ${sudo[@]+"${sudo[@]}"} apt-get -qq update
  [ ${#missing[@]} -gt 0 ] || return 0
  ${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"
}
locked packages progress "installing packages (${missing[*]:-lists})" install_packages
