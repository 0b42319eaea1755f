//! One fault under load: what is checked of each, and the row it gets in `RELIABILITY.md`.

use std::io::Write;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sliding_window::store::Store;
use tower_sliding_window::{DecidedBy, FailurePolicy};

use crate::load::{Answered, LIMIT, Load, Responses, USERS, WINDOW};

/// The response timeout of the stores under test: the default.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// What a silence adds.
pub const TIMEOUT_ONCE: &str = "the response timeout, for requests under way at the start";

/// Makes a fault with the usual bounds: its row's number and its name. The test is the one that it is made in.
#[macro_export]
macro_rules! fault {
    ($number:expr, $name:expr) => {{
        fn here() {}
        $crate::fault::Fault::new($number, $name, std::any::type_name_of_val(&here))
    }};
}

/// A fault and its bounds.
#[derive(Clone, Copy)]
pub struct Fault {
    /// The row's place in the table.
    pub number: u32,
    /// What fails.
    pub name: &'static str,
    /// The test that shows it.
    pub test: &'static str,
    /// What a client sees meanwhile.
    pub client_sees: &'static str,
    /// What a request may have to wait longer because of it.
    pub added_latency: &'static str,
    /// How many more than the limit may be admitted in a window.
    pub over_admission: usize,
    /// Whether windows in the process decide while it lasts.
    pub decided_here: bool,
}

impl Fault {
    /// A fault with the usual bounds. [`fault!`](crate::fault!) has the path of a function in the test.
    pub fn new(number: u32, name: &'static str, path: &'static str) -> Self {
        let test = path.split("::{{closure}}").next().unwrap().trim_end_matches("::here");
        Self {
            number,
            name,
            test: test.rsplit("::").next().unwrap(),
            client_sees: "no difference: the process decides",
            added_latency: "none after the first failure",
            over_admission: 0,
            decided_here: true,
        }
    }

    /// Says what a client sees meanwhile.
    pub fn sees(self, client_sees: &'static str) -> Self {
        Self { client_sees, ..self }
    }

    /// Says what a request may have to wait longer.
    pub fn adds(self, added_latency: &'static str) -> Self {
        Self { added_latency, ..self }
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

    /// Writes the fault's row.
    pub fn report(&self, during: &Responses, over: usize) {
        let during = during.those(|answer| answer.user < USERS);
        let slowest = during.0.iter().map(Answered::took).max().unwrap_or_default();
        let here = |it: &Answered| it.decided_by == Some(DecidedBy::LocalLog);
        let bound = match self.over_admission {
            0 => "0".to_owned(),
            bound if bound == LIMIT as usize => "the limit".to_owned(),
            bound if bound == LIMIT as usize - 1 => "less than the limit".to_owned(),
            bound => bound.to_string(),
        };
        let measured = format!(
            "{over} too many; of {} responses {} admitted in the process, {} took {} ms or more, the slowest {} ms",
            during.0.len(),
            during.count(here),
            during.count(|answer| answer.took() >= TIMEOUT),
            TIMEOUT.as_millis(),
            slowest.as_millis()
        );
        self.write_row(&bound, &measured);
    }

    /// Writes the fault's row with a bound and a figure of the test's own.
    pub fn write_row(&self, bound: &str, measured: &str) {
        let directory = crate::program::target_directory().join("tmp/reliability");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{:02}-{}", self.number, self.test));
        let mut row = std::fs::File::create(path).unwrap();
        let Self { name, test, client_sees, added_latency, .. } = self;
        writeln!(
            row,
            "| {name} | {client_sees} | {added_latency} | {bound} | {measured} | `{test}` |"
        )
        .unwrap();
        println!("{name}: {measured}");
    }
}
