#!/usr/bin/env bash
# Sends three rushes to seckill servers, and counts whether a user got past the quota or the stock
# was oversold. See --help.
set -euo pipefail

readonly quota=5 prefix=load connections=64
readonly slice=20000   # requests of one run of the load generator, between which the progress changes

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
  --memory   needs no Redis: one server that keeps everything itself. The requests admitted are
             then known from its responses alone
  --scale N  sends N times as many requests; 1 if left out

Needs cargo, and for Redis redis-server and redis-cli on PATH. Installs the load generator `oha`
with cargo if it is missing. PROGRAMS=DIRECTORY has it use `seckill` from there in place of building
it. Everything started here is stopped at the end, also after a failure.
HELP
}

store='' scale=1
while (($# > 0)); do
  case "$1" in
    --redis | --memory) store=${1#--} ;;
    --scale)
      [[ -n ${2-} ]] || { usage >&2; exit 2; }
      scale=$2
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $scale =~ ^([1-9][0-9]?|100)$ ]] || { echo "error: --scale takes a number from 1 to 100" >&2; exit 2; }
readonly minutes=$((10 * scale))   # longer than the script runs, so that no window slides meanwhile
readonly flood=$((20000 * scale)) crowd=$((4000 * scale)) rush=$((10000 * scale)) total=$((34000 * scale))

missing=''
for tool in redis-cli redis-server; do command -v "$tool" > /dev/null || missing=$tool; done
if [[ -n $missing && $store != memory ]]; then
  if [[ $store == redis ]]; then
    echo "error: $missing is not on PATH" >&2
  else
    echo "$missing is not on PATH: one server that keeps everything itself is tested" >&2
  fi
  echo "hint: apt install redis-server, dnf install redis, or brew install redis" >&2
  [[ $store != redis ]] || exit 2
  store=memory
fi
store=${store:-redis}
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

work=$(mktemp -d "${TMPDIR:-/tmp}/seckill.XXXXXX")
pids=()
failures=()
sent=0   # requests of the whole run until now

stop_all() {
  for pid in ${pids[@]+"${pids[@]}"}; do
    kill "$pid" 2> /dev/null || true
    wait "$pid" 2> /dev/null || true
  done
  rm -rf "$work"
}
trap stop_all EXIT
trap 'exit 130' INT TERM

# Runs a command, and meanwhile shows $1 and for how long it has been running: on a terminal in one
# line that changes, and else in a line every five seconds. Its output is shown if it fails.
during() {
  local what=$1 began=$SECONDS line=0 pid status=0
  shift
  "$@" > "$work/output" 2>&1 &
  pid=$!
  pids+=("$pid")
  while kill -0 "$pid" 2> /dev/null; do
    if [[ -t 2 ]]; then
      printf '\r\033[K%s ... %d s' "$what" $((SECONDS - began)) >&2
    elif ((SECONDS - began >= line)); then
      echo "$what ... $((SECONDS - began)) s" >&2
      line=$((line + 5))
    fi
    sleep 0.1
  done
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
  wait "$pid" || status=$?
  ((status == 0)) || { cat "$work/output" >&2; echo "error: $what: exit code $status" >&2; exit 1; }
}

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

# Starts server number $1 and puts its address into `address`; the other arguments are flags. All
# users come from one address here, so there is no limit for that.
start_server() {
  local out=$work/server$1.out log=$work/server$1.log name="server $1"
  shift
  "$programs/seckill" --listen 127.0.0.1:0 "$@" --quota "$quota/${minutes}m" --ip-quota off \
    --user-from query:user --stock flood=1000 --stock crowd=10000 --stock rush=100 > "$out" 2> "$log" &
  pids+=($!)
  wait_for "$name" "$log" grep -q '^listening on ' "$out"
  address=$(sed 's|^listening on http://||' "$out")
}

# Sends $2 requests to the servers and writes a line for each: seconds from start to end, status.
# The other arguments are for oha, and say to what URLs.
send() {
  local scenario=$1 left=$2 part size file
  shift 2
  for ((part = 1000; left > 0; part++)); do
    size=$((left < slice ? left : slice)) file=$work/$scenario-$part.csv
    during "$scenario: sending $size requests, after $sent of $total ($((100 * sent / total)) %)" \
      oha --no-tui --output-format csv --output "$file" -m POST -n "$size" -c "$connections" -t 10s \
      --connect-to "$first:$first" --connect-to "$first:$second" "$@"
    ((left -= size, sent += size)) || true
  done
  awk -F, 'FNR == 1 { offset = last; next }
    { end = offset + $1 + $5; if (end > last) last = end; print offset + $1, end, $5, $7 }' \
    "$work/$scenario"-*.csv > "$work/$scenario.answers"
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
    return #windows .. ' ' .. fullest .. ' ' .. all" 0 "$prefix:{=$1-*}:user:[0-9]*"
}

fail() { failures+=("$*"); }

# Holds the windows and orders of scenario $1 in Redis to what was answered. Sets `admitted`.
check_redis() {
  local scenario=$1 stock=$2 passed=$3 sold=$4 windows fullest shown orders
  read -r windows fullest admitted <<< "$(windows_of "$scenario")"
  shown=$(redis HLEN "$prefix:{$scenario}:buyers")
  orders=$(redis HLEN "$prefix:{$scenario}:orders")
  ((fullest <= quota)) || fail "$scenario: a user got past the quota: $fullest admissions, $quota allowed"
  ((admitted <= windows * quota)) \
    || fail "$scenario: $admitted requests of $windows user(s) got past the quota of $quota"
  # Orders of a SKU that is sold out are refused in front of the limit, and leave no admission.
  ((admitted == passed || (orders == stock && admitted >= sold && admitted < passed))) \
    || fail "$scenario: the windows hold $admitted admissions, but $passed requests were let through"
  [[ $shown == "$orders" && $sold == "$orders" ]] \
    || fail "$scenario: sold are $orders by its orders, $shown by its buyers, $sold by the answers"
}

# Prints the row of scenario $1 with its $2 requests, stock of $3 and at most $4 users, and holds it
# to the promises.
report() {
  local scenario=$1 requests=$2 stock=$3 users=$4 file=$work/$1.answers
  local responses sold_answers admitted passed strange rate statuses sold
  responses=$(awk 'END { print NR }' "$file")
  sold_answers=$(answers "$scenario" 201)
  # Without Redis only the answers tell what was admitted, and those to orders after the sale do not.
  admitted=$((sold_answers + $(answers "$scenario" 409)))
  passed=$((admitted + $(answers "$scenario" 410)))
  strange=$((responses - passed - $(answers "$scenario" 429)))
  rate=$(awk 'NR == 1 || $1 < from { from = $1 } $2 > to { to = $2 }
    END { print (to > from ? NR / (to - from) : 0) }' "$file")
  statuses=$(awk '{ n[$4]++ } END { for (status in n) print status ":" n[status] }' "$file" \
    | sort | tr '\n' ' ')
  # oha can also send a single request and show the answer, so that curl is not needed.
  sold=$(oha --debug --no-tui "http://$second/seckill/$scenario" 2>&1 \
    | tr -d '\\ ' | sed -n 's/.*"sold":\([0-9]*\).*/\1/p')
  ((admitted <= users * quota)) \
    || fail "$scenario: $admitted requests of $users user(s) got past the quota of $quota"
  [[ $store == memory ]] || check_redis "$scenario" "$stock" "$passed" "$sold_answers"

  printf '%-8s %8d %10.0f %10s %10s  %-38s %8d %6s\n' "$scenario" "$responses" "$rate" \
    "$(percentile "$scenario" 50)" "$(percentile "$scenario" 99)" "$statuses" "$admitted" "$sold"

  ((responses == requests)) || fail "$scenario: $((requests - responses)) of $requests requests got no answer"
  ((strange == 0)) || fail "$scenario: $strange answers are none of 201, 409, 410 and 429"
  ((sold_answers <= stock)) || fail "$scenario: oversold: $sold_answers orders for a stock of $stock"
  [[ $sold == "$sold_answers" ]] \
    || fail "$scenario: sold are ${sold:-unknown} by the shop, $sold_answers by the answers"
}

if ! command -v oha > /dev/null; then
  during "installing oha, the load generator, which takes some minutes, once" cargo install oha --locked
fi
cd "$(dirname "$0")/../.."
programs=${PROGRAMS-}
if [[ -z $programs ]]; then
  during "building the servers" cargo build --release -p seckill
  target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
  programs=$target/release
fi

started=$SECONDS
if [[ $store == memory ]]; then
  echo "starting a server without Redis ..."
  start_server 1; first=$address second=$address
else
  echo "starting redis-server and two servers ..."
  start_redis
  redis_flags=(--redis "unix://$work/redis.sock" --prefix "$prefix")
  start_server 1 "${redis_flags[@]}"; first=$address
  start_server 2 "${redis_flags[@]}"; second=$address
fi

url="http://$first/seckill"
for user in $(seq 1000); do echo "$url/crowd/orders?user=crowd-$user"; done > "$work/crowd.urls"
for line in $(seq 1000); do echo "$url/crowd/orders?user=crowd-bot-$((line % 5))"; done >> "$work/crowd.urls"

echo "sending $total requests over $connections connections ..."
send flood "$flood" "$url/flood/orders?user=flood-alice"
send crowd "$crowd" --urls-from-file "$work/crowd.urls"
send rush "$rush" --rand-regex-url "http://${first//./[.]}/seckill/rush/orders[?]user=rush-[0-9]{4}"

echo
printf '%-8s %8s %10s %10s %10s  %-38s %8s %6s\n' \
  scenario requests requests/s p50 p99 statuses admitted sold
report flood "$flood" 1000 1
report crowd "$crowd" 10000 1005
report rush "$rush" 100 10000

(($(answers flood 201) + $(answers flood 409) == quota)) \
  || fail "flood: one user sent $flood requests, and not exactly $quota were admitted"
(($(answers rush 201) == 100)) || fail "rush: not all of the stock was sold"
((SECONDS - started < minutes * 60)) || fail "the script ran longer than the window, so it can't tell"

if ((${#failures[@]} > 0)); then
  printf 'FAILED  %s\n' "${failures[@]}" >&2
  exit 1
fi
echo "ok: no user got past the quota of $quota, and no stock was oversold"
