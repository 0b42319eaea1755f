//! [`Session`]: from messages that come in to alerts that go out.

use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tower_sliding_window::{StoreError, StormDetector, StormEvent};

use crate::alert::{Alert, Steps};
use crate::common::lines::Unread;
use crate::line::{Line, LineError};

/// How often it is said what is waited for.
const REMINDER: Duration = Duration::from_secs(10);

/// Records messages as they come, and says on `out` when a storm starts or ends.
pub(crate) struct Session<W> {
    detector: StormDetector,
    /// What the detector's hook was told of.
    events: mpsc::UnboundedReceiver<StormEvent>,
    wait_for_ends: bool,
    profile: Option<Duration>,
    out: W,
    summary: Summary,
}

/// What a session has to say when it is over.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// How many messages were recorded.
    pub(crate) recorded: u64,
    /// How many messages the store did not answer about.
    pub(crate) failed: u64,
    /// The line of the first of them, and why.
    pub(crate) failed_first: Option<(u64, StoreError)>,
    /// Why the input ended early, if it did.
    pub(crate) unreadable: Option<LineError>,
}

impl<W: Write> Session<W> {
    /// Creates a session that goes on after the input until all storms are over, if it is to wait
    /// for that.
    pub(crate) fn new(
        detector: StormDetector,
        wait_for_ends: bool,
        profile: Option<Duration>,
        out: W,
    ) -> Self {
        let (tell, events) = mpsc::unbounded_channel();
        let detector = detector.on_event(move |event| {
            // Once the session is over nobody listens.
            let _ = tell.send(event.clone());
        });
        Self { detector, events, wait_for_ends, profile, out, summary: Summary::default() }
    }

    /// Goes on until the input is at its end, and perhaps all storms too, or until `stop`.
    pub(crate) async fn run(
        mut self,
        mut lines: mpsc::Receiver<Line>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<Summary> {
        let mut stop = pin!(stop);
        let is_over = loop {
            tokio::select! {
                biased;
                () = &mut stop => break false,
                Some(event) = self.events.recv() => self.print(&event).await?,
                line = lines.recv() => match line {
                    Some((number, line)) => self.take(number, line).await,
                    None => break true,
                },
            }
        };
        if is_over && self.wait_for_ends {
            self.wait(stop).await?;
        }
        self.detector.flush().await;
        while let Ok(event) = self.events.try_recv() {
            self.print(&event).await?;
        }
        Ok(self.summary)
    }

    async fn take(&mut self, number: u64, line: Result<crate::line::Message, LineError>) {
        match line {
            Ok(message) => match self.detector.record(message.group, message.id).await {
                Ok(_) => self.summary.recorded += 1,
                Err(error) => {
                    self.summary.failed += 1;
                    self.summary.failed_first.get_or_insert((number, error));
                }
            },
            Err(error @ LineError::Unread(Unread::Input(_))) => {
                self.summary.unreadable = Some(error)
            }
            Err(error) => note(format_args!("line {number} is skipped: {error}")),
        }
    }

    /// Waits until no storm goes on that this process knows of.
    async fn wait(&mut self, mut stop: impl Future<Output = ()> + Unpin) -> io::Result<()> {
        note(format_args!("the input has ended; messages recorded: {}", self.summary.recorded));
        let detector = self.detector.clone();
        let mut settled = pin!(detector.settled());
        let mut reminders = tokio::time::interval(REMINDER);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                Some(event) = self.events.recv() => self.print(&event).await?,
                () = &mut settled => return Ok(()),
                _ = reminders.tick() => note(format_args!(
                    "waiting for the end of storms: {} (Ctrl-C stops)",
                    detector.watched()
                )),
            }
        }
    }

    async fn print(&mut self, event: &StormEvent) -> io::Result<()> {
        writeln!(self.out, "{}", Alert(event))?;
        if let (Some(step), true) = (self.profile, event.is_start()) {
            match self.detector.profile(event.group().clone(), step).await {
                Ok(profile) => writeln!(self.out, "{}", Steps(event.group(), &profile))?,
                Err(error) => note(format_args!("there is no profile: {error}")),
            }
        }
        self.out.flush()
    }
}

/// Says something to whoever watches, if anybody does: nothing of it is an alert.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}
