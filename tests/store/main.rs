//! The stores: Redis, in process, and the deny cache.

mod acl;
mod batch;
mod commands;
mod deny_cache;
mod explain;
mod memory;
mod metrics;
mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use test_support::proxy::{Fault, Proxy};
use test_support::recorder::RecordedMetrics;
use test_support::requests::*;
use test_support::warnings::Warnings;
use test_support::*;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep, timeout};
use tokio_test::{assert_pending, task};
use tower::{Layer, service_fn};
use tower_sliding_window::store::{Check, LogId, Outcome, Store, Strike};
use tower_sliding_window::*;
