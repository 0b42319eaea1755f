//! Chat spam: a speech monitor that silently mutes senders that repeat a message or write to many
//! strangers.
//!
//! Needs the feature `moderation`.
//!
//! ```
//! use tower_sliding_window::MemoryStore;
//! use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor, SpeechDecision};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_sliding_window::StoreError> {
//! let store = MemoryStore::new(); // or RedisStore::connect("redis://127.0.0.1:6379").await?
//! let mut rules = Rule::recommended().to_vec();
//! rules.push("events 30/10s mute 10m".parse().expect("a rule"));
//! let monitor = SpeechMonitor::new(rules, store)
//!     .on_mute(|event| println!("audit: {}: {}", event.mute.rule(), event.mute.reason()));
//!
//! for text in ["Cheap gold!", "CHEAP  GOLD", "c.h.e.a.p gold", "gold, cheap 🔥"] {
//!     match monitor.check(&Message::from("mallory").text(text)).await? {
//!         SpeechDecision::Delivered => println!("everybody sees: {text}"),
//!         SpeechDecision::Muted(_) => println!("only mallory sees: {text}"),
//!     }
//! }
//! let mute = monitor.mute_of("mallory").await?.expect("they are similar");
//! assert_eq!(mute.reason().to_string(), "3 messages within 60s at 100% similarity");
//! # Ok(())
//! # }
//! ```
//!
//! The mute is silent: the chat responds to a muted sender as usual and shows their messages to them,
//! but to no one else. A sender that notices a mute would switch to another account.
//! [`examples/chat-guard`] is such a chat.
//!
//! # Rules
//!
//! A [`Rule`] counts messages, private-chat peers, similar messages or the senders of one text within a
//! window, and sets the length of a mute. The message that reaches the count triggers the rule, and is the first that is not
//! delivered. As in the rest of the crate, at the instant `t` a window holds the messages of
//! `(t - window, t]`, to the microsecond. [`Rule::recommended`] returns four rules to start with.
//!
//! # Similar messages
//!
//! [`similarity`] compares two messages. It [normalises](normalised) them to undo disguises, and
//! compares their letters and words. Inserted punctuation, emoji and spaces change nothing, and neither
//! does the order of the words. A number is a word that weighs as ten letters: `Order 1001 is ready` and
//! `Order 1002 is ready` are different messages.
//!
//! **The similarity rate of n messages is the lowest similarity of the newest to any of the others.**
//! A message triggers the rule `5/5m 90%` if four other messages of the sender in the last five minutes
//! are each at least 90 % similar to it. Other messages in between do not matter.
//!
//! The rate compares pairs that include the newest message. The alternatives are worse:
//!
//! - Comparing each message with the one before it: a single different message in between would hide
//!   the repetition, and a text that changes step by step would count as similar.
//! - Comparing all pairs: this would need a search of all subsets of the window, which takes
//!   exponential time on texts made for it. Comparing with the newest takes one comparison for each
//!   earlier text and misses nothing: in a set in which all messages are similar, the last one is
//!   similar to each of the others. The reverse does not hold exactly: two messages that are each 90 %
//!   similar to a third are still about 80 % similar to each other.
//!
//! A message without a text, such as a picture, is not compared, and neither is a text of fewer than nine
//! letters and digits: honest senders repeat `ok` and `thank you` too. [`Rule::min_length`] sets another
//! length. Only the two ends of a long text are compared, and only with the 64 newest texts of the
//! sender. Rules that count messages stop senders that send more than that in a window.
//!
//! # Campaigns
//!
//! The rule `campaign 20/10m mute 1h` is about all senders: the twentieth sender of one text within ten
//! minutes is muted, and each one after it. Most texts that differ in a tenth are one text. Texts of
//! fewer than 30 letters do not count, unless the rule sets another [length](Rule::min_length).
//! [`Rule::recommended`] has no such rule, because honest people share texts too. It takes one call of
//! the store more for each text that is long enough.
//!
//! # Exempt senders
//!
//! [`SpeechMonitor::exempt`] names senders that no rule mutes, such as support staff that answer many
//! customers with the same text.
//!
//! # Mutes
//!
//! - A mute begins at the message that triggered the rule, and ends by itself.
//! - **A mute can only be lengthened, and only by a rule with a longer mute.** The longer mute wins,
//!   whichever rule triggers first. If one message triggers several rules, the reason is the rule with
//!   the longest mute.
//! - Messages of a muted sender are still recorded and checked, so they may trigger a rule with a longer
//!   mute. The rule of the active mute, and rules with a mute that is not longer, change nothing: each
//!   rule lengthens a mute at most once.
//! - Messages within the rules' windows still count after a mute has ended. A sender that has never
//!   stopped is muted again at once. In particular, if a mute is shorter than the window of its rule,
//!   the next message imposes it again as long as the window holds the rule's count.
//! - With [`SpeechMonitor::first_mutes`] the first mute of a sender is shorter, and the next ones grow to
//!   the lengths of their rules.
//! - [`SpeechMonitor::on_mute`] is called once for each mute, and once each time it is lengthened. If the
//!   reply to the call that imposed the mute is lost twice, or the caller drops the future, the monitor
//!   queries the store in the background until it replies. This does not impose a mute that was lifted
//!   meanwhile.
//!
//! - [`SpeechMonitor::mute`] mutes a sender manually, until a time from now. It replaces a mute that ends
//!   earlier, and silences exempt senders too.
//!
//! # If the store fails
//!
//! A monitor has no failure policy: [`SpeechMonitor::check`] returns an error, and the chat decides. But
//! a mute that this process knows of still holds while Redis does not answer, until it ends. The process
//! knows of a mute if one of its own calls returned it: a check, [`SpeechMonitor::mute_of`] or
//! [`SpeechMonitor::mute`]. It forgets the mute when a later reply says that there is none, and when it
//! lifts the mute itself. A lift by another process is noticed when Redis answers again. A process knows
//! of at most 65,536 mutes at a time.
//!
//! # Concurrency
//!
//! There is no lock across processes. One atomic step, a script in Redis or a mutex in process, records
//! a message and reads the history that the rules need. Of two messages at the same instant, one is
//! recorded second and its history includes the first. So the call that records the last message of
//! those that trigger a rule sees all of them.
//!
//! Texts are compared after that step, outside of Redis, against a history that no longer changes: a
//! later message is checked by its own call. If several calls find that a rule is triggered, each
//! requests the mute in a second atomic step. The step imposes the mute unless an active mute is as
//! long, so exactly one call imposes it and reports it to the hook. A lock would add two round trips and
//! the risk of a deadlock, and would not change any outcome.
//!
//! A message whose reply is lost is sent again with the same id and counts once.
//!
//! Of one sender, a process checks four messages at a time. Further ones wait, so that a sender with
//! thousands of connections does not keep the store from the others.
//!
//! # Cost
//!
//! | | for each message | stored for each sender |
//! |---|---|---|
//! | in process | a mutex, and a comparison with each text in the window if there are as many as the rule counts | up to 64 fingerprints, and as many timestamps and peers as the highest count |
//! | on Redis | one script call, and one more if a rule is triggered; fingerprints are transferred only if they could trigger a rule with a longer mute than the active one | the same in up to three ZSETs, and a HASH for the mute: `PREFIX:{=SENDER}:speech:messages`, `:peers`, `:prints`, `:mute` |
//!
//! A text is kept as a [fingerprint](store::Fingerprint): 4 bytes for each letter or word, and at most 258
//! bytes, whatever the length of the text. So 64 texts of a sender take at most 18 KB to transfer. The
//! memory of a sender is bounded: in Redis 7.0 about 26 KB for 64 texts, 122 KB for 1,024 timestamps of
//! messages, and 252 KB for 1,024 peers of 128 bytes. TTLs bound the number of senders: each key has a
//! TTL of the longest window that needs it, or until the mute ends. All keys of a sender are in one
//! cluster slot.
//!
//! In process a sender takes about 230 bytes, and each message 60 bytes and its fingerprint. The store's
//! capacity limits the number of senders, and
//! [`MemoryStore::speech_bytes`](crate::MemoryStore::speech_bytes) the bytes, 256 MiB by default. **A full
//! store goes on.** When it has no room for a message, the senders with many texts lose the older half,
//! and of the others less is kept of each text. Then senders of a single message are forgotten. Mutes are
//! not. A store that is full of mutes is an error. The texts, timestamps and peers of a muted sender are
//! dropped after their windows, and only the mute is kept.
//!
//! # Privacy
//!
//! The store holds no texts, but hashes of their words and of their letters in threes, for some minutes.
//! Whoever reads the store may guess a text and confirm it, so they are personal data too. No sender, peer or text appears in a log
//! message or an error of this crate.
//!
//! [`examples/chat-guard`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/chat-guard

mod audit;
#[cfg(all(test, feature = "redis"))]
mod contract;
mod decision;
mod entries;
mod fingerprint;
mod judge;
mod known_mutes;
mod memory;
mod message;
mod monitor;
mod normalised;
mod page;
#[cfg(feature = "redis")]
mod redis;
mod rule;
mod shares;
pub mod store;

pub use self::decision::{Mute, MuteEvent, Reason, SpeechDecision};
pub use self::fingerprint::similarity;
pub use self::message::Message;
pub use self::monitor::SpeechMonitor;
pub use self::normalised::normalised;
pub use self::page::{MuteCursor, MutePage, ParseMuteCursorError};
pub use self::rule::{Counted, ParseRuleError, Rule, RuleError};
