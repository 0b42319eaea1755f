//! Chat spam: a speech monitor that silently mutes senders that repeat a message or write to many
//! strangers.
//!
//! ```
//! use speech_monitor::{Message, Rule, SpeechDecision, SpeechMonitor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_sliding_window::StoreError> {
//! let mut rules = Rule::recommended().to_vec();
//! rules.push("events 30/10s mute 10m".parse().expect("a rule"));
//! // For several servers: SpeechMonitor::on_redis(rules, &store)
//! let monitor = SpeechMonitor::in_process(rules)
//!     .on_mute(|event| println!("audit: {}", event.mute.reason));
//!
//! for text in ["Cheap gold!", "CHEAP  GOLD", "c.h.e.a.p gold", "gold, cheap 🔥"] {
//!     match monitor.check(&Message::from("mallory").text(text)).await? {
//!         SpeechDecision::Delivered => println!("everybody sees: {text}"),
//!         SpeechDecision::Muted { .. } => println!("only mallory sees: {text}"),
//!     }
//! }
//! let mute = monitor.mute_of("mallory").await?.expect("they are similar");
//! let reason = "similar 3/60s 90% mute 6h: 3 messages within 60s at 100% similarity";
//! assert_eq!(mute.reason, reason);
//! # Ok(())
//! # }
//! ```
//!
//! The mute is silent: the chat responds to a muted sender as usual and shows their messages to them,
//! but to no one else. A sender that notices a mute would switch to another account.
//!
//! # Rules
//!
//! A [`Rule`] counts messages, private-chat peers or similar messages within a window, and sets the length
//! of a mute. The message that reaches the count triggers the rule, and is
//! the first that is not delivered. At the instant `t` a window holds the messages of `(t - window, t]`,
//! to the microsecond. [`Rule::recommended`] returns four rules to start with.
//!
//! # Similar messages
//!
//! [`similarity`] compares two messages. It [normalises](normalised) them to undo disguises, and
//! compares their letters and words. A number is a word that weighs as ten letters: `Order 1001 is ready` and
//! `Order 1002 is ready` are different messages.
//!
//! **The similarity rate of n messages is the lowest similarity of the newest to any of the others.**
//! A message triggers the rule `5/5m 90%` if four other messages of the sender in the last five minutes
//! are each at least 90 % similar to it. Other messages in between do not matter: to compare each
//! message with the one before it would let a single different message hide the repetition, and to
//! compare all pairs would take exponential time on texts made for it.
//!
//! A message without a text, such as a picture, is not compared, and neither is a text of fewer than nine
//! letters and digits, or of the length that a [`Rule`] sets: honest senders repeat `ok` and `thank you` too.
//! Only the two ends of a long text are compared, and only with the 64 newest texts of the sender. Rules that
//! count messages stop senders that send more than that in a window.
//!
//! # Campaigns
//!
//! One text of many senders is for the crate `message-storm`, which counts different ids: record the
//! [`normalised`] text as the group and the sender as the message's id, and [mute](SpeechMonitor::mute) the
//! senders while there is a storm. Honest people share texts too.
//!
//! # Mutes
//!
//! A mute is a ban of the sender, in [`Bans`](tower_sliding_window::Bans) of the policy `speech`.
//!
//! - It begins at the message that triggered the rule, and ends by itself.
//! - **A mute can become longer, never shorter.** If one message triggers several rules, the one with
//!   the longest mute counts.
//! - Messages of a muted sender are still recorded and checked. A rule whose mute is longer than the one that
//!   stands lengthens it. So each rule lengthens a mute at most once.
//! - Messages within the rules' windows still count after a mute has ended. A sender that has never
//!   stopped is muted again at once.
//!
//! # If the store fails
//!
//! A monitor has no failure policy: [`SpeechMonitor::check`] returns an error, and the chat decides. But
//! a mute that this process has imposed or found still holds while Redis does not answer, until it ends.
//!
//! If Redis loses its data, the messages of before do not count any more. A process restores the mute of a sender with the
//! next message of that sender that it checks. One that has only found the mute knows neither its reason nor how long it was.
//! Until the process that has imposed it checks a message of the sender, too, the reason is `strikes`, and the same rule may
//! lengthen the mute and report it once more.
//!
//! # Concurrency
//!
//! There is no lock across processes. One atomic step, a script in Redis or a mutex in process, records
//! a message and reads the history that the rules need. So of the messages that trigger a rule, the call that
//! records the last one sees all of them. Texts are compared after that step, outside of Redis, against a history
//! that no longer changes.
//!
//! If several calls find that a rule is triggered, each requests the mute in a second atomic step, which imposes
//! it unless a mute stands that is as long. So one of them imposes and reports it. A message whose reply is
//! lost is sent again with the same id and counts once. If the reply to a mute is lost, the monitor looks
//! whether its mute stands.
//!
//! # Cost
//!
//! | | for each message | stored for each sender |
//! |---|---|---|
//! | in process | a mutex, and a comparison with each text in the window if there are as many as the rule counts | up to 64 fingerprints, and as many timestamps and peers as the highest count |
//! | on Redis | a look for the mute, which shares its call with others, and one script call; two more if a rule is triggered whose mute is longer than what is left of the one that stands | the same in up to three ZSETs: `PREFIX:{=SENDER}:speech:log:messages`, `:peers`, `:prints` |
//!
//! A fingerprint has 4 bytes for each letter or word, and at most 258 bytes. So 64 texts of a sender take at most
//! 18 KB to transfer. Each Redis key has a TTL of the longest window that needs it. All keys of a
//! sender are in one cluster slot.
//!
//! Every message is recorded, also those of muted senders. Give senders a quota of messages before the
//! monitor, as `chat-guard` does.
//!
//! # Metrics
//!
//! | name | labels | |
//! |---|---|---|
//! | `sliding_window_mutes_total` | `rule`, or `manual` | counter: mutes imposed or lengthened |

mod decision;
mod fingerprint;
mod logs;
mod monitor;
mod normalised;
mod rule;
#[cfg(test)]
mod tests;

pub use self::decision::{Message, Mute, MuteEvent, SpeechDecision};
pub use self::fingerprint::similarity;
pub use self::monitor::SpeechMonitor;
pub use self::normalised::normalised;
pub use self::rule::{ParseRuleError, Rule};
