#!/usr/bin/env bash
# Writes the figures of a run of the fault suite into the rows of RELIABILITY.md.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
  cat <<'HELP'
Usage: tests/reliability.sh

Runs the fault suite, and replaces the bounds and figures in the table of RELIABILITY.md by those of this run. A new
fault first gets a row there.
HELP
  case "$1" in -h | --help) exit 0 ;; *) exit 2 ;; esac
fi

figures=${CARGO_TARGET_DIR:-target}/tmp/reliability
rm -rf "$figures"
tests/run.sh --test failover -- faults:: lateness:: lost_replies:: clock::
for test in $(ls "$figures"); do
  grep -q "\`$test\` |$" RELIABILITY.md || { echo "$test has no row" >&2; exit 1; }
done
# First all of it: without its figures nothing is overwritten. Of a row the last cell names the test, and the two before it
# are its bound and what was measured.
text=$(awk -v figures="$figures" -F ' [|] ' '
  /^## Tested servers$/ { is_below = 1 }
  !is_below && /^[|].*` [|]$/ {
    test = $NF
    gsub(/[^a-z_]/, "", test)
    if ((getline measured < (figures "/" test)) <= 0) {
      print "there are no figures of " test > "/dev/stderr"
      exit 1
    }
    $0 = $1 " | " $2 " | " $3 " | " measured " | " $NF
  }
  { print }
' RELIABILITY.md)
printf '%s\n' "$text" > RELIABILITY.md
echo "wrote RELIABILITY.md" >&2
