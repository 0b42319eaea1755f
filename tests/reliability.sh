#!/usr/bin/env bash
# Writes RELIABILITY.md anew, with the figures of a run of the fault suite.
set -euo pipefail
cd "$(dirname "$0")/.."

rows=target/tmp/reliability
# Written by tests/servers.sh.
servers=$(sed -n '/^## Tested servers$/,$p' RELIABILITY.md)
rm -rf "$rows"
tests/run.sh --test failover -- faults:: lateness:: lost_replies:: clock::
{
  cat <<'HEAD'
# When Redis fails

One row for each fault: what a client sees, how much longer a request may take, how many requests above the limit may be
admitted in one window, and what was measured. Each fault has a test on real `redis-server` processes. It puts load on a
layer before, during and after the fault: 24 users that each send far more than 5 requests in 2 seconds, and hundreds of
new users a second. A second rule, `1000000/60s`, has one log that all requests share and that is always in use. The
failure policy is the default (`local`, one instance), and so is the response timeout of 500 ms. Each test checks that
nothing panics or hangs, that every response is 200 or 429, that the bound holds, that every user is served, and that Redis
decides again within a second of its return. The figures are those of the 24 users. "Admitted in the process" counts the
admissions that the process decided in place of Redis.

`tests/reliability.sh` runs the tests and writes this file. `tests/soak.sh MINUTES` injects the faults at random for as long
as you like. With `closed`, the client sees 503 with `Retry-After` where the process would decide. With `open`, all its
requests are admitted there.

The bounds are for one process with `local`. With several processes, each knows only its own admissions until the
write-back. Until then, each admits its share of the quota, at least 1, in addition to what all have admitted before. With
`local`, the share is the whole quota: N servers admit up to N times the limit. With `local:N` it is together less than
twice the limit, if the limit is at least the number of instances and no instance restarts. The
same holds for a failover that loses data which was not yet replicated: each process writes back to the new master what it
knows of a key when the key is used again.

A command on a connection that the client gives up may still run later, after the request was cancelled or written back on
the new connection. A repeated admission counts once, because it has the same UUID. But a cancelled request may count after
all. So for the length of one window a log may hold as many requests too many as were under way when the client gave up the
connection. It never admits one too many. But a settlement of a budget that runs late takes the place of a later one, and the
budget then has so much too much or too little. A cancellation that a failover loses is not made again: the request counts
until it has left the window. The same holds for a reset or a lifted ban within a round trip of an admission:
the reset wins.

| fault | the client sees | added latency | too many, at most | measured | test |
|---|---|---|---|---|---|
HEAD
  cat "$rows"/*
  if [ -n "$servers" ]; then printf '\n%s\n' "$servers"; fi
} > RELIABILITY.md
echo "wrote RELIABILITY.md" >&2
