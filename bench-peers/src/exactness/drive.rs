//! Sends requests to a limiter and keeps what it replied, and when.

use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::WINDOW;
use super::limiters::Limiter;
use super::model::{Faults, Request};
use super::traffic::{self, Burst};
use crate::setup::LIMIT;

/// The keys that wait as long as `Retry-After` says, and try again.
const PATIENT_KEYS: u64 = 4;
/// How far apart the limiters get the same request, so that they do not all work at once.
const APART: Duration = Duration::from_millis(7);

/// What a limiter did.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) faults: Faults,
    /// How often a key waited alone as long as `Retry-After` said, and how often it was denied again.
    pub(crate) waits: usize,
    pub(crate) denied_again: usize,
}

/// Sends all traffic to a limiter. Its keys begin with its number: some limiters share a server.
pub(crate) async fn findings(number: usize, limiter: Limiter) -> Result<Findings> {
    let start = Instant::now() + APART * number as u32;
    let (mut busy, mut patient) = (JoinSet::new(), JoinSet::new());
    for key in 0..traffic::KEYS {
        let (limiter, name) = (limiter.clone(), format!("{number}b{key}"));
        busy.spawn(send(limiter, name, start, traffic::of_key(key, WINDOW)));
    }
    for key in 0..PATIENT_KEYS {
        let (limiter, name) = (limiter.clone(), format!("{number}p{key}"));
        patient.spawn(wait_and_retry(limiter, name, start, key));
    }
    let mut findings = Findings::default();
    while let Some(requests) = busy.join_next().await {
        findings.faults.add(&Faults::of(requests??, LIMIT as usize, WINDOW));
    }
    while let Some(waits) = patient.join_next().await {
        let (waits, denied_again) = waits??;
        findings.waits += waits;
        findings.denied_again += denied_again;
    }
    Ok(findings)
}

async fn check(limiter: Limiter, key: String, start: Instant) -> Result<Request> {
    let before = start.elapsed();
    let reply = (limiter.check)(key).await?;
    let after = start.elapsed();
    let (is_admitted, retry_after) = (reply.is_admitted, reply.retry_after);
    Ok(Request { before, after, is_admitted, retry_after })
}

async fn send(
    limiter: Limiter,
    key: String,
    start: Instant,
    traffic: Vec<Burst>,
) -> Result<Vec<Request>> {
    let mut replies = JoinSet::new();
    for Burst { at, requests } in traffic {
        sleep_until((start + at).into()).await;
        for _ in 0..requests {
            replies.spawn(check(limiter.clone(), key.clone(), start));
        }
    }
    replies.join_all().await.into_iter().collect()
}

/// Uses up a key's requests at random distances, then waits as long as the denial says. The next
/// request should be admitted. Returns how often it waited, and how often it was denied again.
async fn wait_and_retry(
    limiter: Limiter,
    key: String,
    start: Instant,
    seed: u64,
) -> Result<(usize, usize)> {
    let mut random = Rng::with_seed(seed);
    let (mut waits, mut denied_again) = (0, 0);
    sleep_until(start.into()).await;
    while start.elapsed() < traffic::LENGTH {
        let reply = check(limiter.clone(), key.clone(), start).await?;
        match reply.retry_after {
            Some(retry_after) => {
                sleep(retry_after).await;
                let again = check(limiter.clone(), key.clone(), start).await?;
                waits += 1;
                denied_again += usize::from(!again.is_admitted);
                sleep(WINDOW.mul_f64(random.f64())).await;
            }
            None => sleep(WINDOW.mul_f64(random.f64() * 0.19)).await,
        }
    }
    Ok((waits, denied_again))
}
