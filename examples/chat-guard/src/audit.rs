//! Where a real chat writes its audit log, and sends its alerts.

use humantime::format_rfc3339_seconds;
use serde_json::json;
use tower_sliding_window::moderation::MuteEvent;

use example_support::logs::Throttle;
use example_support::webhook::{Webhook, plain};

static MUTED: Throttle = Throttle::new();

/// Returns a hook that logs mutes, and sends each to the webhook.
///
/// User ids are logged at the level debug only. The webhook gets them.
pub(crate) fn hook(webhook: Webhook) -> impl Fn(&MuteEvent) + Send + Sync {
    move |event| {
        let (mute, user) = (event.mute.clone(), event.sender.clone());
        let lengthened = event.lengthened;
        MUTED.log(move |times| {
            let (rule, reason) = (mute.rule(), mute.reason());
            tracing::info!(%rule, %reason, lengthened, times, "audit: muted");
            let user = String::from_utf8_lossy(user.as_bytes());
            tracing::debug!(?user, %rule, "audit: muted");
        });
        let (rule, reason) = (event.mute.rule(), event.mute.reason());
        let user = String::from_utf8_lossy(event.sender.as_bytes());
        let until = format_rfc3339_seconds(event.mute.until()).to_string();
        webhook.send(&json!({
            "text": plain(&format!("{user:?} is muted until {until}: {reason}")),
            "alert": "mute",
            "user": user,
            "rule": rule.to_string(),
            "reason": reason.to_string(),
            "until": until,
            "lengthened": event.lengthened,
        }));
    }
}
