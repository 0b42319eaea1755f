//! Mutes spammers silently. A muted sender sees a success, and no other user sees the message.
//!
//! ```text
//! printf 'bob\tlunch?\nmal\tcheap gold\nmal\tCHEAP GOLD!\nmal\tc h e a p gold\nmal\thello\n' \
//!   | cargo run -p speech-monitor --example speech_monitor
//! ```

use std::io::{Write, stdout};

use speech_monitor::{Message, Rule, SpeechDecision, SpeechMonitor};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

const HELP: &str = r"Reads lines SENDER<TAB>TEXT or SENDER<TAB>TEXT<TAB>PEER, and prints what the chat shows.
These rules mute, or the rules given as arguments:
  similar 5/5m 90% mute 12h    five messages that are alike within five minutes
  similar 3/1m 90% mute 6h
  peers 5/3m mute 24h          private messages to five users within three minutes
  peers 9/5m mute 48h
Messages of fewer than nine letters and digits are not compared, where a Chinese character counts as two.
A rule can set another length, such as `similar 3/1m 90% min 4 mute 6h`. Numbers are words that differ.
";

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Error> {
    let mut rules = Rule::recommended().to_vec();
    let given: Vec<String> = std::env::args().skip(1).collect();
    if given.iter().any(|arg| arg == "-h" || arg == "--help") {
        return Ok(write!(stdout(), "{HELP}")?);
    }
    if !given.is_empty() {
        rules = given.iter().map(|rule| rule.parse()).collect::<Result<_, _>>()?;
    }
    // For several servers: SpeechMonitor::on_redis(rules, &store)
    let monitor =
        SpeechMonitor::in_process(rules).on_mute(|event| eprintln!("audit: {}", event.mute.reason));

    eprintln!("reading messages from stdin, a line SENDER<TAB>TEXT each (Ctrl-D ends the input)");
    let mut lines = BufReader::new(stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        let line = String::from_utf8_lossy(&line);
        let Some((sender, text)) = line.trim_end_matches('\r').split_once('\t') else {
            eprintln!("a line is skipped: write SENDER<TAB>TEXT");
            continue;
        };
        let (text, peer) = text.split_once('\t').map_or((text, None), |(a, b)| (a, Some(b)));
        let message = Message::from(sender).text(text);
        let message = if let Some(peer) = peer { message.to(peer) } else { message };
        let who = match monitor.check(&message).await? {
            SpeechDecision::Delivered => "all see    ",
            SpeechDecision::Muted { .. } => "sender sees",
        };
        writeln!(stdout(), "{who}   {sender:?}: {text:?}")?;
    }
    Ok(())
}
