//! [`Audit`]: tells the hook of each mute, also if the reply that says so is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::decision::{Mute, MuteEvent};
use super::store::{MuteOutcome, MuteRequest, SpeechStore};
use crate::error::StoreError;
use crate::hook::Hook;
use crate::telemetry;

/// How many lost replies are asked about at once.
const AT_MOST: usize = 1_000;
/// How long to wait before the store is asked about a lost reply; at first, and at the most.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Imposes mutes, and tells the hook of them.
pub(super) struct Audit {
    store: Arc<dyn SpeechStore>,
    hook: Option<Hook<MuteEvent>>,
    /// How many lost replies are asked about.
    lost: AtomicUsize,
    settled: Notify,
}

impl Audit {
    pub(super) fn new(store: Arc<dyn SpeechStore>, hook: Option<Hook<MuteEvent>>) -> Arc<Self> {
        Arc::new(Self { store, hook, lost: AtomicUsize::new(0), settled: Notify::new() })
    }

    /// Returns how many times the hook has panicked.
    pub(super) fn panicked(&self) -> u64 {
        self.hook.as_ref().map_or(0, Hook::panics)
    }

    /// Asks the store for a mute, and returns the one that stands then.
    pub(super) async fn impose(
        self: &Arc<Self>,
        request: MuteRequest,
    ) -> Result<Option<Mute>, StoreError> {
        let mut call = Call { audit: self, request: &request, is_lost: true };
        let imposed = self.store.mute(&request).await;
        call.is_lost = imposed.as_ref().is_err_and(StoreError::may_have_counted);
        drop(call);
        let imposed = imposed?;
        self.tell(&request, &imposed);
        Ok(imposed.mute)
    }

    /// Waits until the store has been asked about all replies that were lost.
    pub(super) async fn settled(&self) {
        loop {
            let one_less = self.settled.notified();
            if self.lost.load(Ordering::Acquire) == 0 {
                return;
            }
            one_less.await;
        }
    }

    /// Tells of a mute if it stands by this request; says whether it does.
    fn tell(&self, request: &MuteRequest, imposed: &MuteOutcome) -> bool {
        let (Some(mute), true) = (&imposed.mute, imposed.by_this) else { return false };
        telemetry::muted(mute.rule());
        if let Some(hook) = &self.hook {
            let (sender, mute) = (request.sender.clone(), mute.clone());
            hook.call(&MuteEvent { sender, mute, lengthened: imposed.lengthened });
        }
        true
    }

    /// Has the store asked later whether a mute stands of which the reply was lost.
    fn ask_later(self: &Arc<Self>, request: MuteRequest) {
        let one_more = |lost: usize| (lost < AT_MOST).then_some(lost + 1);
        let counted = self.lost.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        match Handle::try_current() {
            Ok(runtime) if counted.is_ok() => {
                let lost = Lost(self.clone());
                runtime.spawn(async move { lost.0.ask(&request).await });
            }
            _ => {
                drop(counted.ok().map(|_| Lost(self.clone())));
                telemetry::mute_event_lost();
            }
        }
    }

    /// Asks until the store answers, or the mute would be over.
    ///
    /// It asks and does not impose again: the mute may have been lifted meanwhile.
    async fn ask(&self, request: &MuteRequest) {
        let over = Instant::now() + request.reason.rule.mute();
        let (mut pause, mut was_absent) = (FIRST_PAUSE, false);
        while Instant::now() < over {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.store.imposed(request).await {
                Ok(imposed) if self.tell(request, &imposed) => return,
                // Once more: on a connection that was given up the call may run late.
                Ok(_) if !was_absent => was_absent = true,
                Ok(_) => return,
                Err(error) => error.report(),
            }
        }
    }
}

/// A call that imposes a mute. If its reply is lost, or the caller leaves before it comes, the store
/// is asked later: the call may have muted the sender.
struct Call<'a> {
    audit: &'a Arc<Audit>,
    request: &'a MuteRequest,
    is_lost: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.is_lost {
            self.audit.ask_later(self.request.clone());
        }
    }
}

/// A lost reply, counted as long as this lives.
struct Lost(Arc<Audit>);

impl Drop for Lost {
    fn drop(&mut self) {
        self.0.lost.fetch_sub(1, Ordering::AcqRel);
        self.0.settled.notify_waiters();
    }
}
