//! Where a real chat writes its audit log, and sends its alerts.

use humantime::format_rfc3339_seconds;
use serde_json::json;
use tower_sliding_window::moderation::MuteEvent;

use example_support::webhook::{Webhook, plain};

/// Returns a hook that logs each mute, and sends it to the webhook.
///
/// User ids are logged at the level debug only. The webhook gets them.
pub(crate) fn hook(webhook: Webhook) -> impl Fn(&MuteEvent) + Send + Sync {
    move |event| {
        let (rule, reason) = (event.mute.rule(), event.mute.reason());
        tracing::info!(%rule, %reason, lengthened = event.lengthened, "audit: muted");
        let user = String::from_utf8_lossy(event.sender.as_bytes());
        tracing::debug!(?user, %rule, "audit: muted");
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
