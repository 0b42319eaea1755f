//! What senders said, in Redis.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::rules::Log;
use super::store::{History, Imposed, Imposition, SpeechStore, Utterance};
use super::verdict::{Mute, Reason};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::redis::{Calls, Script, read};
use crate::store::{RedisStore, StoreFuture};

static SAY: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/moderation/say.lua")));
static MUTE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/moderation/mute.lua")));

/// What is kept of a sender: the logs in the order of [`Log::ALL`], and the mute.
const NAMES: [&str; 4] = ["speech:messages", "speech:peers", "speech:texts", "speech:mute"];

impl SpeechStore for RedisStore {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        Scripts::shipped(self).record(said)
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        Scripts::shipped(self).mute(imposition)
    }

    fn imposed(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        Scripts::shipped(self).imposed(imposition)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        Scripts::shipped(self).mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        Scripts::shipped(self).forget(sender)
    }
}

/// What is to be imposed when the script is only to look: since when, for how long, and why.
const NOTHING: (u64, u64, &str, u32, u8) = (0, 0, "", 0, 0);

/// The scripts, on a store's link.
#[derive(Clone)]
pub(super) struct Scripts {
    calls: Calls,
    say: &'static Script,
    mute: &'static Script,
}

impl Scripts {
    fn shipped(store: &RedisStore) -> Self {
        Self { calls: store.calls().clone(), say: &SAY, mute: &MUTE }
    }

    /// Uses scripts that read the hash `clock` where the shipped ones ask for `TIME`.
    #[cfg(test)]
    pub(super) fn with_clock(store: &RedisStore, clock: &str) -> Self {
        let say = Script::with_clock(include_str!("../../lua/moderation/say.lua"), clock);
        let mute = Script::with_clock(include_str!("../../lua/moderation/mute.lua"), clock);
        Self { calls: store.calls().clone(), say, mute }
    }

    fn names(&self, sender: &Key) -> [Vec<u8>; 4] {
        NAMES.map(|name| self.calls.name(sender, name))
    }

    fn ask_to_mute(&self, sender: &Key) -> Cmd {
        let mut command = self.mute.command(1);
        command.arg(self.calls.name(sender, NAMES[3]));
        command
    }

    /// Calls the script that mutes, and reads what has become of the imposition.
    fn impose(&self, command: Cmd) -> StoreFuture<Imposed> {
        let scripts = self.clone();
        StoreFuture::later(async move {
            let reply = scripts.calls.run_surely(scripts.mute, &command).await?;
            let (now_us, until_us, mute, by_this, lengthened): (_, _, Vec<String>, _, _) =
                read(&reply)?;
            Ok(Imposed::new(standing(now_us, until_us, &mute)?, by_this, lengthened))
        })
    }
}

impl SpeechStore for Scripts {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        let mut command = self.say.command(NAMES.len());
        for name in self.names(&said.sender) {
            command.arg(name);
        }
        command.arg(said.id.as_bytes());
        command.arg(said.peer.as_ref().map_or(&[][..], Key::as_bytes));
        command.arg(said.text.as_deref().unwrap_or_default());
        for log in Log::ALL {
            let (horizon_us, kept) = said.needs(log);
            command.arg(kept).arg(horizon_us);
        }
        for rule in said.rules.as_slice() {
            let log = Log::ALL.iter().position(|log| *log == Log::of(rule)).map_or(0, |at| at + 1);
            command.arg(log).arg(rule.count()).arg(rule.window_us()).arg(rule.mute_us());
        }
        let scripts = self.clone();
        StoreFuture::later(async move {
            type Reply = (u64, u64, Vec<String>, Vec<u32>, Vec<u64>, Vec<String>);
            let reply = scripts.calls.run_surely(scripts.say, &command).await?;
            let (now_us, until_us, mute, counts, ages_us, texts): Reply = read(&reply)?;
            let texts = ages_us.into_iter().zip(texts.into_iter().map(Arc::from)).collect();
            Ok(History::new(now_us, counts, texts, standing(now_us, until_us, &mute)?))
        })
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let Imposition { id, at_us, reason, .. } = imposition;
        let mut command = self.ask_to_mute(&imposition.sender);
        command.arg(id.as_bytes()).arg(at_us).arg(reason.rule.mute_us());
        command.arg(reason.rule.to_string()).arg(reason.count).arg(reason.percent);
        self.impose(command)
    }

    fn imposed(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        let mut command = self.ask_to_mute(&imposition.sender);
        command.arg(imposition.id.as_bytes()).arg(NOTHING);
        self.impose(command)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        let mut command = self.ask_to_mute(sender);
        command.arg("").arg(NOTHING);
        let scripts = self.clone();
        StoreFuture::later(async move {
            let reply = scripts.calls.run_surely(scripts.mute, &command).await?;
            let (now_us, until_us, mute, _, _): (_, _, Vec<String>, i64, i64) = read(&reply)?;
            standing(now_us, until_us, &mute)
        })
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        let mut command = redis::cmd("DEL");
        for name in self.names(sender) {
            command.arg(name);
        }
        let calls = self.calls.clone();
        StoreFuture::later(async move { calls.send(&command).await.map(|_| ()) })
    }
}

/// Reads the mute that stands: its rule, count and percentage.
fn standing(now_us: u64, until_us: u64, fields: &[String]) -> Result<Option<Mute>, StoreError> {
    if until_us == 0 {
        return Ok(None);
    }
    let malformed = || StoreError::Protocol { message: "expected a mute from Redis".to_owned() };
    let [rule, count, percent] = fields else { return Err(malformed()) };
    let rule = rule.parse().map_err(|_| malformed())?;
    let count = count.parse().map_err(|_| malformed())?;
    let percent = percent.parse().map_err(|_| malformed())?;
    let remaining = Duration::from_micros(until_us.saturating_sub(now_us));
    let until = SystemTime::UNIX_EPOCH + Duration::from_micros(until_us);
    Ok(Some(Mute::new(Reason::new(rule, count, percent), remaining, until)))
}
