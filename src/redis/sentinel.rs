//! [`Sentinel`]: finds the master through Redis Sentinel.

use std::collections::HashMap;

use redis::{Client, RedisConnectionInfo, RedisResult};
use tokio::task::JoinSet;

use super::connection::{Address, Certificates, STEP_TIMEOUT, at, connect_to, within};
use crate::error::StoreError;

#[derive(Clone)]
pub(crate) struct Sentinel {
    pub(super) sentinels: Vec<Client>,
    /// What the Sentinels call the master.
    pub(super) name: String,
    /// How to log in to the master.
    pub(super) login: RedisConnectionInfo,
    pub(super) certificates: Certificates,
}

impl Sentinel {
    /// Asks all Sentinels at once, and returns the master that most of them name, and whether more than half of all do. Does
    /// not wait for the others then, of which one may hang.
    pub(super) async fn master(&self) -> Result<(Address, bool), StoreError> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            asked.spawn(ask(sentinel.clone(), self.name.clone()));
        }
        let (mut votes, mut errors) = (HashMap::new(), Vec::new());
        while let Some(reply) = asked.join_next().await {
            match reply {
                Ok(Ok(master)) => {
                    let count = votes.entry(master.clone()).or_insert(0);
                    *count += 1;
                    if *count > self.sentinels.len() / 2 {
                        return Ok((master, true));
                    }
                }
                Ok(Err(error)) => errors.push(error),
                Err(_) => {}
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        // In one order, or each attempt would seem to fail for another reason.
        errors.sort();
        let unreachable = || StoreError::Unreachable { message: errors.join(", ") };
        most.map(|(master, _)| (master, false)).ok_or_else(unreachable)
    }

    /// Makes a client of a master. It uses TLS as the Sentinels do.
    pub(super) fn client(&self, master: Address) -> RedisResult<Client> {
        let info = at(self.sentinels[0].get_connection_info(), master)
            .set_redis_settings(self.login.clone());
        self.certificates.open(info)
    }
}

/// Asks a Sentinel. An error names it.
async fn ask(sentinel: Client, name: String) -> Result<Address, String> {
    let reply = async {
        let mut connection = connect_to(&sentinel).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        within(STEP_TIMEOUT, question.query_async::<Option<Address>>(&mut connection)).await
    };
    let error = match reply.await {
        Ok(Some(master)) => return Ok(master),
        Ok(None) => "the Sentinel knows no master of this name".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{}: {error}", sentinel.get_connection_info().addr()))
}
