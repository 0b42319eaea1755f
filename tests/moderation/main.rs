//! The speech monitor.

mod lost_replies;
mod monitor;
mod outage;
mod shares;
mod spam;
mod wrong_designs;

use tower_sliding_window::Key;
use tower_sliding_window::moderation::Mute;
use tower_sliding_window::moderation::store::{
    History, MuteOutcome, MuteRequest, RecordedMessage, SpeechStore,
};
use tower_sliding_window::store::StoreFuture;

/// A store that records messages by a function, and does the rest with another store.
struct RecordsBy<F, S>(F, S);

impl<F, S: SpeechStore> SpeechStore for RecordsBy<F, S>
where
    F: Fn(&RecordedMessage) -> StoreFuture<History> + Send + Sync + 'static,
{
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        self.0(message)
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        self.1.mute(request)
    }

    fn mute_outcome(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        self.1.mute_outcome(request)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        self.1.mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        self.1.forget(sender)
    }
}
