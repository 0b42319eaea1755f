//! [`Calls`]: scripts called on the link, about keys of one prefix.

use redis::{Cmd, Pipeline, Value};

use super::keys::Keys;
use super::link::Link;
use super::reply;
use super::script::Script;
use crate::error::StoreError;
use crate::key::Key;

/// What every part of a store on Redis needs: the link, and how its keys are named. Clones are one.
#[derive(Clone)]
pub(crate) struct Calls {
    link: Link,
    keys: Keys,
}

impl Calls {
    pub(super) fn new(link: Link, keys: Keys) -> Self {
        Self { link, keys }
    }

    /// Returns the name of what is kept for a key under a name: `PREFIX:{=KEY}:NAME`. All that has
    /// one key has one cluster slot.
    pub(crate) fn name(&self, key: &Key, name: &str) -> Vec<u8> {
        self.keys.name(key.as_bytes(), name)
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Tells whether the keys are on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        self.link.is_cluster()
    }

    /// Calls a script, and waits for the answer no longer than the store's response timeout.
    ///
    /// The command begins with [`Script::command`].
    pub(crate) async fn run(&self, script: &Script, command: &Cmd) -> Result<Value, StoreError> {
        self.link.call(async |mut connection| script.run(command, &mut connection).await).await
    }

    /// Calls a script, and again if the answer is lost: for one that does what was done once not
    /// twice, and answers the same.
    pub(crate) async fn run_surely(
        &self,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        match self.run(script, command).await {
            Err(error) if error.may_have_counted() => {
                self.run(script, command).await.map_err(|_| error)
            }
            answer => answer,
        }
    }

    /// Sends several commands at once, and returns the reply to each.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let ask = async |mut connection| commands.query_async(&mut connection).await;
        self.link.call(async |connection| ask(connection).await.map_err(reply::error)).await
    }

    /// Sends any other command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, StoreError> {
        let ask = async |mut connection| command.query_async(&mut connection).await;
        self.link.call(async |connection| ask(connection).await.map_err(reply::error)).await
    }
}
