//! From the command line to the app: opens the stores, or says why that can't be.

use std::sync::Arc;

use axum::Router;
use tower_sliding_window::MemoryStore;

use crate::alerts::Alerts;
use crate::args::Args;
use crate::bucket::{Bucket, TooFast};
use crate::controller::{self, Results};
use crate::downstream::Downstream;
use crate::gateway::{Gateway, limiter};
use crate::levels::Levels;
use crate::policies::Policies;
use crate::routes::{App, routes};
use crate::shared::Shared;
use crate::sum::GlobalTooLow;
use example_support::redis::OpenError;
use example_support::server::ServerError;

/// Opens the stores, returns the app, and spawns the tasks that run beside the requests.
pub(crate) async fn app(args: Args) -> Result<Router, StartError> {
    let global = args.global.0;
    let levels = Arc::new(Levels::new(args.thresholds()));
    let (bound, targets) = (args.bound(), args.targets());
    let results = Results::new(&targets);
    let redis = args.redis.connect(&args.prefix).await?;

    let policies = match &redis {
        Some(redis) => {
            let shared = Shared::new(redis.store.commands(), &args.prefix.0);
            Policies::shared(levels.clone(), global, shared)
                .await
                .map_err(|source| redis.unusable(source))?
        }
        None => Policies::alone(levels.clone(), global),
    };
    // Policies that were changed earlier, and are kept in Redis, replace those of the flags.
    let sum = levels.configured().sum();
    let burst = sum.burst_above(global);
    sum.check(global)?;
    if let Some(burst) = burst {
        tracing::warn!(
            "the levels may admit {burst} messages at once, and the bucket of --global {global} holds \
             fewer: the rest get 503. A longer window of the same rate, such as 6000/60s for \
             100/1s, holds more"
        );
    }

    let limiter = match &redis {
        Some(redis) => {
            tracing::info!(addresses = %redis.addresses, "windows and policies are kept in Redis");
            limiter(redis.store.clone(), args.failure.on_failure)
        }
        None => {
            tracing::info!("windows and policies are kept in this process");
            limiter(MemoryStore::new(), args.failure.on_failure)
        }
    };
    let gateway = Gateway {
        limiter,
        bucket: Bucket::new(global)?,
        levels: levels.clone(),
        alerts: Alerts::new(bound),
        downstream: Downstream::new(args.conduct()),
        results: results.clone(),
    };
    let (gateway, policies) = (Arc::new(gateway), Arc::new(policies));

    tokio::spawn(controller::run(targets, results, levels, args.adapt));
    tokio::spawn({
        let gateway = gateway.clone();
        async move { gateway.alerts.run(bound).await }
    });
    if redis.is_some() {
        let policies = policies.clone();
        tokio::spawn(async move { policies.run().await });
    }
    Ok(routes(App { gateway, policies, idle_timeout: args.listen.idle_timeout.0 }))
}

/// Why the server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "{0}\n\
         hint: start with --global {enough}/1s or more, or lower --institution-limit or the limit \
         of an --institution; policies that were changed by PUT /policies are kept in Redis and \
         replace these flags",
        enough = .0.enough()
    )]
    GlobalTooLow(#[from] GlobalTooLow),
    #[error(transparent)]
    TooFast(#[from] TooFast),
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error(transparent)]
    Server(#[from] ServerError),
}
