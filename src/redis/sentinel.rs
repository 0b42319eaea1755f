//! [`Sentinel`]: finds the master through Redis Sentinel.

use std::collections::HashMap;

use redis::{Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, RedisResult};
use tokio::task::JoinSet;

use super::connection::{Address, Certificates, STEP_TIMEOUT, at, connect_to, within};

#[derive(Clone)]
pub(crate) struct Sentinel {
    pub(super) sentinels: Vec<ConnectionInfo>,
    /// What the Sentinels call the master.
    pub(super) name: String,
    /// How to log in to the master.
    pub(super) login: RedisConnectionInfo,
    pub(super) certificates: Certificates,
}

impl Sentinel {
    /// Asks all Sentinels at once, and returns the master that most of them name, and whether more than half of all do. Does
    /// not wait for the others then, of which one may hang.
    pub(super) async fn master(&self) -> RedisResult<(Address, bool)> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            asked.spawn(ask(self.certificates.open(sentinel.clone())?, self.name.clone()));
        }
        let (mut votes, mut error) = (HashMap::new(), None);
        while let Some(reply) = asked.join_next().await {
            match reply {
                Ok(Ok(master)) => {
                    let count = votes.entry(master.clone()).or_insert(0);
                    *count += 1;
                    if *count > self.sentinels.len() / 2 {
                        return Ok((master, true));
                    }
                }
                Ok(Err(failed)) => error = Some(failed),
                Err(_) => {}
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(master, _)| (master, false)).ok_or_else(|| error.unwrap_or_else(unknown))
    }

    /// Makes a client of a master. It uses TLS as the Sentinels do.
    pub(super) fn client(&self, master: Address) -> RedisResult<Client> {
        let info = at(&self.sentinels[0], master).set_redis_settings(self.login.clone());
        self.certificates.open(info)
    }
}

async fn ask(sentinel: Client, name: String) -> RedisResult<Address> {
    let mut connection = connect_to(&sentinel).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = question.query_async::<Option<Address>>(&mut connection);
    within(STEP_TIMEOUT, reply).await?.ok_or_else(unknown)
}

fn unknown() -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, "the Sentinels know no master of this name").into()
}
