#!/usr/bin/env bash
# Runs the whole test suite. Installs the programs that it needs first if they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  cat <<'HELP'
Usage: tests/run.sh [--keep-going | CARGO TEST ARGUMENTS]

Runs every test of the workspace against real redis-server processes, which the tests start
themselves on free ports. bench-peers, the comparison with other crates, is not built. If redis-server
is not on PATH, it is installed with the system's package manager. So are prometheus and chromium for the
tests of the flash sale.

  tests/run.sh                    everything
  tests/run.sh --keep-going       everything, also after a test has failed
  tests/run.sh --test laws        one of laws, store, failover, http, input, bans, project and examples: the
                                  folders beside this script
  tests/run.sh -p seckill         one crate of the workspace
HELP
  exit 0
fi

tests/install.sh redis-server
# Only the flash sale needs a browser, and Prometheus.
case " ${*:---keep-going} " in
  *' --keep-going '* | *' --workspace '* | *' seckill '*)
    tests/install.sh prometheus
    browsers=(chromium chromium-browser google-chrome-stable)
    command -v "${browsers[@]}" >/dev/null || tests/install.sh chromium ;;
esac

# Most tests wait for a server, a window or an outage rather than compute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}

all=(--workspace --exclude bench-peers --features seckill/metrics)
case "${1:-}" in
  '') exec cargo test "${all[@]}" ;;
  --keep-going) exec cargo test "${all[@]}" --no-fail-fast ;;
  *) exec cargo test "$@" ;;
esac
