//! What operators hear of: mutes and storms, in the log and at the webhook. User ids are logged at the
//! level debug only; the webhook gets them.

use example_support::logs::Throttle;
use example_support::webhook::{Webhook, plain};
use humantime::format_rfc3339_seconds;
use serde_json::json;
use tower_sliding_window::moderation::MuteEvent;
use tower_sliding_window::storm::StormEvent;

/// Returns a hook for mutes.
pub(crate) fn of_mutes(webhook: Webhook) -> impl Fn(&MuteEvent) + Send + Sync {
    static MUTED: Throttle = Throttle::new();
    move |event| {
        let (mute, lengthened) = (event.mute.clone(), event.lengthened);
        let user = String::from_utf8_lossy(event.sender.as_bytes()).into_owned();
        let (rule, reason) = (mute.rule().to_string(), mute.reason().to_string());
        let until = format_rfc3339_seconds(mute.until()).to_string();
        webhook.send(&json!({
            "text": plain(&format!("{user:?} is muted until {until}: {reason}")),
            "alert": "mute",
            "user": user,
            "rule": rule,
            "reason": reason,
            "until": until,
            "lengthened": lengthened,
        }));
        MUTED.log(move |times| {
            tracing::info!(rule, reason, lengthened, times, "audit: muted");
            tracing::debug!(?user, rule, "audit: muted");
        });
    }
}

/// Returns a hook for storms. Each starts once and ends once in the whole fleet.
pub(crate) fn of_storms(webhook: Webhook) -> impl Fn(&StormEvent) + Send + Sync {
    move |event| {
        let room = String::from_utf8_lossy(event.group().as_bytes());
        let what = match event {
            StormEvent::Started { count, threshold, .. } => {
                format!("has a storm: {count} messages, more than {threshold}")
            }
            StormEvent::Ended { peak, lasted, .. } => {
                format!("has no storm any more: it had {peak} messages and lasted {lasted:.0?}")
            }
            _ => return,
        };
        tracing::warn!(?room, "audit: the room {what}");
        webhook.send(&json!({
            "text": plain(&format!("the room {room:?} {what}")),
            "alert": if event.is_start() { "storm" } else { "storm over" },
            "room": room,
        }));
    }
}
