#!/usr/bin/env bash
# Sends three rushes to two seckill servers on one Redis, and counts whether a user got past the
# quota or the stock was oversold. See --help.
set -euo pipefail

readonly quota=5 window=10m   # longer than the script runs, so that no window slides meanwhile
readonly prefix=load connections=64

usage() {
  cat <<'HELP'
usage: examples/seckill/load.sh

Starts a Redis and two seckill servers of its own, sends them three rushes over 127.0.0.1, 34,000
requests in all, and prints one table:

  flood   one user, 20,000 requests over both servers
  crowd   a thousand users at once, and five bots that send half of the requests
  rush    thousands of users after a stock of 100

Then it counts. Exit code 0: no user got past the quota and no stock was oversold. 1: one did, or
requests were not answered; the reasons follow the table. 2: a program that it needs is missing.

Needs cargo, and redis-server and redis-cli on PATH. Installs the load generator `oha` with cargo
if it is missing. Everything started here is stopped at the end, also after a failure.
HELP
}

case "${1-}" in
  '') ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

for tool in redis-server redis-cli; do
  if ! command -v "$tool" > /dev/null; then
    echo "error: $tool is not on PATH" >&2
    echo "hint: apt install redis-server, dnf install redis, or brew install redis" >&2
    exit 2
  fi
done
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! command -v oha > /dev/null; then
  echo "installing oha, the load generator; this takes some minutes, once ..."
  cargo install oha --locked
fi

cd "$(dirname "$0")/../.."
echo "building the servers ..."
cargo build --release --quiet -p seckill
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

work=$(mktemp -d "${TMPDIR:-/tmp}/seckill.XXXXXX")
pids=()
failures=()

stop_all() {
  for pid in ${pids[@]+"${pids[@]}"}; do
    kill "$pid" 2> /dev/null || true
    wait "$pid" 2> /dev/null || true
  done
  rm -rf "$work"
}
trap stop_all EXIT
trap 'exit 130' INT TERM

# Calls a command until it succeeds, for ten seconds at the most.
wait_for() {
  local what=$1 log=$2
  shift 2
  for _ in $(seq 200); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.05
  done
  echo "error: $what was not ready within ten seconds; it says:" >&2
  cat "$log" >&2
  exit 1
}

# Another process can take a free port, but not a socket file.
redis() { redis-cli -s "$work/redis.sock" --raw "$@"; }

start_redis() {
  redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --appendonly no \
    --dir "$work" > "$work/redis.log" 2>&1 &
  pids+=($!)
  wait_for redis-server "$work/redis.log" redis ping
}

# Starts server number $1 and puts its address into `address`. All users come from one address here,
# so there is no limit for that.
start_server() {
  local out=$work/server$1.out log=$work/server$1.log
  "$target/release/seckill" --listen 127.0.0.1:0 --redis "unix://$work/redis.sock" --response-timeout 1s \
    --prefix "$prefix" --quota "$quota/$window" --ip-quota off --user-from query:user \
    --stock flood=1000 --stock crowd=10000 --stock rush=100 > "$out" 2> "$log" &
  pids+=($!)
  wait_for "server $1" "$log" grep -q '^listening on ' "$out"
  address=$(sed 's|^listening on http://||' "$out")
}

# Sends $2 requests to both servers and writes a line for each: seconds from start to end, status.
# The other arguments are for oha, and say to what URLs.
send() {
  local scenario=$1 requests=$2
  shift 2
  oha --no-tui --output-format csv -m POST -n "$requests" -c "$connections" -t 10s \
    --connect-to "$first:$first" --connect-to "$first:$second" "$@" > "$work/$scenario.csv"
  awk -F, 'NR > 1 { print $1, $1 + $5, $5, $7 }' "$work/$scenario.csv" > "$work/$scenario.answers"
}

# Prints how often status $2 was answered in scenario $1.
answers() { awk -v status="$2" '$4 == status { n++ } END { print n + 0 }' "$work/$1.answers"; }

# Prints the time in milliseconds that $2 percent of the answers of scenario $1 took at the most.
percentile() {
  sort -g -k3,3 "$work/$1.answers" | awk -v percent="$2" '
    { took[NR] = $3 }
    END { at = int(NR * percent / 100 + 0.999999); printf "%.1f ms", took[at < 1 ? 1 : at] * 1000 }'
}

# Prints how many windows scenario $1 has in Redis, the entries of the fullest, and those of all.
windows_of() {
  redis EVAL "local windows, fullest, all = redis.call('KEYS', ARGV[1]), 0, 0
    for _, window in ipairs(windows) do
      local entries = redis.call('ZCARD', window)
      fullest, all = math.max(fullest, entries), all + entries
    end
    return #windows .. ' ' .. fullest .. ' ' .. all" 0 "$prefix:{=$1-*}:user"
}

fail() { failures+=("$*"); }

# Prints the row of scenario $1 with its $2 requests and stock of $3, and holds it to the promises.
report() {
  local scenario=$1 requests=$2 stock=$3 file=$work/$1.answers
  local answered sold_answers passed strange rate statuses windows fullest entries shown sold orders
  answered=$(awk 'END { print NR }' "$file")
  sold_answers=$(answers "$scenario" 201)
  passed=$((sold_answers + $(answers "$scenario" 409) + $(answers "$scenario" 410)))
  strange=$((answered - passed - $(answers "$scenario" 429)))
  rate=$(awk 'NR == 1 || $1 < from { from = $1 } $2 > to { to = $2 }
    END { print (to > from ? NR / (to - from) : 0) }' "$file")
  statuses=$(awk '{ n[$4]++ } END { for (status in n) print status ":" n[status] }' "$file" \
    | sort | tr '\n' ' ')
  read -r windows fullest entries <<< "$(windows_of "$scenario")"
  shown=$(redis HLEN "$prefix:{$scenario}:buyers")
  orders=$(redis HLEN "$prefix:{$scenario}:orders")
  # oha can also send a single request and show the answer, so that curl is not needed.
  sold=$(oha --debug --no-tui "http://$second/seckill/$scenario" 2>&1 \
    | tr -d '\\ ' | sed -n 's/.*"sold":\([0-9]*\).*/\1/p')

  printf '%-8s %8d %10.0f %10s %10s  %-38s %8d %6s\n' "$scenario" "$answered" "$rate" \
    "$(percentile "$scenario" 50)" "$(percentile "$scenario" 99)" "$statuses" "$entries" "$sold"

  ((answered == requests)) || fail "$scenario: $((requests - answered)) of $requests requests got no answer"
  ((strange == 0)) || fail "$scenario: $strange answers are none of 201, 409, 410 and 429"
  ((fullest <= quota)) || fail "$scenario: a user got past the quota: $fullest admissions, $quota allowed"
  ((entries <= windows * quota)) || fail "$scenario: $entries requests of $windows user(s) got past the quota of $quota"
  # Orders of a SKU that is sold out are refused in front of the limit, and leave no admission.
  ((entries == passed || (orders == stock && entries >= sold_answers && entries < passed))) \
    || fail "$scenario: the windows hold $entries admissions, but $passed requests were let through"
  ((orders <= stock)) || fail "$scenario: oversold: $orders orders for a stock of $stock"
  [[ $sold == "$orders" && $shown == "$orders" && $sold_answers == "$orders" ]] \
    || fail "$scenario: sold are $sold by the shop, $orders by its orders, $shown by its buyers, $sold_answers by the answers"
}

started=$SECONDS
echo "starting redis-server and two servers ..."
start_redis
start_server 1; first=$address
start_server 2; second=$address

url="http://$first/seckill"
for user in $(seq 1000); do echo "$url/crowd/orders?user=crowd-$user"; done > "$work/crowd.urls"
for line in $(seq 1000); do echo "$url/crowd/orders?user=crowd-bot-$((line % 5))"; done >> "$work/crowd.urls"

echo "sending 34,000 requests over $connections connections ..."
send flood 20000 "$url/flood/orders?user=flood-alice"
send crowd 4000 --urls-from-file "$work/crowd.urls"
send rush 10000 --rand-regex-url "http://${first//./[.]}/seckill/rush/orders[?]user=rush-[0-9]{4}"

echo
printf '%-8s %8s %10s %10s %10s  %-38s %8s %6s\n' \
  scenario requests requests/s p50 p99 statuses admitted sold
report flood 20000 1000
report crowd 4000 10000
report rush 10000 100
echo

(($(redis ZCARD "$prefix:{=flood-alice}:user") == quota)) \
  || fail "flood: one user sent 20,000 requests, and not exactly $quota were admitted"
(($(redis HLEN "$prefix:{rush}:orders") == 100)) || fail "rush: not all of the stock was sold"
((SECONDS - started < 600)) || fail "the script ran longer than the window, so it can't tell"

if ((${#failures[@]} > 0)); then
  printf 'FAILED  %s\n' "${failures[@]}" >&2
  exit 1
fi
echo "ok: no user got past the quota of $quota, and no stock was oversold"
