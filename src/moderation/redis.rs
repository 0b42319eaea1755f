//! What senders said, and their mutes, in Redis.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::decision::{Mute, Reason};
use super::rules::Log;
use super::store::{History, MuteOutcome, MuteRequest, RecordedMessage, SpeechStore};
use crate::error::StoreError;
use crate::key::Key;
use crate::redis::{Client, malformed, read};
use crate::store::{RedisStore, StoreFuture};
use crate::time::micros;

/// What is kept of a sender: the logs in the order of [`Log::ALL`], and the mute.
const NAMES: [&str; 4] = ["speech:messages", "speech:peers", "speech:texts", "speech:mute"];
/// The mute to impose when the script is only to look: since when, for how long, and why.
const NOTHING: (u64, u64, &str, u32, u8) = (0, 0, "", 0, 0);

fn names(client: &Client, sender: &Key) -> [Vec<u8>; 4] {
    NAMES.map(|name| client.name(sender, name))
}

/// Begins a call of the script that mutes.
fn call_mute(client: &Client, sender: &Key) -> Cmd {
    let mut command = client.scripts().mute.command(1);
    command.arg(client.name(sender, NAMES[3]));
    command
}

/// Calls the script that mutes, and reads what became of the mute.
fn mute(client: Client, command: Cmd) -> StoreFuture<MuteOutcome> {
    StoreFuture::later(async move {
        let reply = client.run_idempotent(&client.scripts().mute, &command).await?;
        let (now_us, until_us, mute, by_this, lengthened): (_, _, Vec<String>, _, _) =
            read(&reply)?;
        Ok(MuteOutcome::new(active_mute(now_us, until_us, &mute)?, by_this, lengthened))
    })
}

impl SpeechStore for RedisStore {
    fn record(&self, message: &RecordedMessage) -> StoreFuture<History> {
        let client = self.client().clone();
        let script = &client.scripts().say;
        let mut command = script.command(NAMES.len());
        for name in names(&client, &message.sender) {
            command.arg(name);
        }
        command.arg(message.id.as_bytes());
        command.arg(message.peer.as_ref().map_or(&[][..], Key::as_bytes));
        command.arg(message.text.as_deref().unwrap_or_default());
        for log in Log::ALL {
            let (longest_window, kept) = message.needs(log);
            command.arg(kept).arg(micros(longest_window));
        }
        for rule in message.rules.as_slice() {
            let log = Log::ALL.iter().position(|log| *log == Log::of(rule)).map_or(0, |at| at + 1);
            command.arg(log).arg(rule.count()).arg(rule.window_us()).arg(rule.mute_us());
        }
        StoreFuture::later(async move {
            type Reply = (u64, u64, Vec<String>, Vec<u32>, Vec<u64>, Vec<String>);
            let reply = client.run_idempotent(script, &command).await?;
            let (now_us, until_us, mute, counts, ages_us, texts): Reply = read(&reply)?;
            let texts = ages_us
                .into_iter()
                .map(Duration::from_micros)
                .zip(texts.into_iter().map(Arc::from))
                .collect();
            let timestamp = Duration::from_micros(now_us);
            Ok(History::new(timestamp, counts, texts, active_mute(now_us, until_us, &mute)?))
        })
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let MuteRequest { id, timestamp, reason, .. } = request;
        let mut command = call_mute(self.client(), &request.sender);
        command.arg(id.as_bytes()).arg(micros(*timestamp)).arg(reason.rule.mute_us());
        command.arg(reason.rule.to_string()).arg(reason.count).arg(reason.percent);
        mute(self.client().clone(), command)
    }

    fn imposed(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let mut command = call_mute(self.client(), &request.sender);
        command.arg(request.id.as_bytes()).arg(NOTHING);
        mute(self.client().clone(), command)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mut command = call_mute(self.client(), sender);
        command.arg("").arg(NOTHING);
        let outcome = mute(self.client().clone(), command);
        StoreFuture::later(async move { Ok(outcome.await?.mute) })
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        let mut command = redis::cmd("DEL");
        for name in names(self.client(), sender) {
            command.arg(name);
        }
        let client = self.client().clone();
        StoreFuture::later(async move { client.send(&command).await.map(|_| ()) })
    }
}

/// Reads the mute that stands: its rule, count and percentage.
fn active_mute(now_us: u64, until_us: u64, fields: &[String]) -> Result<Option<Mute>, StoreError> {
    if until_us == 0 {
        return Ok(None);
    }
    let wrong = || malformed("expected a mute from Redis");
    let [rule, count, percent] = fields else { return Err(wrong()) };
    let rule = rule.parse().map_err(|_| wrong())?;
    let count = count.parse().map_err(|_| wrong())?;
    let percent = percent.parse().map_err(|_| wrong())?;
    let remaining = Duration::from_micros(until_us.saturating_sub(now_us));
    let until = SystemTime::UNIX_EPOCH + Duration::from_micros(until_us);
    Ok(Some(Mute::new(Reason::new(rule, count, percent), remaining, until)))
}
