//! Senders in Redis: implements [`SpeechStore`] for [`RedisStore`].

use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::decision::{Mute, Reason};
use super::rule::Rule;
use super::store::{
    Fingerprint, History, Log, MuteOutcome, MuteRequest, REMEMBERED, RecordedMessage, SpeechStore,
};
use crate::RedisStore;
use crate::error::StoreError;
use crate::key::Key;
use crate::redis::{Client, Scan, malformed, read};
use crate::store::StoreFuture;
use crate::time::micros;

/// The keys of a sender: the logs in the order of [`Log::ALL`], and the mute.
const NAMES: [&str; 4] = ["speech:messages", "speech:peers", "speech:prints", "speech:mute"];
/// Arguments with which the script imposes no mute: timestamp, length, rule, count and percentage, and for how long
/// it is remembered.
const NO_MUTE: (u64, u64, &str, u32, u8, u64) = (0, 0, "", 0, 0, 0);
/// The rule, count and percentage of a mute.
type MuteRow = (String, u32, u8);

fn names(client: &Client, sender: &Key) -> [Vec<u8>; 4] {
    NAMES.map(|name| client.name(sender, name))
}

/// Starts a command that runs `mute.lua` for a sender.
fn mute_command(client: &Client, sender: &Key) -> Cmd {
    let mut command = client.scripts().mute.command(1);
    command.arg(client.name(sender, NAMES[3]));
    command
}

/// Runs `mute.lua` and reads the outcome.
fn run_mute(client: Client, command: Cmd) -> StoreFuture<MuteOutcome> {
    StoreFuture::later(async move {
        let reply = client.run_idempotent(&client.scripts().mute, &command).await?;
        let (now_us, until_us, mute, by_this, lengthened): (_, _, Vec<MuteRow>, _, _) =
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
        command.arg(message.text.as_ref().map_or(&[][..], Fingerprint::as_bytes));
        for log in Log::ALL {
            let (longest_window, max_entries) = message.retention(log);
            command.arg(max_entries).arg(micros(longest_window));
        }
        for rule in message.rules.as_slice() {
            let log = Log::ALL.iter().position(|log| *log == Log::of(rule)).map_or(0, |at| at + 1);
            command.arg(log).arg(rule.count()).arg(rule.window_us()).arg(rule.mute_us());
        }
        StoreFuture::later(async move {
            type Reply = (u64, u64, Vec<MuteRow>, Vec<u32>, Vec<u64>, Vec<Vec<u8>>);
            let reply = client.run_idempotent(script, &command).await?;
            let (now_us, until_us, mute, counts, ages_us, texts): Reply = read(&reply)?;
            let texts = texts.iter().map(|text| Fingerprint::from_bytes(text));
            let texts: Option<Vec<_>> = texts.collect();
            let texts = texts.ok_or_else(|| malformed("expected fingerprints"))?;
            let texts = ages_us.into_iter().map(Duration::from_micros).zip(texts).collect();
            let timestamp = Duration::from_micros(now_us);
            Ok(History::new(timestamp, counts, texts, active_mute(now_us, until_us, &mute)?))
        })
    }

    fn mute(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let MuteRequest { id, timestamp, reason, .. } = request;
        let mut command = mute_command(self.client(), &request.sender);
        command.arg(id.as_bytes()).arg(micros(*timestamp)).arg(reason.rule.mute_us());
        command.arg(reason.rule.to_string()).arg(reason.count).arg(reason.percent);
        let first = request.first_mutes.iter().map(|length| micros(*length));
        let remembered = if request.first_mutes.is_empty() { Duration::ZERO } else { REMEMBERED };
        command.arg(micros(remembered)).arg(first.collect::<Vec<_>>());
        run_mute(self.client().clone(), command)
    }

    fn mute_outcome(&self, request: &MuteRequest) -> StoreFuture<MuteOutcome> {
        let mut command = mute_command(self.client(), &request.sender);
        command.arg(request.id.as_bytes()).arg(NO_MUTE);
        run_mute(self.client().clone(), command)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mut command = mute_command(self.client(), sender);
        command.arg("").arg(NO_MUTE);
        let outcome = run_mute(self.client().clone(), command);
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

    fn muted_senders(&self, position: u64, count: usize) -> StoreFuture<(Vec<Key>, Option<u64>)> {
        let client = self.client().clone();
        StoreFuture::later(async move {
            let what = "listing mutes on a Cluster";
            let mut scan = Scan::new(&client, NAMES[3], position, count, what)?;
            let mut senders = Vec::new();
            loop {
                let found = scan.step(senders.len()).await?;
                senders.extend(found.into_iter().map(|(_, sender)| sender));
                if scan.is_over(senders.len()) {
                    return Ok((senders, scan.next_position()));
                }
            }
        })
    }
}

/// Reads the active mute, if there is one.
fn active_mute(now_us: u64, until_us: u64, rows: &[MuteRow]) -> Result<Option<Mute>, StoreError> {
    let Some((rule, count, percent)) = rows.first() else { return Ok(None) };
    let rule = Rule::from_stored(rule).ok_or_else(|| malformed("expected a mute from Redis"))?;
    let remaining = Duration::from_micros(until_us.saturating_sub(now_us));
    let until = SystemTime::UNIX_EPOCH + Duration::from_micros(until_us);
    Ok(Some(Mute::new(Reason::new(rule, *count, *percent), remaining, until)))
}
