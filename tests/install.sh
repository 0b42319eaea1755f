#!/usr/bin/env bash
# Installs programs with the system's package manager if they are missing: redis-server, valgrind.
set -euo pipefail

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# The package of a program. Its name differs for Redis only.
package() { if [ "$1" = redis-server ]; then echo redis; else echo "$1"; fi; }

install() {
  echo "$1 is missing: installing it" >&2
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"
  elif command -v dnf >/dev/null; then
    as_root dnf install -y -q "$(package "$1")"
  elif command -v apk >/dev/null; then
    as_root apk add --quiet "$(package "$1")"
  elif command -v brew >/dev/null; then
    brew install --quiet "$(package "$1")"
  else
    echo "no package manager known here: install $1 (Redis 6.2 or later) and put it on PATH" >&2
    exit 2
  fi
}

for program in "$@"; do
  command -v "$program" >/dev/null || install "$program" >&2
  command -v "$program" >/dev/null || { echo "$program is still not on PATH" >&2; exit 2; }
done
