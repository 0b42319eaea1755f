//! What happens to requests when one Redis server fails: one test a fault, under load before,
//! during and after it.

use rlimit::{Resource, setrlimit};
use test_support::fault::Fault;

use crate::*;

/// Has a fault strike that one command begins and another ends.
async fn commands(fault: Fault, begin: &[&str], end: &[&str]) {
    let redis = Redis::start().await;
    let begin = async || redis.run::<()>(begin).await;
    fault.strikes(store(redis.url()).await, begin, async || redis.run::<()>(end).await).await;
}

/// A connection that a test has before the fault, and that the fault spares.
async fn admin(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn run(admin: &mut redis::aio::MultiplexedConnection, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec_async(admin).await.unwrap();
}

const REFUSED_ONCE: &str = "one round trip for a key that Redis refuses for the first time";
const KILL_CLIENTS: &[&str] = &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_empty() {
    let redis = tokio::sync::Mutex::new(Redis::start().await);
    let store = store(redis.lock().await.url()).await;
    let fault = fault!(1, "`kill -9`, and a restart with an empty memory");
    let kill = async || redis.lock().await.kill();
    fault.strikes(store, kill, async || redis.lock().await.restart().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stands_still_for_a_while() {
    let redis = Redis::start().await;
    let fault = fault!(3, "SIGSTOP, and SIGCONT later").adds(TIMEOUT_ONCE);
    let stop = async || redis.signal("STOP");
    fault.strikes(store(redis.url()).await, stop, async || redis.signal("CONT")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_are_flushed() {
    let redis = Redis::start().await;
    let fault = Fault {
        client_sees: "no difference: the next call loads the script",
        added_latency: "one round trip, once for each script",
        decided_here: false,
        ..fault!(4, "SCRIPT FLUSH")
    };
    let flush = async || {
        for _ in 0..20 {
            redis.run::<()>(&["SCRIPT", "FLUSH", "SYNC"]).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    fault.strikes(store(redis.url()).await, flush, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_flushed() {
    let fault = Fault {
        client_sees: "new logs, as after a reset of every key",
        added_latency: "none",
        over_admission: LIMIT as usize,
        decided_here: false,
        ..fault!(5, "FLUSHALL")
    };
    commands(fault, &["FLUSHALL"], &["PING"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_script_keeps_redis_busy() {
    let redis = Redis::start_with(&["--lua-time-limit", "20"]).await;
    let fault = fault!(6, "an endless script (BUSY), and SCRIPT KILL").adds(TIMEOUT_ONCE);
    let busy = async || drop(redis.keep_busy().await);
    let kill = async || redis.run::<()>(&["SCRIPT", "KILL"]).await;
    fault.strikes(store(redis.url()).await, busy, kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_killed_again_and_again() {
    let redis = Redis::start().await;
    let fault = Fault {
        client_sees: "no difference: requests under way are repeated with their UUIDs",
        added_latency: "a new connection and one round trip",
        decided_here: false,
        ..fault!(7, "CLIENT KILL of all connections, 50 times")
    };
    let kill = async || {
        for _ in 0..50 {
            redis.run::<()>(KILL_CLIENTS).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    fault.strikes(store(redis.url()).await, kill, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_passes_nothing_on() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let fault =
        fault!(10, "a network that keeps connections and drops all data").adds(TIMEOUT_ONCE);
    let set = async |what| proxy.set(what);
    let (begin, end) = (set(proxy::Fault::Stall), set(proxy::Fault::None));
    fault.strikes(store(proxy.url()).await, async || begin.await, async || end.await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_has_no_memory_left() {
    let redis = Redis::start().await;
    let fault = fault!(11, "OOM under `noeviction`")
        .sees("no difference: the process decides for new keys, budgets and logs of more than 256 entries, Redis for the others")
        .adds(REFUSED_ONCE);
    let store = store(redis.url()).await;
    // Windows that Redis has already still have room made in them: only new keys are refused.
    redis.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let free = async || redis.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    // One rule alone: of several, Redis admits also above its memory. Their script begins with a
    // command that frees memory, and a script that has written may go on.
    fault.ends([Load::through(by_user(user_policy(), store))], Instant::now(), free).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_key_has_another_type() {
    let fault = fault!(12, "WRONGTYPE on one user's log")
        .sees("no difference: the process decides for that user, Redis for all others")
        .adds("one round trip for that user");
    let log = "tsw:{=user-7}:user:2s";
    commands(fault, &["SET", log, "x", "PX", "600000"], &["DEL", log]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_may_no_longer_call_scripts() {
    let fault = fault!(13, "NOPERM: the Redis user may no longer call scripts").adds(REFUSED_ONCE);
    let user = ["ACL", "SETUSER", "default"];
    let (forbid, allow) =
        ([&user[..], &["-eval", "-evalsha"]].concat(), [&user[..], &["+@all"]].concat());
    commands(fault, &forbid, &allow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_suddenly_wants_a_password() {
    let redis = Redis::start().await;
    let fault = fault!(14, "NOAUTH: Redis demands a password that the client does not have");
    let mut admin = admin(&redis.url()).await;
    let mut again = admin.clone();
    let lock = async || {
        run(&mut admin, &["CONFIG", "SET", "requirepass", "secret"]).await;
        run(&mut admin, KILL_CLIENTS).await;
    };
    let unlock = async || run(&mut again, &["CONFIG", "SET", "requirepass", ""]).await;
    fault.strikes(store(redis.url()).await, lock, unlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_still_loading_its_data() {
    // Loading is slowed down to 6 ms a key: with those of the crowd there are hundreds. Clients are
    // answered after every two megabytes, which Redis 6.2 has no setting for, so that is what a key holds.
    let slow = ["--key-load-delay", "6000", "--rdbcompression", "no"];
    let redis = tokio::sync::Mutex::new(Redis::start_with(&slow).await);
    let store = store(redis.lock().await.url()).await;
    let fault = fault!(15, "LOADING: a restart with much data to load");
    let restart = async || {
        let mut redis = redis.lock().await;
        let fill = "local value = string.rep('x', 2 * 1024 * 1024)
            for i = 1, 50 do redis.call('SET', 'other:' .. i, value, 'EX', 600) end";
        redis.run::<()>(&["EVAL", fill, "0"]).await;
        redis.run::<()>(&["SAVE"]).await;
        redis.start_again();
    };
    fault.strikes(store, restart, async || redis.lock().await.ready().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_becomes_a_replica() {
    let other = Redis::start().await;
    let fault =
        fault!(16, "READONLY: the server becomes a replica, and later a master again, empty")
            .adds(REFUSED_ONCE);
    let port = other.port().to_string();
    commands(fault, &["REPLICAOF", "127.0.0.1", &port], &["REPLICAOF", "NO", "ONE"]).await;
}

/// The process has no file descriptor left when its connection breaks.
#[tokio::test]
async fn no_file_descriptor_is_left() {
    let redis = Redis::start().await;
    // A limit is for a whole process.
    let url = [("WORKER_REDIS_URL", &*redis.url())];
    println!("{}", run_worker("faults::worker_process", &url));
}

#[test]
#[ignore = "a process of the test above"]
fn worker_process() {
    let Ok(url) = std::env::var("WORKER_REDIS_URL") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let fault = Fault {
            test: "no_file_descriptor_is_left",
            ..fault!(17, "no file descriptor left for a new connection")
        };
        let mut admin = admin(&url).await;
        let allow = |descriptors| setrlimit(Resource::NOFILE, descriptors, 1024).unwrap();
        let exhaust = async || {
            allow(3);
            run(&mut admin, KILL_CLIENTS).await;
        };
        fault.strikes(store(url).await, exhaust, async || allow(1024)).await;
    });
}
