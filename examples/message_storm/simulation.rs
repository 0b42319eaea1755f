//! Messages that nobody has written.

use std::time::Duration;

use tokio::sync::mpsc;
use tower_sliding_window::Quota;
use uuid::Uuid;

use crate::line::{Line, Message};
use crate::session::note;

/// The groups: how many messages each gets, and how far apart.
const GROUPS: [(&str, u64, Duration); 2] =
    [("calm", 50, Duration::from_millis(100)), ("stormy", 150, Duration::from_millis(10))];

/// Sends the messages of all groups at the same time, each at its pace.
///
/// Their ids are new each time: several processes that do this send different messages.
pub(crate) fn start(threshold: Quota) -> mpsc::Receiver<Line> {
    let (sender, receiver) = mpsc::channel(1);
    for (group, count, pause) in GROUPS {
        note(format_args!("{group} gets {count} messages, one every {} ms", pause.as_millis()));
        let (sender, run) = (sender.clone(), Uuid::new_v4());
        tokio::spawn(async move {
            let mut paces = tokio::time::interval(pause);
            for number in 1..=count {
                paces.tick().await;
                let id = format!("{run}-{number}").into_bytes();
                let message = Message { group: group.into(), id };
                if sender.send((number, Ok(message))).await.is_err() {
                    return;
                }
            }
        });
    }
    note(format_args!("a storm starts above {threshold}"));
    receiver
}
