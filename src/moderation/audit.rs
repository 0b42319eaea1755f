//! [`Audit`]: imposes mutes and calls the hook for each, even if a reply is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::decision::{Mute, MuteEvent};
use super::store::{MuteOutcome, MuteRequest, SpeechStore};
use crate::error::StoreError;
use crate::hook::Hook;
use crate::telemetry;

/// How many lost replies may be resolved at once.
const MAX_LOST_REPLIES: usize = 1_000;
/// The pause before the store is queried about a lost reply. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Imposes mutes and calls the hook for each of them.
///
/// A call that imposes a mute may mute the sender although its reply is lost or its caller drops the
/// future. [`LostReplyGuard`] then starts a task that queries the store until it replies. Each mute
/// is stored with the id of the message that caused it, so the hook is called for it once: either by
/// the call that gets the reply, or by the task of that call. Calls for other messages find a mute
/// with another id and do not call the hook.
pub(super) struct Audit {
    store: Arc<dyn SpeechStore>,
    hook: Option<Hook<MuteEvent>>,
    /// How many lost replies are being resolved.
    lost_replies: watch::Sender<usize>,
}

impl Audit {
    pub(super) fn new(store: Arc<dyn SpeechStore>, hook: Option<Hook<MuteEvent>>) -> Arc<Self> {
        Arc::new(Self { store, hook, lost_replies: watch::Sender::new(0) })
    }

    /// Returns how many times the hook has panicked.
    pub(super) fn panicked(&self) -> u64 {
        self.hook.as_ref().map_or(0, Hook::panics)
    }

    /// Imposes a mute, and returns the mute that is active then.
    pub(super) async fn impose(
        self: &Arc<Self>,
        request: MuteRequest,
    ) -> Result<Option<Mute>, StoreError> {
        let mut guard = LostReplyGuard { audit: self, request: &request, is_lost: true };
        let outcome = self.store.mute(&request).await;
        guard.is_lost = outcome.as_ref().is_err_and(StoreError::may_have_counted);
        drop(guard);
        let outcome = outcome?;
        self.report(&request, &outcome);
        Ok(outcome.mute)
    }

    /// Waits until all lost replies are resolved.
    pub(super) async fn settled(&self) {
        // The sender is not closed, because this holds it.
        let _ = self.lost_replies.subscribe().wait_for(|lost| *lost == 0).await;
    }

    /// Calls the hook if the active mute was imposed by this request, and returns whether it was.
    fn report(&self, request: &MuteRequest, outcome: &MuteOutcome) -> bool {
        let (Some(mute), true) = (&outcome.mute, outcome.by_this) else { return false };
        match mute.is_manual() {
            // Not the rule, which has any length that an operator chooses.
            true => telemetry::muted("manual"),
            false => telemetry::muted(mute.rule()),
        }
        if let Some(hook) = &self.hook {
            let (sender, mute) = (request.sender.clone(), mute.clone());
            hook.call(&MuteEvent { sender, mute, lengthened: outcome.lengthened });
        }
        true
    }

    /// Starts a task that queries the store about a lost reply.
    fn spawn_query(self: &Arc<Self>, request: MuteRequest) {
        let (Some(lost), Ok(runtime)) = (LostReply::new(self), Handle::try_current()) else {
            return telemetry::mute_event_lost();
        };
        runtime.spawn(async move { lost.0.query(&request).await });
    }

    /// Queries the store until it replies, or the mute would be over.
    ///
    /// It does not impose the mute again, because the mute may have been lifted meanwhile.
    async fn query(&self, request: &MuteRequest) {
        let end = Instant::now() + request.reason.rule.mute();
        let (mut pause, mut was_absent) = (FIRST_PAUSE, false);
        while Instant::now() < end {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.store.mute_outcome(request).await {
                Ok(outcome) if self.report(request, &outcome) => return,
                // Once more: a call on an abandoned connection may run late.
                Ok(_) if !was_absent => was_absent = true,
                Ok(_) => return,
                Err(error) => error.report(),
            }
        }
    }
}

/// Starts a query if a call that imposes a mute ends without a reply.
struct LostReplyGuard<'a> {
    audit: &'a Arc<Audit>,
    request: &'a MuteRequest,
    is_lost: bool,
}

impl Drop for LostReplyGuard<'_> {
    fn drop(&mut self) {
        if self.is_lost {
            self.audit.spawn_query(self.request.clone());
        }
    }
}

/// A lost reply, counted until it is dropped.
struct LostReply(Arc<Audit>);

impl LostReply {
    /// Counts a lost reply, unless there are too many.
    fn new(audit: &Arc<Audit>) -> Option<Self> {
        let is_counted = audit.lost_replies.send_if_modified(|lost| {
            let has_room = *lost < MAX_LOST_REPLIES;
            *lost += usize::from(has_room);
            has_room
        });
        is_counted.then(|| Self(audit.clone()))
    }
}

impl Drop for LostReply {
    fn drop(&mut self) {
        self.0.lost_replies.send_modify(|lost| *lost -= 1);
    }
}
