//! [`Session`]: from lines of input to lines of output.

use std::future::Future;
use std::io::{self, Write};
use std::pin::pin;

use tokio::sync::mpsc;
use tower_sliding_window::Limiter;

use crate::common::lines::Unread;
use crate::line::{Line, LineError, Message};
use crate::outbox::{Offer, Outbox, admit};
use crate::result::{Outcome, Reason, ResultLine};

/// Decides on messages as they come, and says on `out` what became of each.
pub(crate) struct Session<W> {
    limiter: Limiter,
    /// Where messages wait, if they do.
    outbox: Option<Outbox<Message>>,
    show_text: bool,
    out: W,
    summary: Summary,
}

/// What a session has to say when it is over.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// How many messages were dropped because too many waited.
    pub(crate) dropped: u64,
    /// How many messages nobody could decide on.
    pub(crate) failed: u64,
    /// What came of being asked to stop, if that is why it is over.
    pub(crate) stopped: Option<Stopped>,
    /// Why the input ended early, if it did.
    pub(crate) unreadable: Option<LineError>,
}

/// How a session was stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// The last line of the input that was dealt with.
    pub(crate) after_line: u64,
    /// How many messages waited and were not sent.
    pub(crate) not_sent: usize,
}

impl<W: Write> Session<W> {
    /// Creates a session in which up to `waiting_at_most` messages wait, or none if that is left
    /// out.
    pub(crate) fn new(
        limiter: Limiter,
        waiting_at_most: Option<usize>,
        show_text: bool,
        out: W,
    ) -> Self {
        let outbox = waiting_at_most.map(|at_most| Outbox::new(limiter.clone(), at_most));
        Self { limiter, outbox, show_text, out, summary: Summary::default() }
    }

    /// Goes on until the lines are at their end and nothing waits, or until `stop`.
    pub(crate) async fn run(
        mut self,
        mut lines: mpsc::Receiver<Line>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<Summary> {
        let (mut stop, mut last_line, mut at_end) = (pin!(stop), 0, false);
        while !at_end || self.waiting() > 0 {
            tokio::select! {
                biased;
                () = &mut stop => {
                    self.stop(last_line)?;
                    break;
                }
                () = due(self.outbox.as_ref()) => self.send_due().await?,
                line = lines.recv(), if !at_end => match line {
                    Some((number, line)) => {
                        last_line = number;
                        self.take(number, line).await?;
                    }
                    None => {
                        at_end = true;
                        self.say_what_waits();
                    }
                },
            }
        }
        Ok(self.summary)
    }

    async fn take(&mut self, number: u64, line: Result<Message, LineError>) -> io::Result<()> {
        let message = match line {
            Ok(message) => message,
            Err(error @ LineError::Unread(Unread::Input(_))) => {
                self.summary.unreadable = Some(error);
                return Ok(());
            }
            Err(error) => {
                eprintln!("line {number} is skipped: {error}");
                return Ok(());
            }
        };
        let outcome = match &mut self.outbox {
            Some(outbox) => match outbox.offer(&message.receiver, message.clone()).await {
                Offer::Admitted(_) => Outcome::Sent,
                Offer::Held(hold) => Outcome::Held(hold),
                Offer::NoRoom(_) => {
                    self.summary.dropped += 1;
                    Outcome::Dropped(Reason::TooManyWaiting)
                }
            },
            None => match admit(&self.limiter, &message.receiver).await {
                Ok(()) => Outcome::Sent,
                Err(hold) if hold.error.is_none() => Outcome::Held(hold),
                Err(hold) => {
                    self.summary.failed += 1;
                    Outcome::Failed(hold)
                }
            },
        };
        self.print(&message, &outcome)
    }

    async fn send_due(&mut self) -> io::Result<()> {
        let Some(outbox) = &mut self.outbox else { return Ok(()) };
        match outbox.try_due().await {
            Some(message) => self.print(&message, &Outcome::Sent),
            None => Ok(()),
        }
    }

    fn stop(&mut self, after_line: u64) -> io::Result<()> {
        let mut waiting = self.outbox.as_mut().map(Outbox::take_all).unwrap_or_default();
        waiting.sort_by_key(|message| message.line);
        for message in &waiting {
            self.print(message, &Outcome::Dropped(Reason::Stopped))?;
        }
        self.summary.stopped = Some(Stopped { after_line, not_sent: waiting.len() });
        Ok(())
    }

    /// Sends a message, if that is what becomes of it: here, that is to print the line.
    fn print(&mut self, message: &Message, outcome: &Outcome) -> io::Result<()> {
        writeln!(self.out, "{}", ResultLine { message, outcome, show_text: self.show_text })?;
        self.out.flush()
    }

    fn waiting(&self) -> usize {
        self.outbox.as_ref().map_or(0, Outbox::waiting)
    }

    fn say_what_waits(&self) {
        let waiting = self.waiting();
        if waiting > 0 {
            eprintln!("the input has ended; still waiting to be sent: {waiting} (Ctrl-C gives up)");
        }
    }
}

/// Waits until a message that waits is worth trying.
async fn due<M>(outbox: Option<&Outbox<M>>) {
    match outbox {
        Some(outbox) => outbox.due().await,
        None => std::future::pending().await,
    }
}
