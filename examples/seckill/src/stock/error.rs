//! [`StockError`]: why the stock has no reply, or no reply that is safe.

use std::time::Duration;

use axum::http::StatusCode;
use example_support::logs::Throttle;
use example_support::problem::Problem;
use tower_sliding_window::StoreError;

use crate::order::Sku;

/// When to try again what too few replicas have confirmed.
const SOON: Duration = Duration::from_secs(1);
/// When to try again while an operator has to do something.
const LATER: Duration = Duration::from_secs(10);

/// Why the stock has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StockError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The order stands on the master only, and would be lost with it.
    #[error("{confirmed} of {wanted} replicas have the order")]
    NotReplicated { confirmed: u32, wanted: u32 },
    /// Redis has lost a SKU that this server was started with.
    #[error("Redis has lost the stock of {0}")]
    Lost(Sku),
}

const MAY_STAND: &str =
    "It may stand. Send the same request again to find out: it never orders twice.";

impl StockError {
    /// Returns the problem of a request to order, which says whether the order may stand.
    pub(crate) fn of_an_order(self) -> Problem {
        match self {
            Self::Store(error) if error.may_have_counted() => {
                Problem::from(error).detail(MAY_STAND)
            }
            Self::Store(error) => Problem::from(error).detail("No order was placed."),
            other => other.into(),
        }
    }
}

impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        static NOT_REPLICATED: Throttle = Throttle::new();
        static LOST: Throttle = Throttle::new();
        match error {
            StockError::Store(error) => error.into(),
            StockError::NotReplicated { confirmed, wanted } => {
                NOT_REPLICATED.log(move |times| {
                    tracing::warn!(
                        confirmed,
                        wanted,
                        times,
                        "orders are answered with 503: too few replicas confirm them"
                    );
                });
                let title = "The order is not safe yet";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-replicated", title)
                    .detail(MAY_STAND)
                    .retry_after(SOON)
            }
            StockError::Lost(sku) => {
                LOST.log(move |times| {
                    tracing::error!(
                        %sku,
                        times,
                        "REDIS HAS LOST THE STOCK OF A SKU ON SALE, and maybe orders: nothing is sold \
                         until an operator has restored SKU and orders, or set the stock anew"
                    );
                });
                let title = "The stock of this SKU is not known";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stock-lost", title).retry_after(LATER)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::response::IntoResponse;

    use super::*;

    #[tokio::test]
    async fn a_503_says_whether_the_order_may_stand() {
        for (error, detail) in [
            (StoreError::Timeout, MAY_STAND),
            (StoreError::Unavailable, "No order was placed."),
            (StoreError::Overloaded, "No order was placed."),
        ] {
            let response = StockError::from(error).of_an_order().into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let body = to_bytes(response.into_body(), 10_000).await.unwrap();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["detail"], detail);
        }
    }
}
