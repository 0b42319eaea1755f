use super::*;
use crate::policy::Policy;
use crate::quota::Quota;

fn log(key: u64) -> LogId {
    let policy = Policy::new("user").quota(Quota::per_hour(5));
    LogId::new(Arc::new(policy), key.to_string())
}

fn restore_in(journal: &mut Journal, key: u64) -> Result<Check, StoreError> {
    let check = Check::new([log(key)]);
    journal.note(&check, ChangeKind::Restore, Instant::now()).map(|()| check)
}

fn lead(journal: &mut Journal, log: &LogId) -> Lead {
    match journal.turn(log, 10, Instant::now()) {
        Turn::Lead(lead) => lead,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_left_its_windows_makes_room_in_the_journal() {
    let mut journal = Journal::new(4);
    for key in 0..4 {
        restore_in(&mut journal, key).unwrap();
    }
    let full = restore_in(&mut journal, 4).unwrap_err();
    assert!(matches!(full, StoreError::Full { capacity: 4 }), "{full:?}");
    tokio::time::advance(Duration::from_secs(3600)).await;
    for key in 4..100 {
        restore_in(&mut journal, key).unwrap_or_else(|error| panic!("number {key}: {error}"));
        tokio::time::advance(Duration::from_secs(1200)).await;
    }
    assert_eq!(journal.changes(&[log(0)]), 0);
    tokio::time::advance(Duration::from_secs(3600)).await;
    for log in journal.next(10) {
        assert!(matches!(journal.turn(&log, 10, Instant::now()), Turn::Nothing));
    }
    assert_eq!((journal.changes, journal.backlogs.len()), (0, 0));
}

#[test]
fn a_cancel_replaces_a_restore_without_room() {
    let mut journal = Journal::new(1);
    let check = restore_in(&mut journal, 0).unwrap();
    journal.note(&check, ChangeKind::Cancel, Instant::now()).unwrap();
    let lead = lead(&mut journal, &log(0));
    let [change] = lead.changes[..] else { panic!("one change a request") };
    assert_eq!((change.id, change.kind), (check.id, ChangeKind::Cancel));
    restore_in(&mut journal, 0).unwrap_err();
}

#[test]
fn what_can_t_be_done_holds_up_nothing_else() {
    let mut journal = Journal::new(100);
    for key in 0..10 {
        restore_in(&mut journal, key).unwrap();
    }
    let mut seen = HashSet::new();
    for _ in 0..5 {
        // None of them is ever done.
        seen.extend(journal.next(2));
    }
    assert_eq!(seen.len(), 10);
}

#[test]
fn a_task_that_was_replaced_while_it_was_under_way_is_still_to_be_done() {
    let mut journal = Journal::new(100);
    let (log, check) = (log(0), restore_in(&mut journal, 0).unwrap());
    let under_way = lead(&mut journal, &log);
    journal.note(&check, ChangeKind::Cancel, Instant::now()).unwrap();
    journal.finish(&under_way, &Ok(()), None);
    let again = lead(&mut journal, &log);
    assert_eq!(again.changes[0].kind, ChangeKind::Cancel);
    journal.finish(&again, &Ok(()), None);
    assert_eq!((journal.changes, journal.backlogs.len()), (0, 0));
}

#[tokio::test]
async fn one_caller_at_a_time_tells_of_a_log() {
    let mut journal = Journal::new(100);
    let log = log(0);
    restore_in(&mut journal, 0).unwrap();
    let first = lead(&mut journal, &log);
    let Turn::Wait(mut outcome) = journal.turn(&log, 10, Instant::now()) else {
        panic!("another is at it")
    };
    journal.finish(&first, &Err(StoreError::Timeout), None);
    let told = outcome.wait_for(Option::is_some).await.unwrap().clone();
    assert!(matches!(told, Some(Err(StoreError::Timeout))), "{told:?}");
    // It was not told, so it is told again; a leader that goes away leaves the turn to others.
    drop(lead(&mut journal, &log));
    assert_eq!(lead(&mut journal, &log).changes.len(), 1);
}

#[test]
fn a_survey_goes_on_where_it_was_until_begun_anew() {
    let mut journal = Journal::new(100);
    let log = log(0);
    journal.survey(&log, 1, false);
    let first = lead(&mut journal, &log);
    assert_eq!(first.survey, Some(None));
    journal.finish(&first, &Ok(()), Some(7));
    let second = lead(&mut journal, &log);
    assert_eq!(second.survey, Some(Some(7)));
    journal.survey(&log, 1, true);
    journal.finish(&second, &Ok(()), None);
    let again = lead(&mut journal, &log);
    assert_eq!(again.survey, Some(None), "it was wanted anew meanwhile");
    journal.finish(&again, &Ok(()), None);
    journal.survey(&log, 1, false);
    assert!(matches!(journal.turn(&log, 10, Instant::now()), Turn::Nothing), "once is enough");
    journal.survey(&log, 2, false);
    assert_eq!(lead(&mut journal, &log).survey, Some(None), "after another reconnection");
}

#[test]
fn order_holds_each_log_once() {
    let mut journal = Journal::new(1_000);
    for other in 1..=200 {
        restore_in(&mut journal, other).unwrap();
    }
    // One log is told of again and again, by its checks.
    for _ in 0..10_000 {
        restore_in(&mut journal, 0).unwrap();
        let lead = lead(&mut journal, &log(0));
        journal.finish(&lead, &Ok(()), None);
    }
    assert!(journal.order.len() < 1_000, "{} places for 200 logs", journal.order.len());
    restore_in(&mut journal, 0).unwrap();
    let mut logs = journal.next(1_000);
    let listed = logs.len();
    logs.sort_by(|one, other| one.key.as_bytes().cmp(other.key.as_bytes()));
    logs.dedup();
    assert_eq!((listed, logs.len()), (201, 201));
}

#[test]
fn survey_wanted_in_a_turn_begins_again() {
    let mut journal = Journal::new(10);
    journal.survey(&log(0), 1, true);
    let first = lead(&mut journal, &log(0));
    // After the leader has looked at what is known here.
    journal.survey(&log(0), 1, true);
    journal.finish(&first, &Ok(()), None);
    assert_eq!(lead(&mut journal, &log(0)).survey, Some(None));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_could_not_be_told_is_not_waited_for() {
    let mut journal = Journal::new(100);
    let log = [log(0)];
    restore_in(&mut journal, 0).unwrap();
    let first = lead(&mut journal, &log[0]);
    assert!(!journal.is_stalled(&log, Instant::now(), 0), "the first turn is worth waiting for");
    journal.finish(&first, &Err(StoreError::Timeout), None);
    assert!(journal.is_stalled(&log, Instant::now(), 0));
    tokio::time::advance(Duration::from_millis(750)).await;
    assert!(!journal.is_stalled(&log, Instant::now(), 0), "one caller tries again");
    let second = lead(&mut journal, &log[0]);
    assert!(journal.is_stalled(&log, Instant::now(), 0), "and the others do not wait for it");
    journal.finish(&second, &Err(StoreError::Timeout), None);
    assert!(journal.is_stalled(&log, Instant::now(), 0));
    assert!(!journal.is_stalled(&log, Instant::now(), 1), "there is a new connection");
}
