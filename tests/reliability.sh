#!/usr/bin/env bash
# Writes RELIABILITY.md anew, with the figures of a run of the fault suite.
set -euo pipefail
cd "$(dirname "$0")/.."

rows=target/tmp/reliability
# Written by tests/servers.sh.
servers=$(sed -n '/^## Tested servers$/,$p' RELIABILITY.md)
rm -rf "$rows"
tests/run.sh --test failover -- faults:: lost_replies:: clock::
{
  cat <<'HEAD'
# When Redis fails

One row a fault: what a client sees, what a request may have to wait longer, how many more than the limit may be admitted
in one window, and what was measured. Each has a test that puts load on a layer before, during and after the fault (24
users, each asking for far more than 5 requests in 2 seconds, beside hundreds of new users a second), on real
`redis-server` processes, with the default failure policy (`local`, one instance) and the default response timeout of
50 ms. A second rule, `1000000/60s`, has one log that all requests share and that is never idle. The tests check that
nothing panics or hangs, that every answer is 200 or 429, the bound, that nobody is starved, and that Redis decides again
within a second of its return. The figures are those of the 24 users.
"Admitted in the process" are those that a window in the process admitted in place of Redis.

`tests/reliability.sh` runs them and writes this file; `tests/soak.sh MINUTES` injects them at random for as long as you
like. With `closed` the client sees 503 with `Retry-After` in place of the answers from the process, with `open` all of
its requests pass.

Bounds are for one process with `local`. With several, each knows of its own admissions: until Redis has been told, each
admits its share of the quota, at least 1, beside what all have admitted before: less than twice the limit together, where
the limit is no lower than the number of instances and none is started anew meanwhile. A failover that loses what was not
replicated is such a case: each process tells the new master what it knows as its keys come again.

What was sent on a connection that is then given up may still run, after the new connection has cancelled it or written
it back. Twice counts once, for the identity is the same; but a cancelled request may be counted after all. So for the
length of one window a log may hold as many requests too many as were under way when the connection was given up, and not
one admission too many. The same holds for a reset or a lifted ban within a round trip of an admission: the reset wins.

| fault | the client sees | added latency | too many, at most | measured | test |
|---|---|---|---|---|---|
HEAD
  cat "$rows"/*
  if [ -n "$servers" ]; then printf '\n%s\n' "$servers"; fi
} > RELIABILITY.md
echo "wrote RELIABILITY.md" >&2
