//! [`Stop`]: SIGTERM and Ctrl-C, and how long a server then waits for its requests.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long requests may take to end once the server has been asked to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Says when the server is to stop.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

/// Begins to listen for SIGTERM and SIGINT.
pub(crate) fn signals() -> std::io::Result<Stop> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ask, asked) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: requests that are under way are answered first");
        ask.send_replace(true);
    });
    Ok(Stop(asked))
}

impl Stop {
    /// Waits until the server is asked to stop.
    pub(crate) async fn asked(mut self) {
        // An error means that the task above has ended, which it does only after a signal.
        let _ = self.0.wait_for(|asked| *asked).await;
    }

    /// Waits until the server has been asked to stop and its time for that is over.
    pub(crate) async fn over(self) {
        self.asked().await;
        tokio::time::sleep(PATIENCE).await;
    }
}
