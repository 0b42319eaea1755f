//! [`Stop`]: SIGTERM and Ctrl-C, and how long a server then waits for its requests.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long requests may take to end once the server has been asked to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Says when the server is to stop. Clones are told together.
#[derive(Clone)]
pub(crate) struct Stop(CancellationToken);

/// Begins to listen for SIGTERM and SIGINT.
pub(crate) fn signals() -> std::io::Result<Stop> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = Stop(CancellationToken::new());
    let asked = stop.0.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: requests that are under way are answered first");
        asked.cancel();
    });
    Ok(stop)
}

impl Stop {
    /// Waits until the server is asked to stop.
    pub(crate) async fn asked(self) {
        self.0.cancelled().await;
    }

    /// Waits until the server has been asked to stop and has had its time.
    pub(crate) async fn over(self) {
        self.0.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    }
}
