#!/usr/bin/env bash
# Sends three rushes to seckill servers, and counts whether a user got past the quota or the stock
# was oversold. See --help.
set -euo pipefail

readonly quota=5 connections=64

usage() {
  cat <<'HELP'
usage: examples/seckill/load.sh [--redis | --memory] [--scale N]

Starts a Redis and two seckill servers of its own, sends them three rushes over 127.0.0.1, 34,000
requests in all, and prints one table:

  flood   one user, 20,000 requests over both servers
  crowd   a thousand users at once, and five bots that send half of the requests
  rush    thousands of users after a stock of 100

Then it counts. Exit code 0: no user got past the quota and no stock was oversold. 1: one did, or
requests were not answered; the reasons follow the table. 2: a program that it needs is missing.

  --redis    fails with 2 if redis-server is missing; without it, --memory is used then
  --memory   needs no Redis: one server that keeps everything itself
  --scale N  sends N times as many requests; 1 if left out

Needs cargo, and for Redis redis-server and redis-cli on PATH. Installs the load generator `oha`
with cargo if it is missing. Everything started here is stopped at the end, also after a failure.
HELP
}

store='' scale=1
while (($# > 0)); do
  case "$1" in
    --redis | --memory) store=${1#--} ;;
    --scale) scale=${2-0}; shift $(($# > 1)) ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $scale =~ ^([1-9][0-9]?|100)$ ]] || { echo "error: --scale takes a number from 1 to 100" >&2; exit 2; }

if ! command -v redis-server redis-cli > /dev/null && [[ $store != memory ]]; then
  echo "redis-server is not on PATH: apt install redis-server, dnf install redis, or brew install redis" >&2
  [[ $store != redis ]] || exit 2
  echo "one server that keeps everything itself is tested" >&2
  store=memory
fi
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
command -v oha > /dev/null || { echo "installing oha, the load generator, once ..." >&2; cargo install oha --locked; }
cd "$(dirname "$0")/../.."
cargo build --release -p seckill
seckill=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/seckill

work=$(mktemp -d "${TMPDIR:-/tmp}/seckill.XXXXXX")
pids=() failures=()
trap 'kill "${pids[@]}" 2> /dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

redis() { redis-cli -s "$work/redis.sock" --raw "$@"; }
wait_for() { for _ in $(seq 200); do "$@" > /dev/null 2>&1 && return; sleep 0.05; done; cat "$work"/*.log >&2; exit 1; }

# Starts server number $1 and sets `address`; the other arguments are flags. All users come from one address here,
# so there is no limit for that. No window slides while the script runs.
start_server() {
  local out=$work/server$1.out
  "$seckill" --listen 127.0.0.1:0 "${@:2}" --quota "$quota/$((10 * scale))m" --ip-quota off --pay-within off --user-query user \
    --stock flood=1000 --stock crowd=10000 --stock rush=100 > "$out" 2> "$work/server$1.log" &
  pids+=($!)
  wait_for grep -q '^listening on ' "$out"
  address=$(sed 's|^listening on http://||' "$out")
}

if [[ $store == memory ]]; then
  start_server 1; first=$address second=$address
else
  redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --dir "$work" > "$work/redis.log" 2>&1 &
  pids+=($!)
  wait_for redis ping
  start_server 1 --redis "unix://$work/redis.sock"; first=$address
  start_server 2 --redis "unix://$work/redis.sock"; second=$address
fi

# Sends $2 requests of rush $1, and prints its row. At most $3 pieces may be sold, and $4 requests be admitted. The
# other arguments are for oha, and say to what URLs.
rush() {
  local name=$1 requests=$(($2 * scale)) stock=$3 most=$4 file=$work/$1.csv sold again gone denied rest row orders buyers fullest
  oha --no-tui --output-format csv --output "$file" -m POST -n "$requests" -c "$connections" -t 10s \
    --connect-to "$first:$first" --connect-to "$first:$second" "${@:5}"
  row=$(tail -n +2 "$file" | sort -t, -g -k5,5 | awk -F, '
    { took[NR] = $5; n[$7]++; if ($1 + $5 > end) end = $1 + $5 }
    END { printf "%d %d %d %d %d %.0f %.1f %.1f", NR, n[201], n[409], n[410], n[429], NR / end,
      took[int(NR / 2) + 1] * 1000, took[int(NR * 0.99) + 1] * 1000 }')
  read -r rest sold again gone denied rate p50 p99 <<< "$row"
  printf '%-8s %8d %10s %7s ms %7s ms %8d %8d %8d %8d\n' "$name" "$rest" "$rate" "$p50" "$p99" "$sold" "$again" "$gone" "$denied"
  ((rest == requests)) || failures+=("$name: $((requests - rest)) of $requests requests got no answer")
  ((sold + again + gone + denied == rest)) || failures+=("$name: answers are none of 201, 409, 410 and 429")
  ((sold <= stock)) || failures+=("$name: oversold: $sold orders for a stock of $stock")
  ((sold + again <= most)) || failures+=("$name: $((sold + again)) requests got past the quota, $most allowed")
  [[ $store != memory ]] || return 0
  orders=$(redis HLEN "seckill:{$name}:orders") buyers=$(redis HLEN "seckill:{$name}:buyers")
  [[ $sold == "$orders" && $sold == "$buyers" ]] || failures+=("$name: Redis has $orders orders of $buyers buyers")
  fullest=$(redis EVAL "local most = 0
    for _, log in ipairs(redis.call('KEYS', ARGV[1])) do most = math.max(most, redis.call('ZCARD', log)) end
    return most" 0 "seckill:{=$name-*}:user:[0-9]*")
  ((fullest <= quota)) || failures+=("$name: a user got past the quota: $fullest admissions, $quota allowed")
}

url="http://$first/seckill"
for n in $(seq 1000); do
  echo "$url/crowd/orders?user=crowd-$n"
  echo "$url/crowd/orders?user=crowd-bot-$((n % 5))"
done > "$work/crowd.urls"
printf '%-8s %8s %10s %10s %10s %8s %8s %8s %8s\n' rush requests requests/s p50 p99 201 409 410 429
rush flood 20000 1000 $quota "$url/flood/orders?user=flood-alice"
rush crowd 4000 10000 $((1005 * quota)) --urls-from-file "$work/crowd.urls"
rush rush 10000 100 $((10000 * quota)) --rand-regex-url "http://${first//./[.]}/seckill/rush/orders[?]user=rush-[0-9]{4}"
((${#failures[@]} == 0)) || { printf 'FAILED  %s\n' "${failures[@]}" >&2; exit 1; }
echo "ok: no user got past the quota of $quota, and no stock was oversold"
