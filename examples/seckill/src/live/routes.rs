//! The routes of the live page: its files, and the samples as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::stream::{Stream, unfold};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::sampler::Sampler;
use crate::pages::Asset;
use example_support::problem::Problem;

/// The most viewers at one time. The listener has 64 connections for all operators.
const VIEWERS: usize = 16;

/// Returns the files of the page. They hold no data, so they need no token.
pub(crate) fn pages() -> Router {
    let scripts = [
        ("/live.js", include_str!("../pages/live.js")),
        ("/stream.js", include_str!("../pages/stream.js")),
        ("/chart.js", include_str!("../pages/chart.js")),
        ("/attempt.js", include_str!("../pages/attempt.js")),
        ("/operate.js", include_str!("../pages/operate.js")),
        ("/policies.js", include_str!("../pages/policies.js")),
        ("/explain.js", include_str!("../pages/explain.js")),
    ];
    let pages = Router::new()
        .route("/", Asset::html(include_str!("../pages/live.html")).route())
        .route("/live.css", Asset::css(include_str!("../pages/live.css")).route());
    scripts
        .into_iter()
        .fold(pages, |pages, (path, text)| pages.route(path, Asset::script(text).route()))
}

#[derive(Clone)]
struct Viewers {
    sampler: Arc<Sampler>,
    places: Arc<Semaphore>,
    /// Becomes true when the server is asked to stop.
    stopping: watch::Receiver<bool>,
}

/// Returns the route of the samples.
pub(crate) fn routes(sampler: Arc<Sampler>, stopping: watch::Receiver<bool>) -> Router {
    let places = Arc::new(Semaphore::new(VIEWERS));
    Router::new().route("/admin/live", get(live)).with_state(Viewers { sampler, places, stopping })
}

/// What one viewer holds.
struct Viewer {
    samples: watch::Receiver<Arc<str>>,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

/// Sends the counts of the last two minutes, and then each sample. A viewer that is slow misses some.
async fn live(
    State(viewers): State<Viewers>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Ok(place) = viewers.places.clone().try_acquire_owned() else {
        let title = "Too many viewers";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-viewers", title)
            .detail(format!("There may be {VIEWERS} at one time: close another page."))
            .retry_after(Duration::from_secs(5)));
    };
    let samples = viewers.sampler.view();
    let history = viewers.sampler.history().to_string();
    let viewer = Viewer { samples, stopping: viewers.stopping, _place: place };
    Ok(Sse::new(unfold((Some(history), viewer), next)))
}

type Step = (Option<String>, Viewer);

async fn next((history, mut viewer): Step) -> Option<(Result<Event, Infallible>, Step)> {
    if let Some(history) = history {
        let event = Event::default().event("history").data(history);
        return Some((Ok(event), (None, viewer)));
    }
    tokio::select! {
        changed = viewer.samples.changed() => changed.ok()?,
        _ = viewer.stopping.wait_for(|asked| *asked) => return None,
    }
    let sample = viewer.samples.borrow_and_update().clone();
    Some((Ok(Event::default().event("sample").data(&*sample)), (None, viewer)))
}
