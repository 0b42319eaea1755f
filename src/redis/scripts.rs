//! [`Scripts`]: the Lua scripts, which are called by hash.

use std::sync::{Arc, LazyLock};

use redis::{Arg, Cmd};

/// All scripts of the crate. Each file describes its script.
pub(crate) struct Scripts {
    pub(crate) admit: Script,
    pub(crate) reconcile: Script,
    pub(crate) reset: Script,
    pub(crate) ban: Script,
    pub(crate) lift: Script,
}

impl Scripts {
    fn new(code: impl Fn(&str) -> String) -> Self {
        let script = |name, text| Script::new(name, code(text));
        Self {
            admit: script("admit", include_str!("../../lua/limit/admit.lua")),
            reconcile: script("reconcile", include_str!("../../lua/limit/reconcile.lua")),
            reset: script("reset", include_str!("../../lua/limit/reset.lua")),
            ban: script("ban", include_str!("../../lua/ban/ban.lua")),
            lift: script("lift", include_str!("../../lua/ban/lift.lua")),
        }
    }

    pub(crate) fn shipped() -> &'static Self {
        static SHIPPED: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(str::to_owned));
        &SHIPPED
    }
}

/// A script. Clones share its text.
#[derive(Clone)]
pub(crate) struct Script {
    code: Arc<str>,
    hash: Arc<str>,
    /// The name in metrics.
    name: &'static str,
}

impl Script {
    pub(crate) fn new(name: &'static str, code: String) -> Self {
        let hash = redis::Script::new(&code).get_hash().into();
        Self { code: code.into(), hash, name }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Starts the command of a call. The caller adds `keys` keys, and then the arguments.
    pub(crate) fn command(&self, keys: usize) -> Cmd {
        self.start(keys, keys)
    }

    fn start(&self, keys: usize, declared: usize) -> Cmd {
        // Keeps all arguments in one buffer, unlike `redis::ScriptInvocation`.
        // A key takes about 45 bytes, and its request an identity of 16.
        let mut command = Cmd::with_capacity(16 + 2 * keys, 256 + 64 * keys);
        command.arg("EVALSHA").arg(&*self.hash).arg(declared);
        command
    }

    /// Starts the command of a call that several requests may share, with all of their keys. The caller adds the
    /// arguments.
    ///
    /// Only the first keys may be declared. If they are in several slots of one node of a Cluster, none is: Redis refuses a call
    /// that declares keys of several slots, but a script without flags
    /// [may use them](https://redis.io/docs/latest/develop/programmability/lua-api/#script_flags).
    /// With one, Redis could redirect the call to a node that is about to get its slot, and this node would also make
    /// logs that the other one still has.
    pub(super) fn shared_command(&self, names: &[Vec<u8>], declared: usize) -> Cmd {
        let mut command = self.start(names.len(), declared);
        command.arg(&names[..declared]).arg(names.len() - declared).arg(&names[declared..]);
        command
    }

    /// Returns a command with the text of the script in place of its hash, which also loads it.
    // EVAL, not SCRIPT LOAD and EVALSHA: the scripts may be flushed between the two.
    pub(super) fn with_text(&self, command: &Cmd) -> Cmd {
        let mut named = redis::cmd("EVAL");
        named.arg(&*self.code);
        for argument in command.args_iter().skip(2) {
            // Other kinds of arguments belong to SCAN and similar commands.
            if let Arg::Simple(argument) = argument {
                named.arg(argument);
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much later Redis keeps the expiries of scripts with a test clock, because its own clock is
    /// another one: ten years.
    const EXPIRES_LATER_MS: u64 = 315_360_000_000;

    impl Scripts {
        /// Returns the scripts with a test clock: they read the hash `clock` (fields `s` and `us`)
        /// instead of `TIME`, also for the expiries of logs.
        pub(crate) fn with_clock(clock: &str) -> &'static Self {
            let functions = r"
                local later_ms = LATER
                local function now() return redis.call('HMGET', 'CLOCK', 's', 'us') end
                local function ms(time) return time[1] * 1000 + math.floor(time[2] / 1000) end
                local function pttl(log)
                  -- Redis 7.0 reads PTTL as of the beginning of a script, and TIME anew.
                  local at_ms = redis.pcall('PEXPIRETIME', log)
                  if type(at_ms) == 'table' then
                    -- Redis 6.2 does not know it.
                    local left_ms = redis.call('PTTL', log)
                    at_ms = left_ms < 0 and left_ms or left_ms + ms(redis.call('TIME'))
                  end
                  return at_ms < 0 and at_ms or math.max(0, at_ms - later_ms - ms(now()))
                end
                local function pexpireat(log, at_ms) redis.call('PEXPIREAT', log, at_ms + later_ms) end
            ";
            let functions =
                functions.replace("CLOCK", clock).replace("LATER", &EXPIRES_LATER_MS.to_string());
            Box::leak(Box::new(Self::new(|shipped| {
                let time = "call('TIME')";
                assert_eq!(shipped.matches(time).count(), 1, "TIME is called once");
                let code = shipped
                    .replace(time, "now()")
                    .replace("call('PTTL', log)", "pttl(log)")
                    .replace("try('PTTL', log)", "pttl(log)")
                    .replace("call('PEXPIREAT', ", "pexpireat(");
                functions.clone() + &code
            })))
        }
    }
}
