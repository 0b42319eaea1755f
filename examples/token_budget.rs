//! A budget of language model tokens: each user may use 20,000 in ten seconds.
//!
//! How many tokens a completion takes is known only afterwards. So a request reserves an estimate, and is
//! settled at what it used.
//!
//! ```text
//! cargo run --example token_budget
//! ```

use std::time::Duration;

use tower_sliding_window::{Decision, Limiter, MemoryStore, Policy, Quota, StoreError};

const HELP: &str = "\
Sends a model five prompts of one user, who may use 20,000 tokens in ten seconds. Each prompt
reserves an estimate and is settled at its real cost. Takes no options.";

struct Prompt {
    text: &'static str,
    tokens: u32,
    /// The longest completion that the client wants.
    max_tokens: u32,
}

/// Stands for a language model. Returns how many tokens the prompt and its completion took.
async fn complete(prompt: &Prompt) -> Result<u32, &'static str> {
    match prompt.text {
        "a greeting" => Ok(prompt.tokens + 300),
        "a prompt that the model refuses" => Err("refused, and not charged"),
        // The model uses tools, which the estimate does not include.
        "a search" => Ok(prompt.tokens + prompt.max_tokens + 5_000),
        _ => Ok(prompt.tokens + prompt.max_tokens),
    }
}

/// Sends one prompt if the user's budget has room for the most that it can cost.
async fn send(budget: &Limiter, user: &str, prompt: &Prompt) -> Result<(), StoreError> {
    let estimate = prompt.tokens + prompt.max_tokens;
    let admitted = match budget.check_cost(user, estimate).await? {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => {
            let wait = denied.retry_after();
            let wait_ms = wait.as_micros().div_ceil(1000);
            println!("denied: {}, again in {wait_ms} ms", prompt.text);
            return Ok(());
        }
    };
    let used = match complete(prompt).await {
        Ok(tokens) => tokens,
        Err(reason) => {
            println!("failed: {}, {reason}", prompt.text);
            0
        }
    };
    // Less frees places at once. More is counted too, also above the limit.
    budget.settle(&admitted, used).await?;
    let left = budget.peek(user).await?.remaining();
    println!("{}: reserved {estimate}, used {used}, {left} left", prompt.text);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), StoreError> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let tokens = Policy::new("tokens").quota(Quota::new(20_000, Duration::from_secs(10))).budget();
    let budget = Limiter::new(tokens, MemoryStore::new());
    let prompt = |text, tokens, max_tokens| Prompt { text, tokens, max_tokens };
    for prompt in [
        prompt("a greeting", 50, 8_000),
        prompt("a prompt that the model refuses", 200, 8_000),
        prompt("a summary", 6_000, 1_000),
        prompt("a search", 1_000, 10_000),
        prompt("a poem", 50, 500),
    ] {
        send(&budget, "alice", &prompt).await?;
    }
    Ok(())
}
