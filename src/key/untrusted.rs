//! [`UntrustedPeers`]: whether a proxy that is not trusted seems to be in front of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::FORWARDED;
use http::request::Parts;

use crate::telemetry;

/// Only so many requests are looked at. Health checks may be among them.
const OBSERVED: u32 = 1_000;
const REPORTED_AFTER: u32 = 100;

/// What the first requests have shown about the peers of an extractor of addresses. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct UntrustedPeers(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    observed: AtomicU32,
    forwarded: AtomicU32,
}

impl UntrustedPeers {
    /// Warns once if many of the first requests were forwarded, and none by a trusted proxy.
    pub(super) fn observe(&self, parts: &Parts, is_trusted: bool) {
        let Counts { observed, forwarded } = &*self.0;
        if !cfg!(feature = "tracing") || observed.load(Ordering::Relaxed) >= OBSERVED {
            return;
        }
        if is_trusted {
            observed.store(OBSERVED, Ordering::Relaxed);
            return;
        }
        observed.fetch_add(1, Ordering::Relaxed);
        let headers = &parts.headers;
        if (headers.contains_key("x-forwarded-for") || headers.contains_key(FORWARDED))
            && forwarded.fetch_add(1, Ordering::Relaxed) + 1 == REPORTED_AFTER
        {
            observed.store(OBSERVED, Ordering::Relaxed);
            telemetry::proxy_not_trusted(REPORTED_AFTER);
        }
    }
}
