//! [`RedisCommands`]: the application's own commands, on the connection of the store.

use redis::{Cmd, FromRedisValue, Pipeline, ToRedisArgs};

use super::client::Client;
use super::reply::read;
use super::scripts::Script;
use crate::error::StoreError;
use crate::key::Key;

/// Sends the application's own commands over the connection of a [`RedisStore`](crate::RedisStore).
///
/// A cheap handle: clones share the connection. It is the same connection as the store's, with the
/// same circuit breaker: to one server, to the master that Sentinels name, or to a Cluster. A call fails
/// once the connection has been silent for the response timeout of the store. At most 64 are under way to a server, together with
/// the store's own calls for bans, resets and explanations: others wait for up to a second, and then fail as
/// [`StoreError::Overloaded`]. While the store has no connection,
/// each call fails at once with [`StoreError::Unavailable`], but for the first attempt to connect, which it waits for.
///
/// Send no command that blocks, such as `BLPOP` or `XREAD BLOCK`: the checks behind it would wait. Nor one that changes the
/// connection for all, such as `SELECT`, `SUBSCRIBE`, `WATCH`, or `MULTI` outside of an atomic pipeline. Those need a
/// connection of their own.
///
/// Commands are made with `redis::cmd`: an application adds `redis = "1"` to its dependencies.
///
/// No call is repeated. After an error with [`StoreError::may_have_counted`] the server may have
/// executed it.
///
/// On a Cluster a command goes to the node of its first key, and follows a slot that moves. One without a key goes to any
/// node, and only to that one. While a slot is on its way, a transaction is refused if its keys are on the other node already.
///
/// Keys are sent as they are: the prefix of the store is not added to them. A key that does not
/// contain `{=` is not one of the store's, unless it ends in `:mark`. [`RedisCommands::key_name`] makes names as the
/// store does.
///
/// ```no_run
/// use tower_sliding_window::{RedisScript, RedisStore};
///
/// # async fn sell() -> Result<(), tower_sliding_window::StoreError> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// let commands = store.commands();
///
/// let stock: Option<u32> = commands.query(redis::cmd("GET").arg("shop:{iphone}:stock")).await?;
///
/// let take = RedisScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// let left: i64 = commands.script(&take, &["shop:{iphone}:stock"], &[1]).await?;
/// # let _ = (stock, left);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisCommands {
    client: Client,
}

impl RedisCommands {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the name of the Redis key for what an application keeps about a key: `PREFIX:{=KEY}:NAME`.
    ///
    /// Any bytes of the key are safe there, and a key of more than 128 bytes is hashed. On a Cluster all names
    /// of a key are in one slot, together with its logs. Use a `name` of
    /// three parts whose second does not begin with a digit, such as `chat:storm:log`: the store never uses such a name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// use tower_sliding_window::{Key, RedisStore};
    ///
    /// let store = RedisStore::connect_lazy("redis://127.0.0.1:6379")?;
    /// let name = store.commands().key_name(&Key::from("a}b"), "chat:storm:log");
    /// assert_eq!(name, b"tsw:{=a%7Db}:chat:storm:log");
    /// # Ok(())
    /// # }
    /// ```
    pub fn key_name(&self, key: &Key, name: &str) -> Vec<u8> {
        self.client.keys.name(key.as_bytes(), name)
    }

    /// Sends one command.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if there is no reply in time, if the reply is an error, or if it is not a `T`.
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        read(&self.client.send(command).await?)
    }

    /// Sends several commands at once, and returns their replies as one tuple or list.
    ///
    /// On a Cluster all keys must be in one slot.
    ///
    /// # Errors
    ///
    /// As for [`RedisCommands::query`]. An error in place of one reply is an error of the whole. It is
    /// [`StoreError::Uncertain`] if a node of a Cluster has executed some of the commands before their slot moved.
    pub async fn pipeline<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, StoreError> {
        read(&self.client.send_all(commands).await?)
    }

    /// Calls a script with these keys and arguments.
    ///
    /// The script is called by its hash. A server that does not have it gets its text. On a Cluster
    /// the first key says which server it runs on, and all keys must be in one slot.
    ///
    /// # Errors
    ///
    /// As for [`RedisCommands::query`].
    pub async fn script<T: FromRedisValue>(
        &self,
        script: &RedisScript,
        keys: impl ToRedisArgs,
        arguments: impl ToRedisArgs,
    ) -> Result<T, StoreError> {
        let mut command = script.0.command(keys.num_of_args());
        command.arg(keys).arg(arguments);
        read(&self.client.run(&script.0, &command).await?)
    }
}

impl std::fmt::Debug for RedisCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisCommands").finish_non_exhaustive()
    }
}

/// A Lua script of the application, for [`RedisCommands::script`].
#[derive(Clone)]
pub struct RedisScript(Script);

impl RedisScript {
    /// Takes the script's text. It is not compiled before the first call.
    pub fn new(text: &str) -> Self {
        Self(Script::new("custom", text.to_owned()))
    }
}

impl std::fmt::Debug for RedisScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisScript").finish_non_exhaustive()
    }
}
