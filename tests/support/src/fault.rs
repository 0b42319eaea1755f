//! One fault under load: what is checked of each, and the figures of its row in `RELIABILITY.md`.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sliding_window::store::Store;
use tower_sliding_window::{DecidedBy, FailurePolicy};

use crate::load::{Answered, LIMIT, Load, Responses, USERS, WINDOW};

/// The response timeout of the stores under test: the default.
pub const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
pub struct Fault {
    /// The test that shows it, which its row names.
    pub test: &'static str,
    /// How many more than the limit may be admitted in a window.
    pub over_admission: usize,
    /// Whether windows in the process decide while it lasts.
    pub decided_here: bool,
}

impl Fault {
    /// A fault that the process decides in, and that lets nothing through above the limit.
    pub fn new(test: &'static str) -> Self {
        Self { test, over_admission: 0, decided_here: true }
    }

    /// Has a fault begin and end under load with the default failure policy, and checks its bounds.
    /// When `end` is through, the store can answer again.
    pub async fn strikes(
        self,
        store: impl Store,
        begin: impl AsyncFnOnce(),
        end: impl AsyncFnOnce(),
    ) -> Responses {
        let load = Load::start(store, FailurePolicy::default());
        load.until_decided_by(DecidedBy::Store).await;
        sleep(WINDOW / 4).await;
        let began = Instant::now();
        begin().await;
        self.ends([load], began, end).await
    }

    /// Has a fault end that began under this load, of one process or several, and checks its bounds.
    pub async fn ends<const N: usize>(
        self,
        loads: [Load; N],
        began: Instant,
        end: impl AsyncFnOnce(),
    ) -> Responses {
        let all_decided_by = async |by| {
            for load in &loads {
                load.until_decided_by(by).await;
            }
        };
        if self.decided_here {
            all_decided_by(DecidedBy::LocalLog).await;
            sleep(WINDOW * 3 / 4).await;
        }
        end().await;
        let decided = async {
            all_decided_by(DecidedBy::Store).await;
            Instant::now()
        };
        let (ended, back) = tokio::join!(decided, loads[0].store_must_be_back());
        sleep(WINDOW * 5 / 4).await;
        let mut answers = Responses(Vec::new());
        for load in loads {
            answers.0.extend(load.stop().await.0);
        }

        answers.are_decisions();
        answers.no_user_starves();
        answers.decided_by_the_store_since(back);
        let over = answers.over_admitted();
        assert!(over <= self.over_admission, "{over} more than {LIMIT} were admitted in a window");
        self.report(&answers.between(began, ended), over);
        answers
    }

    fn report(&self, during: &Responses, over: usize) {
        let during = during.those(|answer| answer.user < USERS);
        let slowest = during.0.iter().map(Answered::took).max().unwrap_or_default();
        let bound = match self.over_admission {
            bound if bound == LIMIT as usize => "the limit".to_owned(),
            bound if bound == LIMIT as usize - 1 => "less than the limit".to_owned(),
            bound => bound.to_string(),
        };
        let measured = format!(
            "{over} too many; of {} responses {} admitted in the process, {} took {} ms or more, the slowest {} ms",
            during.0.len(),
            during.count(|it| it.decided_by == Some(DecidedBy::LocalLog)),
            during.count(|answer| answer.took() >= TIMEOUT),
            TIMEOUT.as_millis(),
            slowest.as_millis()
        );
        report(self.test, &bound, &measured);
    }
}

/// Keeps the bound and the figures of a test for its row, which `tests/reliability.sh` writes.
pub fn report(test: &str, bound: &str, measured: &str) {
    let directory = crate::program::target_directory().join("tmp/reliability");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(test), format!("{bound} | {measured}\n")).unwrap();
    println!("{test}: {measured}");
}
