//! A `redis-server` process without persistence, on a free port of the loopback interface.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long the server may take to reply after it was started.
const PATIENCE: Duration = Duration::from_secs(10);

/// It ends with its handle.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    pub(crate) fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .context("can't start redis-server: is it on PATH?")?;
        let mut server = Self { process, port };
        let give_up = Instant::now() + PATIENCE;
        while server.ping().is_err() {
            if Instant::now() > give_up || server.process.try_wait()?.is_some() {
                bail!("redis-server does not reply on port {port}");
            }
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn ping(&self) -> Result<()> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        connection.read_exact(&mut reply)?;
        anyhow::ensure!(&reply == b"+PONG\r\n", "another server has the port");
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
