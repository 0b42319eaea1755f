use super::*;
use crate::policy::Policy;
use crate::quota::Quota;

fn log(key: u64) -> LogId {
    let policy = Policy::new("user").quota(Quota::per_hour(5));
    LogId::new(Arc::new(policy), key.to_string())
}

fn add_restore(journal: &mut Journal, key: u64) -> Result<Check, StoreError> {
    let check = Check::new([log(key)]);
    journal.add(&check, ChangeKind::Restore, Instant::now()).map(|()| check)
}

fn writer(journal: &mut Journal, log: &LogId) -> LogWriter {
    match journal.claim(log, 10, Instant::now()) {
        Claim::Write(writer) => writer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn expired_changes_make_room() {
    let mut journal = Journal::new(4);
    for key in 0..4 {
        add_restore(&mut journal, key).unwrap();
    }
    let full = add_restore(&mut journal, 4).unwrap_err();
    assert!(matches!(full, StoreError::Full { capacity: 4 }), "{full:?}");
    tokio::time::advance(Duration::from_secs(3600)).await;
    for key in 4..100 {
        add_restore(&mut journal, key).unwrap_or_else(|error| panic!("number {key}: {error}"));
        tokio::time::advance(Duration::from_secs(1200)).await;
    }
    assert_eq!(journal.change_count(&[log(0)]), 0);
    tokio::time::advance(Duration::from_secs(3600)).await;
    for log in journal.next_logs(10) {
        assert!(matches!(journal.claim(&log, 10, Instant::now()), Claim::Nothing));
    }
    assert_eq!((journal.changes, journal.backlogs.len()), (0, 0));
}

#[test]
fn cancel_replaces_a_restore_without_room() {
    let mut journal = Journal::new(1);
    let check = add_restore(&mut journal, 0).unwrap();
    journal.add(&check, ChangeKind::Cancel, Instant::now()).unwrap();
    let writer = writer(&mut journal, &log(0));
    let [change] = writer.changes[..] else { panic!("one change for each request") };
    assert_eq!((change.id, change.kind), (check.id, ChangeKind::Cancel));
    add_restore(&mut journal, 0).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn settled_restore_keeps_its_time() {
    let mut journal = Journal::new(1);
    let (check, admitted) = (add_restore(&mut journal, 0).unwrap(), Instant::now());
    tokio::time::advance(Duration::from_secs(60)).await;
    for cost in [2, 4] {
        let settled = check.at_cost(cost);
        journal.add(&settled, ChangeKind::Settle, Instant::now()).unwrap();
    }
    assert_eq!(journal.places(&[log(0)]), 4);
    let [change] = writer(&mut journal, &log(0)).changes[..] else { panic!("one change") };
    let expected = (ChangeKind::RestoreAndSettle, 4, admitted);
    assert_eq!((change.kind, change.cost, change.at), expected);
}

#[test]
fn cancelled_request_is_not_settled() {
    let mut journal = Journal::new(1);
    let check = add_restore(&mut journal, 0).unwrap();
    for kind in [ChangeKind::Cancel, ChangeKind::Settle] {
        journal.add(&check, kind, Instant::now()).unwrap();
    }
    assert_eq!(writer(&mut journal, &log(0)).changes[0].kind, ChangeKind::Cancel);
}

#[test]
fn log_that_fails_delays_no_other() {
    let mut journal = Journal::new(100);
    for key in 0..10 {
        add_restore(&mut journal, key).unwrap();
    }
    let mut seen = HashSet::new();
    for _ in 0..5 {
        // None of them is ever written.
        seen.extend(journal.next_logs(2));
    }
    assert_eq!(seen.len(), 10);
}

#[test]
fn replaced_change_is_written_again() {
    let mut journal = Journal::new(100);
    let (log, check) = (log(0), add_restore(&mut journal, 0).unwrap());
    let first = writer(&mut journal, &log);
    journal.add(&check, ChangeKind::Cancel, Instant::now()).unwrap();
    journal.finish(&first, &Ok(()), None);
    let second = writer(&mut journal, &log);
    assert_eq!(second.changes[0].kind, ChangeKind::Cancel);
    journal.finish(&second, &Ok(()), None);
    assert_eq!((journal.changes, journal.backlogs.len()), (0, 0));
}

#[tokio::test]
async fn log_has_one_writer_at_a_time() {
    let mut journal = Journal::new(100);
    let log = log(0);
    add_restore(&mut journal, 0).unwrap();
    let first = writer(&mut journal, &log);
    let Claim::Wait(mut result) = journal.claim(&log, 10, Instant::now()) else {
        panic!("there is a writer")
    };
    journal.finish(&first, &Err(StoreError::Timeout), None);
    let result = result.wait_for(Option::is_some).await.unwrap().clone();
    assert!(matches!(result, Some(Err(StoreError::Timeout))), "{result:?}");
    // The write has failed and is repeated. A writer that is dropped leaves the write to others.
    drop(writer(&mut journal, &log));
    assert_eq!(writer(&mut journal, &log).changes.len(), 1);
}

#[test]
fn resync_continues_until_requested_again() {
    let mut journal = Journal::new(100);
    let log = log(0);
    journal.request_resync(&log, 1, false);
    let first = writer(&mut journal, &log);
    assert_eq!(first.resync, Resync::After(None));
    journal.finish(&first, &Ok(()), Some(7));
    let second = writer(&mut journal, &log);
    assert_eq!(second.resync, Resync::After(Some(7)));
    journal.request_resync(&log, 1, true);
    journal.finish(&second, &Ok(()), None);
    let third = writer(&mut journal, &log);
    assert_eq!(third.resync, Resync::After(None), "it was requested again meanwhile");
    // After the writer has read the local log.
    journal.request_resync(&log, 1, true);
    journal.finish(&third, &Ok(()), None);
    let fourth = writer(&mut journal, &log);
    assert_eq!(fourth.resync, Resync::After(None), "it restarts from the same timestamp");
    journal.finish(&fourth, &Ok(()), None);
    journal.request_resync(&log, 1, false);
    assert!(matches!(journal.claim(&log, 10, Instant::now()), Claim::Nothing), "once is enough");
    journal.request_resync(&log, 2, false);
    let fifth = writer(&mut journal, &log);
    assert_eq!(fifth.resync, Resync::After(None), "after another reconnection");
}

#[test]
fn order_holds_each_log_once() {
    let mut journal = Journal::new(1_000);
    for other in 1..=200 {
        add_restore(&mut journal, other).unwrap();
    }
    // The checks of one log write it back again and again.
    for _ in 0..10_000 {
        add_restore(&mut journal, 0).unwrap();
        let writer = writer(&mut journal, &log(0));
        journal.finish(&writer, &Ok(()), None);
    }
    assert!(journal.order.len() < 1_000, "{} places for 200 logs", journal.order.len());
    add_restore(&mut journal, 0).unwrap();
    let mut logs = journal.next_logs(1_000);
    let listed = logs.len();
    logs.sort_by(|one, other| one.key.as_bytes().cmp(other.key.as_bytes()));
    logs.dedup();
    assert_eq!((listed, logs.len()), (201, 201));
}

#[tokio::test(start_paused = true)]
async fn checks_do_not_wait_after_a_failed_write() {
    let mut journal = Journal::new(100);
    let log = [log(0)];
    add_restore(&mut journal, 0).unwrap();
    let first = writer(&mut journal, &log[0]);
    assert!(!journal.is_failing(&log, Instant::now(), 0), "the first write has not failed");
    journal.finish(&first, &Err(StoreError::Timeout), None);
    assert!(journal.is_failing(&log, Instant::now(), 0));
    tokio::time::advance(Duration::from_millis(750)).await;
    assert!(!journal.is_failing(&log, Instant::now(), 0), "one caller tries again");
    let second = writer(&mut journal, &log[0]);
    assert!(journal.is_failing(&log, Instant::now(), 0), "the others do not wait for it");
    journal.finish(&second, &Err(StoreError::Timeout), None);
    assert!(journal.is_failing(&log, Instant::now(), 0));
    assert!(!journal.is_failing(&log, Instant::now(), 1), "there is a new connection");
}
