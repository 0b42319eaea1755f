//! What happens to requests when one Redis server fails: one test a fault, under load before,
//! during and after it.

use rlimit::{Resource, setrlimit};
use test_support::fault::Fault;

use crate::*;

/// What goes wrong with a server, or on the way to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble<'a> {
    Killed,
    Stopped,
    /// An endless script.
    Busy,
    Network(proxy::Fault),
    /// One command begins it, and another one ends it.
    Commands(&'a str, &'a str),
}

impl Trouble<'_> {
    pub(crate) async fn begin(self, redis: &mut Redis, proxy: &Proxy) {
        match self {
            Self::Killed => redis.kill(),
            Self::Stopped => redis.signal("STOP"),
            Self::Busy => redis.keep_busy().await,
            Self::Network(fault) => proxy.set(fault),
            Self::Commands(begin, _) => redis.command(begin).await,
        }
    }

    pub(crate) async fn end(self, redis: &mut Redis, proxy: &Proxy) {
        match self {
            Self::Killed => redis.restart().await,
            Self::Stopped => redis.signal("CONT"),
            Self::Busy => redis.command("SCRIPT KILL").await,
            Self::Network(_) => proxy.set(proxy::Fault::None),
            Self::Commands(_, end) => redis.command(end).await,
        }
    }

    async fn strikes(self, fault: Fault) {
        let redis = Redis::start_with(&["--lua-time-limit", "20"]).await;
        let proxy = Proxy::to(redis.port()).await;
        let url = if matches!(self, Self::Network(_)) { proxy.url() } else { redis.url() };
        let (store, redis) = (store(url).await, Mutex::new(redis));
        let begin = async || self.begin(&mut *redis.lock().await, &proxy).await;
        fault
            .strikes(store, begin, async || self.end(&mut *redis.lock().await, &proxy).await)
            .await;
    }
}

const KILL_CLIENTS: &str = "CLIENT KILL TYPE normal SKIPME yes";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_empty() {
    Trouble::Killed.strikes(Fault::new("redis_is_killed_and_comes_back_empty")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stands_still_for_a_while() {
    Trouble::Stopped.strikes(Fault::new("redis_stands_still_for_a_while")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_script_keeps_redis_busy() {
    Trouble::Busy.strikes(Fault::new("foreign_script_keeps_redis_busy")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_passes_nothing_on() {
    Trouble::Network(proxy::Fault::Stall).strikes(Fault::new("network_passes_nothing_on")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_flushed() {
    let test = "everything_is_flushed";
    let fault = Fault { test, over_admission: LIMIT as usize, decided_here: false };
    Trouble::Commands("FLUSHALL", "PING").strikes(fault).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_key_has_another_type() {
    let spoil = "SET tsw:{=user-7}:user:2s x PX 600000";
    let fault = Fault::new("log_key_has_another_type");
    Trouble::Commands(spoil, "DEL tsw:{=user-7}:user:2s").strikes(fault).await;
}

pub(crate) const NO_SCRIPTS: Trouble<'_> =
    Trouble::Commands("ACL SETUSER default -eval -evalsha", "ACL SETUSER default +@all");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_may_no_longer_call_scripts() {
    NO_SCRIPTS.strikes(Fault::new("user_may_no_longer_call_scripts")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_becomes_a_replica() {
    let other = Redis::start().await;
    let follow = format!("REPLICAOF 127.0.0.1 {}", other.port());
    let fault = Fault::new("the_server_becomes_a_replica");
    Trouble::Commands(&follow, "REPLICAOF NO ONE").strikes(fault).await;
}

/// Has a fault strike in which a command is run again and again, and the process does not have to decide.
async fn repeated(test: &'static str, command: &str, times: usize) {
    let redis = Redis::start().await;
    let repeat = async || {
        for _ in 0..times {
            redis.command(command).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let fault = Fault { decided_here: false, ..Fault::new(test) };
    fault.strikes(store(redis.url()).await, repeat, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_are_flushed() {
    repeated("the_scripts_are_flushed", "SCRIPT FLUSH SYNC", 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_killed_again_and_again() {
    repeated("connections_are_killed_again_and_again", KILL_CLIENTS, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_has_no_memory_left() {
    let redis = Redis::start().await;
    let store = store(redis.url()).await;
    // Windows that Redis has already still have room made in them: only new keys are refused.
    redis.command("CONFIG SET maxmemory 1").await;
    let free = async || redis.command("CONFIG SET maxmemory 0").await;
    // One rule alone: of several, Redis admits also above its memory. Their script begins with a
    // command that frees memory, and a script that has written may go on.
    let load = Load::through(by_user(user_policy(), store));
    Fault::new("redis_has_no_memory_left").ends([load], Instant::now(), free).await;
}

/// A connection that a test has before the fault, and that the fault spares.
async fn admin(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn run(admin: &mut redis::aio::MultiplexedConnection, command: &str) {
    let mut words = command.split(' ');
    redis::cmd(words.next().unwrap()).arg(Vec::from_iter(words)).exec_async(admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_suddenly_wants_a_password() {
    let redis = Redis::start().await;
    let fault = Fault::new("redis_suddenly_wants_a_password");
    let mut admin = admin(&redis.url()).await;
    let mut again = admin.clone();
    let lock = async || {
        run(&mut admin, "CONFIG SET requirepass secret").await;
        run(&mut admin, KILL_CLIENTS).await;
    };
    // The last word is the empty password.
    let unlock = async || run(&mut again, "CONFIG SET requirepass ").await;
    fault.strikes(store(redis.url()).await, lock, unlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_still_loading_its_data() {
    // Loading is slowed down to 6 ms a key: with those of the crowd there are hundreds. Clients are
    // answered after every two megabytes, which Redis 6.2 has no setting for, so that is what a key holds.
    let slow = ["--key-load-delay", "6000", "--rdbcompression", "no"];
    let redis = Mutex::new(Redis::start_with(&slow).await);
    let store = store(redis.lock().await.url()).await;
    let fault = Fault::new("redis_is_still_loading_its_data");
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

/// The process has no file descriptor left when its connection breaks.
#[tokio::test]
async fn no_file_descriptor_is_left() {
    let redis = Redis::start().await;
    // A limit is for a whole process.
    let url = [("WORKER_REDIS_URL", &*redis.url())];
    println!("{}", run_worker("faults::worker_process", &url));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of the test above"]
async fn worker_process() {
    let Ok(url) = std::env::var("WORKER_REDIS_URL") else { return };
    let mut admin = admin(&url).await;
    let allow = |descriptors| setrlimit(Resource::NOFILE, descriptors, 1024).unwrap();
    let exhaust = async || {
        allow(3);
        run(&mut admin, KILL_CLIENTS).await;
    };
    let fault = Fault::new("no_file_descriptor_is_left");
    fault.strikes(store(url).await, exhaust, async || allow(1024)).await;
}
