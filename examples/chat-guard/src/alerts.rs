//! What operators hear of: mutes and storms, in the log and at the webhook. User ids are logged at the
//! level debug only; the webhook gets them.

use example_support::problem::whole_seconds;
use example_support::webhook::{Webhook, plain};
use message_storm::StormEvent;
use serde_json::json;
use speech_monitor::MuteEvent;
use tower_sliding_window::Quota;

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

/// Returns a hook for storms. Each starts once and ends once in the whole fleet.
pub(crate) fn of_storms(webhook: Webhook, threshold: Quota) -> impl Fn(&StormEvent) + Send + Sync {
    move |event| {
        let room = String::from_utf8_lossy(event.group().as_bytes());
        let (alert, what) = match event {
            StormEvent::Started { count, .. } => {
                ("storm", format!("has a storm: {count} messages, more than {threshold}"))
            }
            StormEvent::Ended { peak, lasted, .. } => (
                "storm over",
                format!("has no storm any more: it had {peak} messages and lasted {lasted:.0?}"),
            ),
            _ => return,
        };
        tracing::warn!("audit: a room {what}");
        tracing::debug!(?room, "audit: the room {what}");
        webhook.send(json!({
            "text": plain(&format!("the room {room:?} {what}")),
            "alert": alert,
            "room": room,
        }));
    }
}
