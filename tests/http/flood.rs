//! Three times as many keys as there is room for come once, against the in-process store. The test runs in a process
//! of its own, because it looks at the memory of the process.

use crate::*;

const CAPACITY: usize = 200_000;
const KEYS: usize = 3 * CAPACITY;
/// What the store may take for a log whose key is as long as keys get.
const BYTES_A_WINDOW: usize = 320;
/// What the process may take besides.
const BYTES_BESIDES: usize = 24 << 20;

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "only Linux has the memory of a process in a file")]
fn flood_of_keys_fits_in_bounded_memory() {
    run_worker("flood::worker_process", &[]);
}

#[tokio::test(start_paused = true)]
#[ignore = "run as a process of its own by the test above"]
async fn worker_process() {
    let policy = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(2)));
    let store = MemoryStore::with_capacity(CAPACITY);
    let service = by_user(&policy, store.clone()).layer(service_fn(ok));
    for expected in [OK, OK, TOO_MANY] {
        assert_eq!(status(&service, "limited").await, expected);
    }
    assert_eq!(status(&service, "frugal").await, OK);

    let mut admitted = 0;
    for number in 0..KEYS {
        // Those that there is room for are as long as keys get.
        let mut key = [0xff; 128];
        key[..8].copy_from_slice(&number.to_be_bytes());
        let length = if number < 2 * CAPACITY { 128 } else { 8 };
        let log = LogId::new(policy.get(), &key[..length]);
        match store.admit(&Check::new([log])).await {
            Ok(outcome) => {
                assert!(outcome.admitted, "a new key is never denied");
                admitted += 1;
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Full { .. }), "{error}");
                assert_eq!(store.len(), CAPACITY, "turned away only for want of room");
            }
        }
        if number % 4096 == 0 {
            assert_eq!(status(&service, "limited").await, TOO_MANY, "evicted by {number} keys");
        }
    }
    assert_eq!(admitted, CAPACITY - 2, "as many new keys as there was room for");
    let most = memory_kb("self", "VmHWM") as usize * 1024;
    let bound = CAPACITY * BYTES_A_WINDOW + BYTES_BESIDES;
    assert!(most < bound, "the process has had {most} bytes, {bound} are allowed");

    assert_eq!(status(&service, "frugal").await, OK, "a live window goes on");
    assert_eq!(status(&service, "frugal").await, TOO_MANY);
}
