#!/usr/bin/env bash
# Installs programs with the system's package manager if they are missing: redis-server, valgrind, prometheus and
# chromium. For `oha`, the load generator of the benchmarks, it takes cargo.
set -euo pipefail

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# The package of a program. Debian names them all like their programs.
package() {
  case "$1" in
    redis-server) echo redis ;;
    prometheus) if command -v dnf >/dev/null; then echo golang-github-prometheus; else echo prometheus; fi ;;
    *) echo "$1" ;;
  esac
}

# Debian starts the service of a package as it installs it, unless policy-rc.d forbids that. The tests start
# their own servers.
apt_install() {
  local policy=/usr/sbin/policy-rc.d
  as_root apt-get update -qq
  if [ ! -e "$policy" ]; then
    # Also if this is interrupted: no service of any package would start from then on.
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod +x "$policy"
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"
}

install() {
  echo "$1 is missing: installing it" >&2
  if [ "$1" = oha ]; then
    cargo install --quiet --locked oha # no distribution has it
  elif command -v apt-get >/dev/null; then
    apt_install "$1"
  elif command -v dnf >/dev/null; then
    as_root dnf install -y -q "$(package "$1")"
  elif command -v apk >/dev/null; then
    as_root apk add --quiet "$(package "$1")"
  elif command -v brew >/dev/null; then
    brew install --quiet "$(package "$1")"
  else
    echo "no package manager known here: install $1 (Redis: 6.2 or later) and put it on PATH" >&2
    exit 2
  fi
}

PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
for program in "$@"; do
  command -v "$program" >/dev/null || install "$program" >&2
  command -v "$program" >/dev/null || { echo "$program is still not on PATH" >&2; exit 2; }
done
