//! Tests of [`ExpiringMap`].

mod threads;

use std::time::Duration;

use super::*;

impl ExpiringValue for u32 {}

fn keep_for(us: u64) -> impl Fn(&mut u32, u64) -> (u32, Keep) {
    move |value, now_us| {
        *value += 1;
        (*value, Keep::Until(now_us + us))
    }
}

#[tokio::test(start_paused = true)]
async fn expired_value_is_absent() {
    let map = ExpiringMap::new(10);
    assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 1);
    tokio::time::advance(Duration::from_micros(99)).await;
    assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 2);
    tokio::time::advance(Duration::from_micros(100)).await;
    assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 1);
    assert_eq!(map.update(b"a", |_, _| ((), Keep::Not)).map(|()| map.len()).unwrap(), 0);
    map.update(b"a", |_, _| ((), Keep::AtLeastUntil(0))).unwrap();
    assert_eq!(map.len(), 0, "an expired value is not inserted");
}

#[tokio::test(start_paused = true)]
async fn only_expired_values_make_room() {
    let map = ExpiringMap::new(2);
    map.update(b"a", keep_for(100)).unwrap();
    map.update(b"b", keep_for(200)).unwrap();
    assert!(matches!(map.update(b"c", keep_for(1)), Err(StoreError::Full { capacity: 2 })));
    assert_eq!(map.update(b"b", keep_for(200)).unwrap(), 2, "a present key needs no room");
    tokio::time::advance(Duration::from_micros(100)).await;
    map.update(b"c", keep_for(1)).unwrap();
    assert_eq!(map.page(0, 9, |key, _, _| Some(key.to_vec())).0.len(), 2);
    assert_eq!(map.update(b"b", keep_for(1)).unwrap(), 3, "a live value is not dropped");
}

#[tokio::test(start_paused = true)]
async fn expired_values_are_dropped() {
    let map = ExpiringMap::new(1_000);
    for number in 0..10_000_u32 {
        map.update(&number.to_be_bytes(), keep_for(10)).unwrap();
        tokio::time::advance(Duration::from_micros(1)).await;
    }
    // An update drops those of its own shard.
    assert!(map.len() < 10 + 2 * SHARDS, "{} values are left", map.len());
}

#[tokio::test(start_paused = true)]
async fn one_place_serves_the_keys_of_all_shards() {
    let map = ExpiringMap::new(1);
    for number in 0..2_000_u32 {
        map.update(&number.to_be_bytes(), keep_for(10)).unwrap();
        assert_eq!(map.len(), 1);
        tokio::time::advance(Duration::from_micros(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stale_due_entries_are_removed() {
    let map = ExpiringMap::new(1_000);
    for _ in 0..10_000 {
        map.update(b"a", keep_for(1_000_000)).unwrap();
        map.update(b"a", |_, _| ((), Keep::Not)).unwrap();
    }
    let due: usize = (0..SHARDS).map(|shard| map.shards.values(shard).slots.due_entries()).sum();
    assert!(due < 200, "{due} entries are left");
}

#[tokio::test(start_paused = true)]
async fn page_returns_lasting_values_once() {
    let map = ExpiringMap::new(1_000);
    let key = |number: u32| number.to_be_bytes();
    for number in 0..100 {
        map.update(&key(number), keep_for(1_000)).unwrap();
    }
    let (mut position, mut read) = (Some(0), Vec::new());
    while let Some(from) = position {
        assert!(read.len() < 1_000, "the last page is never read");
        let (found, next) = map.page(from, 7, |key, _, _| Some(key.to_vec()));
        read.extend(found);
        position = next;
        // Some keys are removed and others inserted between the pages.
        let gone = read.len() as u32;
        map.update(&key(gone), |_, _| ((), Keep::Not)).unwrap();
        map.update(&key(1_000 + gone), keep_for(1_000)).unwrap();
    }
    for number in (0..100).filter(|number| number % 7 != 0) {
        let times = read.iter().filter(|it| **it == key(number)).count();
        assert!(times <= 1, "{number} was read {times} times");
    }
    let lasting = (0..100).filter(|number| read.contains(&key(*number).to_vec())).count();
    assert!(lasting >= 85, "{lasting} lasting values were read");
}

#[derive(Default)]
struct Heavy(usize);

impl ExpiringValue for Heavy {
    fn heap_bytes(&self) -> usize {
        self.0
    }
}

/// Sets the bytes of a value if there is room for them, and keeps it for a time.
fn put(bytes: usize, us: u64) -> impl Fn(&mut Heavy, u64, &mut Room<'_>) -> (bool, Keep) {
    move |value, now_us, room| {
        let fits = room.reserve(bytes.saturating_sub(value.0));
        value.0 = if fits { bytes } else { value.0 };
        (fits, if fits { Keep::Until(now_us + us) } else { Keep::AtLeastUntil(0) })
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_follow_the_values() {
    let map = ExpiringMap::<Heavy>::new(10);
    let fixed = Stored::<Heavy>::fixed_bytes(b"a");
    map.set_budget(3_000 + 3 * fixed);
    assert!(map.update_within(b"a", put(1_000, 10)).unwrap());
    assert!(map.update_within(b"a", put(500, 10)).unwrap());
    assert_eq!(map.bytes(), 500 + fixed);
    assert!(map.update_within(b"b", put(2_000, 20)).unwrap());
    assert!(!map.update_within(b"c", put(501, 10)).unwrap(), "a byte too many");
    assert!(!map.update_within(b"c", put(usize::MAX, 10)).unwrap());
    assert_eq!((map.bytes(), map.len()), (2_500 + 2 * fixed, 2));
    assert!(map.update_within(b"c", put(500, 30)).unwrap(), "the last byte");
    assert_eq!(map.bytes(), 3_000 + 3 * fixed);
    assert!(!map.update_within(b"c", put(501, 30)).unwrap());
    tokio::time::advance(Duration::from_micros(10)).await;
    assert!(map.update_within(b"c", put(501, 20)).unwrap(), "an expired value makes room");
    assert_eq!(map.bytes(), 2_501 + 2 * fixed);
    map.update(b"b", |_, _| ((), Keep::Not)).unwrap();
    map.update(b"c", |_, _| ((), Keep::Not)).unwrap();
    assert_eq!(map.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn unused_room_is_free_again() {
    let map = ExpiringMap::<Heavy>::new(1);
    let fixed = Stored::<Heavy>::fixed_bytes(b"a");
    map.set_budget(1_000 + fixed);
    for (keep, left) in [(Keep::Until(1_000_000), 7 + fixed), (Keep::Not, 0)] {
        let keep = || match keep {
            Keep::Until(at_us) => Keep::Until(at_us),
            _ => Keep::Not,
        };
        let reserves_more = |value: &mut Heavy, _, room: &mut Room<'_>| {
            assert!(room.reserve(1_000 - value.0));
            value.0 = 7;
            ((), keep())
        };
        map.update_within(b"a", reserves_more).unwrap();
        assert_eq!(map.bytes(), left);
    }
    let panics = |_: &mut Heavy, _, room: &mut Room<'_>| -> ((), Keep) {
        assert!(room.reserve(1_000));
        panic!("in the change");
    };
    let update = std::panic::AssertUnwindSafe(|| map.update_within(b"a", panics));
    assert!(std::panic::catch_unwind(update).is_err());
    assert_eq!((map.bytes(), map.len()), (0, 0));
    assert!(map.update_within(b"a", put(1_000, 10)).unwrap());
    assert!(map.update(b"b", |_, now_us| ((), Keep::Until(now_us + 1))).is_err());
    assert_eq!((map.bytes(), map.len()), (1_000 + fixed, 1), "no trace of a value without place");
}
