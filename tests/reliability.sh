#!/usr/bin/env bash
# Writes the rows of RELIABILITY.md anew, with the figures of a run of the fault suite.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
  cat <<'HELP'
Usage: tests/reliability.sh

Runs the fault suite, and replaces the rows of the table in RELIABILITY.md by those of this run.
HELP
  case "$1" in -h | --help) exit 0 ;; *) exit 2 ;; esac
fi

rows=${CARGO_TARGET_DIR:-target}/tmp/reliability
# What stands above the rows of the first table, and below them, stays.
above=$(sed '/^|---|/q' RELIABILITY.md)
servers=$(sed -n '/^## Tested servers$/,$p' RELIABILITY.md)
rm -rf "$rows"
tests/run.sh --test failover -- faults:: lateness:: lost_replies:: clock::
# First all of it: without rows nothing is overwritten.
text=$(cat "$rows"/*)
printf '%s\n' "$above" "$text" '' "$servers" > RELIABILITY.md
echo "wrote RELIABILITY.md" >&2
