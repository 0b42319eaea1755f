//! Updates, sweeps and pages of an [`ExpiringMap`] in several threads at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use super::*;

const THREADS: u64 = 4;
const LONG_US: u64 = 3_600_000_000;
/// A thread that has to wait so long is blocked.
const BLOCKED: Duration = Duration::from_secs(20);

fn key(thread: u64, number: u64) -> Vec<u8> {
    [thread.to_be_bytes(), number.to_be_bytes()].concat()
}

fn shard_of_key<V: ExpiringValue>(map: &ExpiringMap<V>, key: &[u8]) -> usize {
    shard_of(map.hasher.hash_one(key))
}

/// Runs an action in several threads, which begin at once.
fn in_threads<R: Send>(threads: u64, action: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let (begin, action) = (&Barrier::new(threads as usize), &action);
    let run = move |thread| {
        begin.wait();
        action(thread)
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|it| scope.spawn(move || run(it))).collect();
        running.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

#[test]
fn updates_of_other_keys_do_not_wait() {
    let map = ExpiringMap::<u32>::new(100);
    let (done, any_done) = mpsc::channel();
    thread::scope(|scope| {
        let waits = |_: &mut u32, now_us| {
            for other in 0..8 {
                let (map, done) = (&map, done.clone());
                scope.spawn(move || {
                    map.update(&key(1, other), keep_for(LONG_US)).unwrap();
                    let _ = done.send(());
                });
            }
            (any_done.recv_timeout(BLOCKED).is_ok(), Keep::Until(now_us + LONG_US))
        };
        assert!(map.update(b"a", waits).unwrap(), "no update ends while another one runs");
    });
    assert_eq!(map.len(), 9);
}

#[test]
fn cap_holds_while_threads_insert() {
    for round in 0..200 {
        let capacity = 1 + round % 10;
        let map = ExpiringMap::<u32>::new(capacity);
        let inserted = in_threads(THREADS, |thread| {
            let insert = |number| map.update(&key(thread, number), keep_for(LONG_US));
            (0..10).filter(|number| insert(*number).is_ok()).count()
        });
        assert_eq!(inserted.iter().sum::<usize>(), capacity);
        assert_eq!(map.len(), capacity);
        assert_eq!(map.page(0, 100, |key, _, _| Some(key.to_vec())).0.len(), capacity);
    }
}

#[test]
fn cap_holds_while_values_expire() {
    let map = ExpiringMap::<u32>::new(8);
    in_threads(THREADS, |thread| {
        for number in 0..3_000 {
            let kept_us = fastrand::u64(..100);
            let _ = map.update(&key(thread, number), keep_for(kept_us));
            assert!(map.len() <= 8, "{} values", map.len());
            map.read(&key(thread, number / 2), |value, _| assert_eq!(*value, 1));
            if number % 16 == 0 {
                // It may show more than eight, because it locks one shard after the other.
                let (values, _) = map.page(0, 100, |_, value, _| Some(*value));
                assert!(values.iter().all(|value| *value == 1));
            }
        }
    });
    let held: usize = (0..SHARDS).map(|shard| map.shards.values(shard).slots.len()).sum();
    assert_eq!(map.len(), held);
}

/// Returns keys in so many different shards: their updates can wait for each other.
fn keys_in_different_shards<V: ExpiringValue>(map: &ExpiringMap<V>, count: usize) -> Vec<Vec<u8>> {
    let mut keys = HashMap::new();
    for number in 0..10_000 {
        keys.insert(shard_of_key(map, &key(0, number)), key(0, number));
    }
    let keys: Vec<Vec<u8>> = keys.into_values().take(count).collect();
    assert_eq!(keys.len(), count);
    keys
}

/// A value whose insertion waits until another thread has inserted one, or has found no room for it.
#[derive(Default)]
struct Slow(Option<Arc<AtomicUsize>>);

impl ExpiringValue for Slow {
    fn heap_bytes(&self) -> usize {
        let Some(decided) = &self.0 else { return 0 };
        decided.fetch_add(1, Ordering::Relaxed);
        let begin = std::time::Instant::now();
        while decided.load(Ordering::Relaxed) < 2 && begin.elapsed() < BLOCKED {
            thread::yield_now();
        }
        0
    }
}

#[test]
fn one_place_is_reserved_by_one() {
    let (map, decided) = (ExpiringMap::<Slow>::new(1), Arc::<AtomicUsize>::default());
    let keys = keys_in_different_shards(&map, 2);
    let inserted = in_threads(2, |thread| {
        let change = |value: &mut Slow, now_us| {
            value.0 = Some(decided.clone());
            ((), Keep::Until(now_us + LONG_US))
        };
        let inserted = map.update(&keys[thread as usize], change).is_ok();
        decided.fetch_add(usize::from(!inserted), Ordering::Relaxed);
        inserted
    });
    assert_eq!(inserted.iter().filter(|inserted| **inserted).count(), 1);
    assert_eq!(map.len(), 1);
}

#[test]
fn room_for_three_is_reserved_by_three() {
    let map = ExpiringMap::<Heavy>::new(100);
    let one = 1_000 + Stored::<Heavy>::fixed_bytes(&key(0, 0));
    map.set_budget(3 * one + 999);
    let keys = keys_in_different_shards(&map, 8);
    let reserved = Barrier::new(keys.len());
    let fitted = in_threads(8, |thread| {
        let change = |value: &mut Heavy, now_us, room: &mut Room<'_>| {
            let (fits, keep) = put(1_000, LONG_US)(value, now_us, room);
            // All updates reserve before one of them ends.
            reserved.wait();
            (fits, keep)
        };
        map.update_within(&keys[thread as usize], change).unwrap()
    });
    assert_eq!(fitted.iter().filter(|fits| **fits).count(), 3);
    assert_eq!((map.bytes(), map.len()), (3 * one, 3));
}

#[test]
fn budget_holds_while_threads_update() {
    let map = ExpiringMap::<Heavy>::new(100);
    map.set_budget(20_000);
    let refused = in_threads(THREADS, |thread| {
        let mut refused = 0;
        for _ in 0..3_000 {
            let (key, bytes) = (key(thread % 2, fastrand::u64(..10)), fastrand::usize(1..2_000));
            let kept_us = if fastrand::bool() { LONG_US } else { fastrand::u64(..100) };
            let fits = map.update_within(&key, put(bytes, kept_us)).unwrap();
            refused += u32::from(!fits);
            assert!(map.bytes() <= 20_000, "{} bytes", map.bytes());
        }
        refused
    });
    assert!(refused.iter().sum::<u32>() > 0, "the budget was used up");
    let bytes: usize = (0..SHARDS).map(|shard| map.shards.values(shard).bytes).sum();
    assert_eq!(map.bytes(), bytes);
}

#[test]
fn inserts_at_once_find_all_expired_places() {
    for _ in 0..20 {
        let map = ExpiringMap::<u32>::new(400);
        for number in 0..400 {
            map.update(&key(9, number), keep_for(1)).unwrap();
        }
        let over_us = map.now_us() + 1;
        while map.now_us() < over_us {
            thread::yield_now();
        }
        in_threads(THREADS, |thread| {
            for number in 0..100 {
                map.update(&key(thread, number), keep_for(LONG_US)).unwrap();
            }
        });
        assert_eq!(map.len(), 400);
    }
}

#[test]
fn full_map_locks_no_shard_without_need() {
    let map = ExpiringMap::<u32>::new(1);
    map.update(b"a", keep_for(LONG_US)).unwrap();
    let (done, result) = mpsc::channel();
    thread::scope(|scope| {
        let own = shard_of_key(&map, b"b");
        let others: Vec<_> =
            (0..SHARDS).filter(|shard| *shard != own).map(|it| map.shards.values(it)).collect();
        scope.spawn(|| done.send(map.update(b"b", keep_for(1))));
        let result = result.recv_timeout(BLOCKED);
        drop(others);
        assert!(matches!(result, Ok(Err(StoreError::Full { capacity: 1 }))), "{result:?}");
    });
}

/// Reads all pages, and returns how often each key was read.
fn read_all(map: &ExpiringMap<u32>, count: usize) -> HashMap<Vec<u8>, u32> {
    let (mut position, mut times) = (Some(0), HashMap::new());
    for _ in 0..100_000 {
        let Some(from) = position else { return times };
        let (found, next) = map.page(from, count, |key, _, _| Some(key.to_vec()));
        assert!(found.len() <= count);
        found.into_iter().for_each(|key| *times.entry(key).or_insert(0) += 1);
        position = next;
    }
    panic!("there is no last page");
}

/// Ends the other threads, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pages_are_complete_while_others_change() {
    let map = ExpiringMap::<u32>::new(100_000);
    for number in 0..500 {
        map.update(&key(9, number), keep_for(LONG_US)).unwrap();
    }
    let over = AtomicBool::new(false);
    in_threads(3, |thread| {
        if thread == 0 {
            let _end = End(&over);
            for count in [1, 7, 30, 100, 499] {
                let times = read_all(&map, count);
                let times = (0..500).map(|number| times.get(&key(9, number)));
                let wrong = times.filter(|times| *times != Some(&1)).count();
                assert_eq!(wrong, 0, "not read once, with {count} in a page");
            }
            return;
        }
        for number in (0..1_000).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
            map.update(&key(thread, number), keep_for(LONG_US)).unwrap();
            map.update(&key(thread, number * 7 % 1_000), |_, _| ((), Keep::Not)).unwrap();
        }
    });
}
