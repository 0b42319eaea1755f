//! Keys of any bytes and length: each has its own log, and on Redis keeps its prefix.

use std::collections::HashSet;

use redis::aio::MultiplexedConnection;
use test_support::{Redis, patient};
use tokio::task::JoinSet;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota};

/// Bytes that mean something to Redis, to its patterns, to hash tags, or to how keys are named.
const SPECIAL: &[u8] = b"\0\n\r :={}%257Ds*?[]\\\xff";

/// Names that look as those of the Redis keys do.
const NAMES: [&[u8]; 8] = [
    b"alice",
    b"}:user:60s",
    b"alice}:user:60s",
    b"alice%7D:user:60s",
    b"alice%257D:user:60s",
    b"tsw:{=alice}:user:60s",
    b"other:{=alice}:user:60s",
    b"sha256:alice",
];

/// All single bytes, all short strings of special ones, and lengths about the cap on a key.
fn hostile_keys() -> HashSet<Vec<u8>> {
    let mut keys: HashSet<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.insert(Vec::new());
    keys.insert((0..=255).collect());
    for one in SPECIAL {
        for two in SPECIAL {
            keys.insert(vec![*one, *two]);
            keys.extend(SPECIAL.iter().map(|three| vec![*one, *two, *three]));
        }
    }
    for length in [127, 128, 129, 130, 255, 256, 65_536, 1_000_000] {
        for byte in [b'x', b'}', b'\0', 0xff] {
            keys.insert(vec![byte; length]);
        }
    }
    keys.extend(NAMES.map(<[u8]>::to_vec));
    keys
}

/// Checks that each key has a window of its own: every one passes once, and then no more.
async fn each_has_its_own_window(store: impl Store, keys: &HashSet<Vec<u8>>) {
    let limiter = Limiter::new(Policy::new("user").quota(Quota::per_minute(1)), store);
    let keys: Vec<_> = keys.iter().collect();
    let check = |key: &[u8]| {
        let (limiter, key) = (limiter.clone(), key.to_vec());
        async move { (limiter.check(&key[..]).await.unwrap().is_admitted(), key) }
    };
    for expected in [true, false] {
        // All of them at once would wait for longer than a second on a busy machine, which is an overload.
        for some in keys.chunks(256) {
            let checks: JoinSet<_> = some.iter().map(|key| check(key)).collect();
            for (admitted, key) in checks.join_all().await {
                let shown = key[..key.len().min(40)].escape_ascii();
                assert_eq!(admitted, expected, "{shown} of {} bytes", key.len());
            }
        }
    }
}

/// Returns all keys of a server that match a pattern.
async fn keys_like(connection: &mut MultiplexedConnection, pattern: &[u8]) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg(pattern).query_async(connection).await.unwrap();
    // The mark of a store is no key of a user.
    keys.retain(|key| !key.ends_with(b":mark"));
    keys
}

#[tokio::test(start_paused = true)]
async fn no_two_keys_share_a_window_in_process() {
    each_has_its_own_window(MemoryStore::new(), &hostile_keys()).await;
}

#[tokio::test]
async fn keys_share_no_log_and_keep_their_prefix() {
    let (redis, keys) = (Redis::start().await, hostile_keys());
    let store = async |prefix: &str| {
        patient().prefix(prefix).deny_cache(false).connect(redis.url()).await.unwrap()
    };
    each_has_its_own_window(store("tsw").await, &keys).await;
    let mut connection = redis.connection().await.unwrap();
    let all: HashSet<_> = keys_like(&mut connection, b"*").await.into_iter().collect();
    assert_eq!(all.len(), keys.len());
    for key in &all {
        let shown = key.escape_ascii();
        let inside = key.strip_prefix(b"tsw:{=").and_then(|rest| rest.strip_suffix(b"}:user:60s"));
        let inside = inside.unwrap_or_else(|| panic!("{shown} has left its prefix"));
        // The first closing brace ends the hash tag: all before it, and all of the key, is in it.
        assert!(!inside.contains(&b'}'), "{shown} ends its hash tag early");
        assert!(inside.len() <= 3 * 128, "{shown} is longer than a key may be");
    }
    assert_eq!(keys_like(&mut connection, b"tsw:{=*}:user:60s").await.len(), all.len());

    // Under another prefix they are other windows, although some of them name it.
    let names = NAMES.map(<[u8]>::to_vec).into();
    each_has_its_own_window(store("other").await, &names).await;
    assert_eq!(keys_like(&mut connection, b"other:{=*}:user:60s").await.len(), names.len());
    let all = keys.len() + names.len() + 2;
    assert_eq!(redis.run::<usize>(&["DBSIZE"]).await, all, "with the marks");
}
