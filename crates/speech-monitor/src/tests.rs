mod decisions;
mod races;
mod spam;
mod store;
mod wrong_designs;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Message, MuteEvent, Rule, SpeechMonitor};

const HOUR: Duration = Duration::from_secs(3600);

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

async fn is_delivered(monitor: &SpeechMonitor, message: &Message) -> bool {
    monitor.check(message).await.unwrap().is_delivered()
}

/// What the hooks of some monitors got.
#[derive(Clone, Default)]
struct Audit(Arc<Mutex<Vec<MuteEvent>>>);

impl Audit {
    /// Has a monitor report its mutes here.
    fn of(&self, monitor: SpeechMonitor) -> SpeechMonitor {
        let audit = self.clone();
        monitor.on_mute(move |event| audit.0.lock().unwrap().push(event.clone()))
    }

    fn take(&self) -> Vec<MuteEvent> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Returns each event's seconds that are left, rounded, and whether the mute was lengthened.
    fn seconds(&self) -> Vec<(u64, bool)> {
        let seconds = |it: &MuteEvent| it.mute.remaining.as_secs_f64().round() as u64;
        self.0.lock().unwrap().iter().map(|it| (seconds(it), it.lengthened)).collect()
    }
}
