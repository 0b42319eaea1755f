//! A speech monitor: mutes, in silence, who repeats a message or writes to one stranger after
//! another.
//!
//! ```
//! use tower_sliding_window::MemoryStore;
//! use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor, Verdict};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_sliding_window::StoreError> {
//! let store = MemoryStore::new(); // or RedisStore::connect("redis://127.0.0.1:6379").await?
//! let mut rules = Rule::recommended().to_vec();
//! rules.push("events 30/10s mute 10m".parse().expect("a rule"));
//! let monitor = SpeechMonitor::new(rules, store)
//!     .on_mute(|event| println!("audit: {}: {}", event.mute.rule(), event.mute.reason()));
//!
//! for text in ["Cheap gold!", "CHEAP  GOLD", "c.h.e.a.p gold", "cheap goooold"] {
//!     match monitor.check(&Message::from("mallory").text(text)).await? {
//!         Verdict::Delivered => println!("everybody sees: {text}"),
//!         Verdict::Muted(_) => println!("only mallory sees: {text}"),
//!     }
//! }
//! let mute = monitor.mute_of("mallory").await?.expect("three of the four are alike");
//! assert_eq!(mute.reason().to_string(), "3 messages within 60s at 90% similarity");
//! # Ok(())
//! # }
//! ```
//!
//! The chat answers a muted sender as ever, shows them their own messages, and shows those to
//! nobody else: who knows of a mute changes the account. `examples/chat-guard` is such a chat.
//!
//! # Rules
//!
//! A [`Rule`] is a count within a window, of messages, of private-chat peers or of messages that are
//! alike, and how long it mutes. The message that reaches the count completes the rule, and is the
//! first that is not delivered. Windows are those of the rest of the crate: at the instant `t` one
//! holds what was said in `(t - window, t]`, to the microsecond. [`Rule::recommended`] are four
//! rules to begin with.
//!
//! # Similar messages
//!
//! Two messages are alike to the percentage that [`similarity`] returns: their normalised
//! Levenshtein distance, on what is left of them when disguises are taken off.
//!
//! **The similarity rate of n messages is the lowest similarity of the newest to any of the others.**
//! A rule of `5/5m 90%` is completed by a message if four others of the sender's last five minutes
//! are each at least 90 % like it, whatever else was said in between.
//!
//! So it is a rate of pairs, those that the newest message is in, and not of neighbours or of all
//! pairs:
//!
//! - Neighbours in time are pulled apart by one message of noise between them, and let a text drift
//!   step by step into another.
//! - All pairs would have to be looked for among all subsets of the window, which takes exponential
//!   time on texts that are made for it. Those of the newest take one comparison a message, and
//!   nothing is lost: of messages that are all alike the last one is like each of the others, so
//!   whatever completes a rule by all pairs completes it by these. The other way round, two messages
//!   that are each 90 % like a third are still about 80 % like each other.
//!
//! A message without a text, a picture for one, is compared with nothing; blank texts are alike. Only
//! the first 500 characters of a normalised text are compared, and only with the 64 newest texts of
//! the sender; against who sends more than that in a window there are rules that count messages.
//!
//! # Mutes
//!
//! - A mute counts from the message that completed the rule, and ends by itself.
//! - **A mute only lengthens, and only by a rule with a longer one.** Whichever rule comes first,
//!   the longer mute stands. If one message completes several rules, that with the longest mute is
//!   the reason.
//! - What a muted sender says is recorded and judged as ever, although nobody sees it: who goes on
//!   may complete a rule with a longer mute. The rule that they are muted by, and any with a mute no
//!   longer, changes nothing however often it is completed, not even by the milliseconds between two
//!   messages: a mute is lengthened at most once by each rule.
//! - When a mute is over, what was said within the windows before it ended still counts: who has
//!   never stopped is muted again at once. So a mute that is shorter than the window of its rule is
//!   imposed again by the next message, for as long as the window holds the rule's count.
//! - Each mute is told once to [`SpeechMonitor::on_mute`], and once each time it is lengthened. If the
//!   reply that says so is lost twice, or the caller leaves before it comes, the monitor asks the store
//!   in the background until it answers: it asks, and does not mute again what was lifted meanwhile.
//!
//! # Why there is no lock
//!
//! A message is recorded, and what the rules need of its sender's history read, in one atomic step:
//! a script in Redis, a mutex in process. So of two messages at the same moment, in whatever
//! processes, one is recorded second and sees the first: the rule is completed before the eyes of
//! whoever recorded the last message that it takes. Texts are compared afterwards, outside of Redis,
//! on a history that can't change any more: what comes later is judged by who brings it. If several
//! find the rule complete, each asks for the mute in a second atomic step, which imposes it if no
//! mute stands that is as long. So it is imposed once, by one of them, and that one tells the audit.
//! A lock around all this would add two round trips and a way to hang, and change no outcome.
//!
//! A message whose answer is lost is told of again under the same identity, and counts once.
//!
//! # Cost
//!
//! | | for each message | kept of each sender |
//! |---|---|---|
//! | in process | a mutex, and a comparison with each text in the window, once those are as many as the rule counts | up to 64 texts, as many stamps and peers as the highest count |
//! | on Redis | one script call, and one more if a rule is completed; texts are sent only if there are enough of them to complete a rule whose mute is longer than the one that stands | the same in up to three ZSETs, and a HASH for the mute: `PREFIX:{=SENDER}:speech:messages`, `:peers`, `:texts`, `:mute` |
//!
//! In Redis 7.0 the texts of a sender take 1.5 KB with four messages of 20 Chinese characters, 2.1 KB
//! with eight, and 104 KB with as many and as long ones as are kept, 64 of 500; a mute takes 232 bytes.
//! So what is kept of one sender is bounded: 64 texts of 500 characters of four bytes take 137 KB,
//! 1,024 stamps of messages 122 KB, and 1,024 peers of 128 bytes 252 KB. How many senders there are
//! is bounded by the TTLs: all keys of a sender share a cluster slot, and each key has a TTL, of the
//! longest window that needs it, or until the mute ends.
//!
//! In process a sender takes about 230 bytes, and each message 60 bytes and its text: 330 bytes for one
//! message of 20 Chinese characters, 670 for four, and 100 KB for 64 of 500. The number of senders is
//! capped by the store's capacity; one more is a [`StoreError::Full`](crate::StoreError::Full). The
//! bytes are capped by [`MemoryStore::speech_bytes`](crate::MemoryStore::speech_bytes), 256 MiB unless
//! told otherwise, where it says what happens to a message that finds no room: mutes stay, and
//! a sender who completes a rule is muted all the same. The texts, stamps and peers of a muted sender
//! go when their windows are over, and only the mute stays.
//!
//! The texts of the last minutes are in the store, normalised. No sender, peer or text appears in a
//! log or an error of this crate.

mod audit;
mod entries;
mod memory;
mod message;
mod monitor;
#[cfg(all(test, feature = "redis"))]
mod promises;
mod queue;
#[cfg(feature = "redis")]
mod redis;
mod rule;
mod rules;
mod similarity;
pub mod store;
mod verdict;

pub(crate) use self::memory::Senders;
pub use self::message::Message;
pub use self::monitor::SpeechMonitor;
pub use self::queue::{SpeechQueue, Submitted};
pub use self::rule::{Counted, ParseRuleError, Rule, RuleError};
pub use self::similarity::{normalised, similarity};
pub use self::verdict::{Mute, MuteEvent, Reason, Verdict};
