//! Tests of [`ExpiringMap`].

use std::time::Duration;

use super::*;

impl ExpiringValue for u32 {}

fn keep_for(us: u64) -> impl FnOnce(&mut u32, u64) -> (u32, Keep) {
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
    assert!(map.len() < 50, "{} values are left", map.len());
}

#[tokio::test(start_paused = true)]
async fn stale_due_entries_are_removed() {
    let map = ExpiringMap::new(1_000);
    for _ in 0..10_000 {
        map.update(b"a", keep_for(1_000_000)).unwrap();
        map.update(b"a", |_, _| ((), Keep::Not)).unwrap();
    }
    let due = map.lock().due.len();
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

#[tokio::test(start_paused = true)]
async fn bytes_follow_the_values() {
    let map = ExpiringMap::<Heavy>::new(10);
    map.set_budget(10_000);
    let put = |key: &[u8], bytes, us| {
        let change = |value: &mut Heavy, now_us, room| {
            value.0 = bytes;
            (room, Keep::Until(now_us + us))
        };
        map.update_within(key, change).unwrap()
    };
    let fixed = Slot::<Heavy>::fixed_bytes(b"a");
    assert_eq!(put(b"a", 1_000, 10), 10_000 - fixed);
    assert_eq!(put(b"a", 500, 10), 9_000 - fixed, "the value's own bytes count");
    assert_eq!(put(b"b", 2_000, 20), 9_500 - 2 * fixed);
    assert_eq!(map.bytes(), 2_500 + 2 * fixed);
    tokio::time::advance(Duration::from_micros(10)).await;
    assert_eq!(put(b"b", 7, 10), 8_000 - fixed, "an expired value makes room");
    map.update(b"b", |_, _| ((), Keep::Not)).unwrap();
    assert_eq!(map.bytes(), 0);
}
