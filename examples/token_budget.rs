//! A budget of language model tokens: each user may use 20,000 in ten seconds.
//!
//! How many tokens an answer takes is known only afterwards. So a request reserves an estimate, and is
//! settled at what it used. A place in the log stands for a thousand tokens.
//!
//! ```text
//! cargo run --example token_budget
//! ```

use std::time::Duration;

use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota, StoreError};

const HELP: &str = "\
Asks a model five questions of one user, who may use 20,000 tokens in ten seconds. Each question
reserves an estimate and is settled at its real cost. Takes no options.";

/// How many tokens a place stands for. A request takes at most 1,024 places.
const UNIT: u32 = 1_000;

struct Question {
    text: &'static str,
    prompt_tokens: u32,
    /// The longest answer that the model may give, as the client asks for it.
    max_tokens: u32,
}

/// Stands for a language model. Returns how many tokens the question and its answer took.
async fn answer(question: &Question) -> Result<u32, &'static str> {
    match question.text {
        "a greeting" => Ok(question.prompt_tokens + 300),
        "a question that the model refuses" => Err("refused, and not charged"),
        // The model uses tools, which the estimate does not include.
        "a search" => Ok(question.prompt_tokens + question.max_tokens + 5_000),
        _ => Ok(question.prompt_tokens + question.max_tokens),
    }
}

/// Asks one question if the user's budget has room for the most that it can cost.
async fn ask(budget: &Limiter, user: &str, question: &Question) -> Result<(), StoreError> {
    let estimate = (question.prompt_tokens + question.max_tokens).div_ceil(UNIT);
    let admitted = match budget.check_cost(user, estimate).await? {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => {
            let wait = denied.retry_after();
            println!("denied: {}, again in {} ms", question.text, wait.as_millis());
            return Ok(());
        }
    };
    let used = match answer(question).await {
        Ok(tokens) => tokens.div_ceil(UNIT),
        Err(reason) => {
            println!("failed: {}, {reason}", question.text);
            0
        }
    };
    // Less frees places at once. More is counted too, also above the limit.
    budget.settle(&admitted, used).await?;
    let left = budget.peek(user).await?.remaining();
    println!("{}: reserved {estimate}, used {used}, {left} thousand left", question.text);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), StoreError> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    let budget = Limiter::new(Quota::new(20, Duration::from_secs(10)), MemoryStore::new());
    let question = |text, prompt_tokens, max_tokens| Question { text, prompt_tokens, max_tokens };
    for question in [
        question("a greeting", 50, 8_000),
        question("a question that the model refuses", 200, 8_000),
        question("a summary", 6_000, 1_000),
        question("a search", 1_000, 10_000),
        question("a poem", 50, 500),
    ] {
        ask(&budget, "alice", &question).await?;
    }
    Ok(())
}
