//! [`ClientLimits`]: what one client, and all clients together, may hold of a server.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;

use super::open_connections::OpenConnections;
use crate::flags::ListenFlags;
use crate::logs::Throttle;

/// File descriptors that are not for clients: those of Redis, of the listeners, and the like.
const OTHER_DESCRIPTORS: usize = 128;
/// The connections of a listener for operators.
const OPERATORS: usize = 64;

static FULL: Throttle = Throttle::new();

/// The timeouts of a server, and its cap of connections.
pub(super) struct ClientLimits {
    pub(super) idle_timeout: Duration,
    pub(super) io_timeout: Duration,
    pub(super) connections: Arc<OpenConnections>,
    places: Arc<Semaphore>,
}

impl ClientLimits {
    /// Takes the limits from the flags. Raises the number of files that the process may open, if the
    /// system lets it: the default of 1024 is less than a sale needs.
    pub(super) fn of(flags: &ListenFlags) -> Self {
        let wanted = flags.max_connections.get() as usize;
        let descriptors = rlimit::increase_nofile_limit((wanted + OTHER_DESCRIPTORS) as u64);
        let descriptors = descriptors.map_or(usize::MAX, |limit| limit as usize);
        let connections = wanted.min(descriptors.saturating_sub(OTHER_DESCRIPTORS).max(1));
        if connections < wanted {
            tracing::warn!(
                connections,
                "the system allows fewer connections than --max-connections: raise `ulimit -Hn`"
            );
        }
        Self::new(flags.idle_timeout, flags.io_timeout, connections)
    }

    /// Returns the limits of a second listener, which clients of the first can't use up.
    pub(super) fn for_operators(&self) -> Self {
        Self::new(self.idle_timeout, self.io_timeout, OPERATORS)
    }

    fn new(idle_timeout: Duration, io_timeout: Duration, connections: usize) -> Self {
        let places = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        Self { idle_timeout, io_timeout, connections: OpenConnections::new(), places }
    }

    /// Waits until there may be one more connection, for which idle ones make room. It counts until
    /// the place is dropped.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        FULL.log(|times| {
            tracing::warn!(
                times,
                "all connections are taken: idle ones of the clients with the most are closed for new ones"
            );
        });
        tokio::select! {
            // An error means that the semaphore is closed, which it never is.
            place = self.places.clone().acquire_owned() => place.ok(),
            never = self.connections.make_room() => match never {},
        }
    }

    /// Makes writes to a client fail if it takes nothing for the I/O timeout, and sends small
    /// responses at once: without `TCP_NODELAY` the second response of a pipeline waits for the
    /// acknowledgement of the first.
    pub(super) fn limited(&self, stream: TcpStream) -> Pin<Box<TimeoutStream<TcpStream>>> {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection has no TCP_NODELAY");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.io_timeout));
        Box::pin(stream)
    }
}
