#!/usr/bin/env bash
# Load for a long time, with faults injected at random.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 1 ] || [ "$1" = "-h" ] || [ "$1" = "--help" ]; then
  cat <<'HELP'
Usage: tests/soak.sh MINUTES [SEED]

Sends requests to a layer on a real Redis for that long, while one fault after the other strikes:
kills, stalls, delays, lost replies, OOM, READONLY and others. All requests share one log, which is
busy all the time. Checks that no user is admitted above the limit, that no answer is an error, that
Redis decides again within a second of its return, that memory and file descriptors do not grow.
Prints the seed; the same seed gives the same faults in the same order.
HELP
  [ $# -ge 1 ] && exit 0 || exit 2
fi

[[ $1 =~ ^[1-9][0-9]*$ ]] || { echo "MINUTES is a whole number from 1, not '$1'" >&2; exit 2; }
export SOAK_MINUTES=$1
if [ $# -ge 2 ]; then export SOAK_SEED=$2; fi
exec tests/run.sh --release --test failover -- --ignored --nocapture faults_at_random
