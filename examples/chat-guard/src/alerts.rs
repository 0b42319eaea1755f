//! What operators hear of: mutes, in the log and at the webhook. User ids are logged at the level debug only;
//! the webhook gets them.

use example_support::problem::whole_seconds;
use example_support::webhook::{Webhook, plain};
use serde_json::json;
use speech_monitor::MuteEvent;

/// Returns a hook for mutes.
pub(crate) fn of_mutes(webhook: Webhook) -> impl Fn(&MuteEvent) + Send + Sync {
    move |event| {
        let user = String::from_utf8_lossy(event.sender.as_bytes()).into_owned();
        let (reason, lengthened) = (event.mute.reason.clone(), event.lengthened);
        let seconds = whole_seconds(event.mute.remaining);
        webhook.send(json!({
            "text": plain(&format!("{user:?} is muted for {seconds} s: {reason}")),
            "alert": "mute",
            "user": user,
            "reason": reason,
            "remaining_seconds": seconds,
            "lengthened": lengthened,
        }));
        // Each of them: it is for an audit, and a mute is rare beside the messages.
        tracing::info!(reason, lengthened, "audit: muted");
        tracing::debug!(?user, reason, "audit: muted");
    }
}
