//! [`Underlying`]: a store under the layers of this crate.

use std::future::Future;

use tokio::time::Instant;

use super::Store;
use crate::error::StoreError;
use crate::window::{Check, Outcome};

pub(super) type CheckResult = Result<Outcome, StoreError>;

/// A store under a [`Failover`](super::failover::Failover).
///
/// A layer that wraps the future of [`Store::admit`] needs a box for its own future. The layers under
/// a failover take these two steps instead, and share one box. It saves an admission over Redis two
/// allocations.
pub(super) trait Underlying: Store {
    /// What is known from before the check was sent.
    type Prepared: Send + Sync + 'static;

    /// Returns a denial that is known without a call, otherwise prepares the call. `now` is the present
    /// instant.
    fn prepare(&self, check: &Check, now: Instant) -> Result<Outcome, Self::Prepared>;

    /// Does what [`Store::admit`] does, after [`Underlying::prepare`]. `now` is the instant of the first
    /// poll, which may be later than that of `prepare`.
    fn send(
        &self,
        check: &Check,
        prepared: &Self::Prepared,
        now: Instant,
    ) -> impl Future<Output = CheckResult> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::store::faulty::Faulty;

    macro_rules! send_every_check {
        ($($store:ty),*) => {$(
            impl Underlying for $store {
                type Prepared = ();

                fn prepare(&self, _check: &Check, _now: Instant) -> Result<Outcome, ()> {
                    Err(())
                }

                async fn send(&self, check: &Check, (): &(), _now: Instant) -> CheckResult {
                    self.admit(check).await
                }
            }
        )*};
    }

    send_every_check!(MemoryStore, Faulty);
}
