use tokio::time::sleep;

use super::*;

fn message(institution: &str, to: &str) -> Message {
    let text =
        format!(r#"{{"institution":"{institution}","channel":"otp","to":"{to}","text":"Hi"}}"#);
    serde_json::from_str(&text).unwrap()
}

/// Creates a hold of a server that runs as long as the sender lives.
fn hold() -> (Arc<Hold>, watch::Sender<bool>) {
    let (stop, stopping) = watch::channel(false);
    let flags = HoldFlags { hold: LONGEST, hold_messages: 1000 };
    (Arc::new(Hold::new(flags, stopping)), stop)
}

/// Lets a message wait for a place that is free in fifty seconds. Returns when it tries again.
async fn next_try(hold: Arc<Hold>, message: Message, gate: Option<Gate>) -> Instant {
    let mut turn = hold.join(&message, 1, 1000).unwrap();
    let (again, until) = (Instant::now() + 50 * BELIEVED, Instant::now() + 60 * BELIEVED);
    turn.wait(gate, again, until).await.unwrap();
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_store_ends_every_pause() {
    let numbers = || (10..60).map(|number| message("bank", &format!("+49170123456{number}")));
    let to_one = || (0..50).map(|_| message("bank", "+491701234567"));
    for (messages, gate) in [
        (numbers().collect(), Some(("institution", "bank".to_owned()))),
        (to_one().collect(), Some(("channel", "otp".to_owned()))),
        (to_one().collect(), None),
        (numbers().collect(), None),
    ] {
        let messages: Vec<Message> = messages;
        let (hold, _stop) = hold();
        let wait = |message| tokio::spawn(next_try(hold.clone(), message, gate.clone()));
        let waiting: Vec<_> = messages.into_iter().map(wait).collect();
        sleep(Duration::from_millis(1)).await;
        let failed = Instant::now();
        hold.store_failed();
        for message in waiting {
            assert_eq!(message.await.unwrap() - failed, Duration::ZERO);
        }
    }
}

/// A flood of failures makes no message try more than once a second more than it does anyway.
#[tokio::test(start_paused = true)]
async fn failures_in_a_row_end_one_pause_a_second() {
    let (hold, _stop) = hold();
    let mut turn = hold.join(&message("bank", "+491701234567"), 1, 1000).unwrap();
    let begun = Instant::now();
    let (again, until) = (begun + LONGEST, begun + LONGEST);
    let flood = async {
        loop {
            hold.store_failed();
            sleep(Duration::from_millis(1)).await;
        }
    };
    let mut tries = 0;
    let count = async {
        while begun.elapsed() < Duration::from_secs(10) {
            turn.wait(None, again, until).await.unwrap();
            tries += 1;
        }
    };
    tokio::select! {
        () = flood => {}
        () = count => {}
    }
    assert!((10..=21).contains(&tries), "{tries}");
}
