//! A worker that takes e-mails from a queue and sends each receiver at most three in two seconds.
//!
//! There is no HTTP request here: `Limiter` is the same limit as a function call.
//!
//! ```text
//! cargo run --example email_worker
//! ```

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower_sliding_window::{Limiter, MemoryStore, Quota, WaitError};

const HELP: &str = "\
Sends ten e-mails to two receivers, each receiver at most three in two seconds. The mail server
refuses one of them. Takes no options.";

struct Email {
    to: &'static str,
    number: u32,
}

/// Stands for a mail server. It refuses the second e-mail to bob.
async fn deliver(email: &Email) -> Result<(), &'static str> {
    if email.to == "bob@example.org" && email.number == 2 { Err("mailbox full") } else { Ok(()) }
}

/// Sends one e-mail as soon as its receiver may have it.
async fn send(limiter: Limiter, email: Email) -> Result<(), WaitError> {
    let admitted = limiter.until_admitted(email.to).await?;
    match deliver(&email).await {
        Ok(()) => println!("sent {}: {}, {} left", email.number, email.to, admitted.remaining()),
        Err(reason) => {
            println!("failed {}: {}, {reason}", email.number, email.to);
            // An e-mail that was certainly not sent does not count.
            limiter.cancel(&admitted).await?;
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return;
    }

    let (queue, mut emails) = mpsc::channel(100);
    tokio::spawn(async move {
        for number in 1..=5 {
            for to in ["ann@example.org", "bob@example.org"] {
                let _ = queue.send(Email { to, number }).await;
            }
        }
    });

    let limiter = Limiter::new(Quota::new(3, Duration::from_secs(2)), MemoryStore::new());
    // One task for each e-mail: a receiver that has to wait holds no other up. The e-mails that wait
    // for one receiver are admitted in the order of their arrival. With a mail server that takes time,
    // they can be sent in another order.
    let mut tasks = JoinSet::new();
    while let Some(email) = emails.recv().await {
        tasks.spawn(send(limiter.clone(), email));
    }
    for result in tasks.join_all().await {
        if let Err(error) = result {
            eprintln!("error: an e-mail is not sent: {error}");
        }
    }
}
