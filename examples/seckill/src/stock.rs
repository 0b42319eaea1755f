//! [`Stock`]: what is for sale, the draws, and the orders.

mod memory;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tower_sliding_window::StoreError;

pub(crate) use self::memory::MemoryStock;
pub(crate) use self::redis::{KEYS, MinReplicas, RedisStock};
use crate::draw::Draw;
use crate::names::Sku;
use crate::opening::Opening;
use example_support::logs::Throttle;
use example_support::problem::{Problem, may_stand};

/// A SKU that is for sale.
pub(crate) struct OnSale {
    pub(crate) sku: Sku,
    /// Or nothing if it goes to who comes first.
    pub(crate) draw: Option<Draw>,
    pub(crate) records: Records,
}

/// The stock and the orders of a SKU, in this process or in Redis.
///
/// In both, a call is one atomic step: never more orders than stock, and never two orders of one user.
pub(crate) enum Records {
    Memory(Box<MemoryStock>),
    Redis(Arc<RedisStock>),
}

/// The terms of a sale.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) opening: Opening,
    /// Whether what is new on sale is drawn.
    pub(crate) draws: bool,
    pub(crate) turn: Duration,
    pub(crate) pay_within: Duration,
}

/// What to do with a SKU. `sale.lua` describes the parts.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    Order {
        user: &'a str,
        order: &'a str,
        ticket: u64,
    },
    /// A payment that buys nothing is kept for a refund if the payment provider vouches for it.
    Pay {
        order: &'a str,
        payment: &'a str,
        is_real: bool,
    },
    /// The place is that of an entry before the opening.
    Enter {
        user: &'a str,
        place: u64,
    },
    /// Where a user is.
    Entry {
        user: &'a str,
    },
}

/// What came of a call, or where a user of a draw is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The order stands.
    Placed,
    /// The user has another order for this SKU.
    Held,
    SoldOut,
    /// The turn of the ticket has ended.
    TurnOver,
    /// Not in the draw, or not any more.
    None,
    /// In the draw, which has not been.
    Entered,
    Turn,
    Waiting,
    /// The user has an order that is not paid.
    Ordered,
    /// The user has an order that is paid. To `Pay`: this order is paid by this payment.
    Paid,
    /// There is nothing left that could come to those in line.
    Over,
    /// The order was not paid in time.
    TooLate,
    /// The order is paid by another payment.
    AlreadyPaid,
    /// The payment is of another order.
    PaymentUsed,
    /// There is no such order.
    Unknown,
    /// There is no such SKU, or a part of its records is lost.
    Lost,
    Done,
}

pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    /// The UUID of the order that the user has.
    pub(crate) order: String,
    /// The end of the turn, or the time until which the order can be paid, in microseconds since 1970, or 0; or
    /// the place in line.
    pub(crate) number: u64,
    /// The time of the store.
    pub(crate) now_us: u64,
    /// In line, the time of an end that the user needs for a turn, or 0 if other turns must begin before.
    pub(crate) news_us: u64,
}

impl Reply {
    /// Returns how long it is until a time of the reply, if there is one.
    pub(crate) fn until(&self, time_us: u64) -> Option<Duration> {
        (time_us > 0).then(|| Duration::from_micros(time_us.saturating_sub(self.now_us)))
    }
}

/// How much of a SKU there was, and what has become of it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Level {
    pub(crate) stock: u32,
    /// Pieces that orders hold.
    pub(crate) sold: u32,
    pub(crate) paid: u32,
    /// Users in line.
    pub(crate) entries: u32,
    pub(crate) turns: u32,
}

impl Level {
    pub(crate) fn left(&self) -> u32 {
        self.stock.saturating_sub(self.sold)
    }
}

impl OnSale {
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Reply, StockError> {
        match &self.records {
            Records::Memory(stock) => Ok(stock.call(call)),
            Records::Redis(stock) => stock.call(call).await,
        }
    }

    /// Returns how much is sold.
    pub(crate) fn level(&self) -> Result<Level, StockError> {
        match &self.records {
            Records::Memory(stock) => Ok(stock.level()),
            Records::Redis(stock) => stock.level(),
        }
    }

    /// Returns why no piece can be sold, if so.
    pub(crate) fn trouble(&self) -> Option<StockError> {
        match &self.records {
            Records::Memory(_) => None,
            Records::Redis(stock) => stock.trouble(),
        }
    }
}

/// Why the stock has no answer, or none that is safe.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StockError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It stands on the master only, and would be lost with it.
    #[error("{confirmed} of {wanted} replicas have it")]
    NotReplicated { confirmed: u32, wanted: u32 },
    /// The other replicas may not follow the new master yet.
    #[error(
        "a replica has just left its master or does not follow it yet, and may be the next one"
    )]
    ReplicaLeft,
    /// Redis has lost a SKU that this server was started with.
    #[error("Redis has lost the stock of {0}")]
    Lost(Sku),
}

/// After how long to try again in an outage. Each second, the tries would use up a quota whose wait outlasts a turn.
const OUTAGE: Duration = Duration::from_secs(5);
const MAY_STAND: &str =
    "It may stand. Send the same request again to find out: it never counts twice.";

impl StockError {
    /// Returns the problem of a request that orders, enters or pays, which says whether that may stand.
    pub(crate) fn of_a_change(self) -> Problem {
        let detail = match &self {
            Self::NotReplicated { .. } | Self::ReplicaLeft => MAY_STAND,
            Self::Store(error) if may_stand(error) => MAY_STAND,
            Self::Store(_) | Self::Lost(_) => "Nothing was changed.",
        };
        Problem::from(self).detail(detail)
    }
}

impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        static LOGGED: Throttle = Throttle::new();
        let (kind, title, wait) = match error {
            StockError::Store(error) => return Self::from(error).retry_after(OUTAGE),
            StockError::NotReplicated { .. } | StockError::ReplicaLeft => {
                ("not-replicated", "It is not safe yet", OUTAGE)
            }
            StockError::Lost(_) => ("stock-lost", "The stock of this SKU is not known", 2 * OUTAGE),
        };
        LOGGED.log(move |times| {
            tracing::error!(%error, times, "orders, entries and payments are answered with 503");
        });
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, title).retry_after(wait)
    }
}
