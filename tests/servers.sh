#!/usr/bin/env bash
# Runs the test suite on several servers, and puts the table of them into RELIABILITY.md.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/servers.sh DIR... [-- CARGO TEST ARGUMENTS]

Runs the test suite on the redis-server on PATH, and once more for each DIR, a directory that holds
a redis-server of another version. Prints a table of the servers, their versions and the tests that
passed and failed on each. Exit code 0: all tests passed on all servers. 1: some failed, or did not
run; their names are printed, and the whole output is in target/tmp/servers/. 2: a wrong argument.

  tests/servers.sh ~/redis-6.2 ~/valkey-9.1                   everything; takes minutes a server
  tests/servers.sh ~/redis-6.2 ~/valkey-9.1 -- --test laws    one test binary

Without arguments after `--`, the table also replaces the section "Tested servers" of
RELIABILITY.md, which tests/reliability.sh keeps, unless a run did not end.
HELP
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  '' | --) usage >&2; exit 2 ;;
esac

directories=('')   # The first is the server that PATH has already.
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; break; fi
  if [ ! -x "$1/redis-server" ]; then
    echo "error: there is no redis-server in '$1'" >&2
    exit 2
  fi
  directories+=("$(cd "$1" && pwd)")
  shift
done

cd "$(dirname "$0")/.."
logs=target/tmp/servers
rm -rf "$logs"
mkdir -p "$logs"

# Prints the name and the version of a redis-server: `Redis 7.0.15`, `Valkey 9.1.2`.
name_of() { "$1" --version | sed -n 's/^\([A-Za-z]*\) server v=\([^ ]*\).*/\1 \2/p'; }

# Prints the sum of a count, `passed` or `failed`, over the test binaries in the output $1.
total() {
  sed -n "s/^test result:.* \([0-9]*\) $2;.*/\1/p" "$1" | awk '{ sum += $1 } END { print sum + 0 }'
}

rows=() all_passed=true is_whole=true number=0
for directory in "${directories[@]}"; do
  number=$((number + 1))
  path=${directory:+$directory:}$PATH
  server=$(PATH=$path command -v redis-server) || {
    echo "error: redis-server is not on PATH" >&2
    echo "hint: tests/run.sh installs it" >&2
    exit 2
  }
  name=$(name_of "$server")
  if [ -z "$name" ]; then
    echo "error: '$server --version' does not say what server it is" >&2
    exit 2
  fi
  label="$name ($number of ${#directories[@]})" log=$logs/$number.log
  echo "$label: running the tests ..." >&2
  if [ $# -gt 0 ]; then run=(tests/run.sh --no-fail-fast "$@"); else run=(tests/run.sh --keep-going); fi
  ended=true
  PATH=$path "${run[@]}" >"$log" 2>&1 || ended=false
  passed=$(total "$log" passed) failed=$(total "$log" failed)
  echo "$label: $passed passed, $failed failed" >&2
  if [ "$ended" = false ] || [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then
    all_passed=false
    # One that was cut off has no result.
    cut_off=$(awk '/^ +(Running|Doc-tests) /{cut+=open; open=1} /^test result:/{open=0} END{print cut+open}' "$log")
    [ "$passed" -gt 0 ] && [ "$cut_off" -eq 0 ] || is_whole=false
    sed -n 's/^test \(.*\) \.\.\. FAILED$/  failed: \1/p; s/^error/  error/p' "$log" >&2
    echo "  the output is in $log" >&2
  fi
  rows+=("| ${name% *} | ${name#* } | $passed | $failed |")
done

table() {
  printf '%s\n' '| server | version | tests passed | failed |' '|---|---|---:|---:|' "${rows[@]}"
}
table

if [ $# -eq 0 ] && [ "$is_whole" = false ]; then
  echo "RELIABILITY.md stays as it was: a run did not end" >&2
elif [ $# -eq 0 ]; then
  other=$(sed '/^## Tested servers$/,$d' RELIABILITY.md)
  {
    printf '%s\n' "$other"
    cat <<'HEAD'

## Tested servers

The whole test suite ran on each of these servers, with `tests/servers.sh DIR...`.

HEAD
    table
  } > RELIABILITY.md
  echo "wrote the section \"Tested servers\" of RELIABILITY.md" >&2
fi
[ "$all_passed" = true ]
