//! Random histories of two processes with outages, lost replies and losses of data. When all is well again, Redis has
//! what was admitted and not cancelled since, and nothing else.

use std::cell::Cell;

use crate::*;

/// How many histories are played, unless `HISTORIES` is set.
const HISTORIES: u64 = 32;
const STEPS: usize = 60;
const MOST_TOKENS: u32 = 120;
const BUDGET: usize = 1;
const IN_FLIGHT: usize = 2;
const VALUES: usize = 3;
const LOGS: [&str; 4] = ["user:1h", "tokens:1h:budget", "jobs:1h:in_flight", "peers:1h:distinct"];
const MS: Duration = Duration::from_millis(1);

/// The places of each request in a log.
type Entries = BTreeMap<Uuid, u32>;

struct History {
    random: Rng,
    redis: Redis,
    processes: [Far; 2],
    policies: [PolicyHandle; 4],
    /// Each with its process, and its logs.
    admitted: Vec<(usize, Admitted, Vec<usize>)>,
    permits: Vec<(Uuid, Permit)>,
    entries: [Entries; 3],
    values: BTreeSet<u32>,
    /// Redis may have values that were not admitted here after it had admitted them.
    more_values: BTreeSet<u32>,
    done: Vec<String>,
}

impl History {
    async fn new(seed: u64) -> Self {
        let redis = Redis::start().await;
        let processes = [Far::from(&redis).await, Far::from(&redis).await];
        let policy = |name, limit| Policy::new(name).quota(Quota::per_hour(limit));
        let (jobs, peers) = (policy("jobs", 12).in_flight(), policy("peers", 3).distinct());
        let policies = [user(30), policy("tokens", MOST_TOKENS).budget(), jobs, peers];
        Self {
            random: Rng::with_seed(seed),
            redis,
            processes,
            policies: policies.map(PolicyHandle::new),
            admitted: Vec::new(),
            permits: Vec::new(),
            entries: Default::default(),
            values: BTreeSet::new(),
            more_values: BTreeSet::new(),
            done: vec![format!("history {seed}")],
        }
    }

    fn limiter(&self, process: usize) -> Limiter {
        limiter(&self.policies[0], &self.processes[process].store)
    }

    async fn step(&mut self) {
        let process = self.random.usize(0..2);
        match self.random.u8(0..28) {
            0..12 => self.check(1).await,
            12..14 => self.check(4).await,
            14..18 if !self.admitted.is_empty() => self.settle().await,
            18 if !self.permits.is_empty() => {
                let index = self.random.usize(0..self.permits.len());
                let (id, permit) = self.permits.swap_remove(index);
                drop(permit);
                self.entries[IN_FLIGHT].remove(&id);
                self.done.push(format!("release {id}"));
            }
            19 => {
                self.done.push("lose all data".to_owned());
                self.redis.run::<String>(&["FLUSHALL"]).await;
                // So long a process may not notice.
                sleep(1_200 * MS).await;
            }
            20..28 => self.set_fault(process),
            _ => {}
        }
        sleep(self.random.u32(0..12) * MS).await;
    }

    fn set_fault(&mut self, process: usize) {
        let proxy = &self.processes[process].proxy;
        let fault = match self.random.u8(0..5) {
            0 | 1 => Fault::Cut,
            2 | 3 => Fault::Delay(self.random.u32(0..25) * MS),
            _ => {
                proxy.drop_replies(1);
                self.done.push(format!("{process}: lose a reply"));
                return;
            }
        };
        proxy.set(fault);
        self.done.push(format!("{process}: {fault:?}"));
    }

    /// Sends checks at once, and lets a fault begin or end meanwhile.
    async fn check(&mut self, count: usize) {
        let mut checks = Vec::new();
        for _ in 0..count {
            let process = self.random.usize(0..2);
            let all = (0..LOGS.len()).map(|log| (log, self.random.u32(0..6)));
            let mut logs: Vec<(usize, u32)> = all.collect();
            logs.retain(|_| self.random.bool());
            if logs.is_empty() {
                continue;
            }
            let log_cost = |&(log, number): &(usize, u32)| match log {
                BUDGET => LogCost::from((&self.policies[log], "key", number)),
                VALUES => LogCost::from((&self.policies[log], "key")).value(number.to_string()),
                _ => LogCost::from((&self.policies[log], "key")),
            };
            let costs: Vec<LogCost> = logs.iter().map(log_cost).collect();
            let mut limiter = self.limiter(process);
            if self.random.u8(0..4) == 0 {
                limiter = limiter.failure_policy(FailurePolicy::Closed);
            }
            let check = async move { limiter.check_all(costs).await };
            checks.push((process, logs, tokio::spawn(check)));
        }
        if count > 1 {
            sleep(Duration::from_micros(self.random.u64(0..2_000))).await;
            let process = self.random.usize(0..2);
            self.set_fault(process);
        }
        for (process, logs, check) in checks {
            let decision = check.await.unwrap();
            self.done.push(format!("{process}: check {logs:?}: {decision:?}"));
            let by_redis = matches!(&decision, Ok(it) if it.decided_by() == DecidedBy::Store);
            let Ok(Decision::Admitted(admitted)) = decision else {
                let value = logs.iter().find(|(log, _)| *log == VALUES && !by_redis);
                self.more_values.extend(value.map(|(_, value)| value));
                continue;
            };
            for (log, number) in &logs {
                match *log {
                    VALUES => _ = self.values.insert(*number),
                    BUDGET if *number == 0 => {}
                    BUDGET => _ = self.entries[BUDGET].insert(admitted.id(), *number),
                    log => _ = self.entries[log].insert(admitted.id(), 1),
                }
                if *log == IN_FLIGHT {
                    self.permits.push((admitted.id(), self.limiter(process).hold(&admitted)));
                }
            }
            let logs = logs.into_iter().map(|(log, _)| log).filter(|log| *log != VALUES);
            self.admitted.push((process, admitted, logs.collect()));
        }
    }

    /// Cancels a request, or settles it.
    async fn settle(&mut self) {
        let (process, admitted, logs) = self.random.choice(&self.admitted).unwrap();
        let (id, cost) = (admitted.id(), self.random.u32(0..9).saturating_sub(3));
        let settled = self.limiter(*process).settle(admitted, cost).await;
        self.done.push(format!("{process}: settle {id} at {cost}: {settled:?}"));
        for log in logs {
            let entries = &mut self.entries[*log];
            if cost == 0 {
                entries.remove(&id);
            } else if *log == BUDGET
                && let Some(places) = entries.get_mut(&id)
            {
                *places = cost;
            }
        }
    }

    async fn in_redis(&self, log: usize) -> Entries {
        let name = format!("tsw:{{=key}}:{}", LOGS[log]);
        let found: Vec<Vec<u8>> = self.redis.run(&["ZRANGE", &name, "0", "-1"]).await;
        let mut entries = BTreeMap::<Uuid, f64>::new();
        // A budget begins with its sums. What was settled is next to its entry.
        for entry in found.iter().skip(usize::from(log == BUDGET)) {
            let cost = entry[16..].last_chunk().map_or(1.0, |cost| f64::from_be_bytes(*cost));
            *entries.entry(Uuid::from_slice(&entry[..16]).unwrap()).or_default() += cost;
        }
        entries.into_iter().map(|(id, cost)| (id, cost as u32)).collect()
    }

    /// Returns how what Redis has differs from what was admitted.
    async fn difference(&self) -> Option<String> {
        for (log, expected) in self.entries.iter().enumerate() {
            let found = self.in_redis(log).await;
            if found != *expected {
                return Some(format!("{}: {found:?} for {expected:?}", LOGS[log]));
            }
        }
        let left = limiter(&self.policies[BUDGET], &self.processes[0].store).peek("key").await;
        let (left, taken) = (left.unwrap().remaining(), self.entries[BUDGET].values().sum());
        if left != MOST_TOKENS.saturating_sub(taken) {
            return Some(format!("{left} tokens are left, and {taken} taken"));
        }
        let (found, values) = (self.in_redis(VALUES).await.len(), self.values.len());
        let fits = (values..=values + self.more_values.len()).contains(&found);
        (!fits).then(|| format!("{found} values for {:?}", self.values))
    }

    async fn end(&self) {
        for process in &self.processes {
            process.mend().await;
        }
        // After a loss, what a process knows of a log is written before its next check.
        sleep(1_200 * MS).await;
        let agrees = async || {
            for process in &self.processes {
                for policy in &self.policies {
                    let _ = limiter(policy, &process.store).peek("key").await;
                }
            }
            self.difference().await.is_none()
        };
        let what = self.done.join("\n");
        if timeout(5_000 * MS, eventually("", agrees)).await.is_err() {
            panic!("{}\n{what}", self.difference().await.unwrap_or_default());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_ends_with_what_was_admitted() {
    let end = std::env::var("HISTORIES").map_or(HISTORIES, |count| count.parse().unwrap());
    let next = Cell::new(0);
    let play = async |()| {
        while next.get() < end {
            let mut history = History::new(next.replace(next.get() + 1)).await;
            for _ in 0..STEPS {
                history.step().await;
            }
            history.end().await;
        }
    };
    join_all([(); 16].map(play)).await;
}
