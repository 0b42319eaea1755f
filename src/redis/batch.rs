//! [`Batch`]: sends the requests of concurrent callers in one script call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::client::Client;
use super::reply::malformed;
use crate::error::StoreError;

/// The most requests of one call. They keep Redis busy for about 0.15 ms.
const MOST: usize = 32;

type Reply = Result<i64, StoreError>;

/// A request to `admit.lua`.
pub(crate) struct Request {
    pub(crate) log: Vec<u8>,
    pub(crate) member: [u8; 16],
    pub(crate) limit: u32,
    pub(crate) window_s: u64,
}

/// Requests that wait while a call is under way, and then go together in the next ("group commit").
///
/// - A request that finds no call under way is sent at once, alone and by its caller. So a lone
///   request waits for nothing.
/// - The others are sent by a task: up to 32 in a call, in their order, and one call at a time. If
///   32 wait, another task sends them. A task ends when none waits.
/// - Each request has its own reply, and its own time limit from its arrival. One whose caller has
///   gone is not sent. If the reply to a call is lost, each caller learns that its request may have
///   been counted, and repeats it alone.
///
/// # Interleavings
///
/// - A request arrives while the task finds the queue empty. Both happen under the lock, so that
///   the request is taken by this task or starts another one.
/// - The runtime of the task ends. The callers whose requests it had taken learn that at once, by
///   their dropped senders. The next request starts another task.
///   Test: `batch_outlives_its_runtime`.
/// - The runtime of the task is no longer polled, but not dropped either. Callers give up at their
///   time limit. A task whose last call has begun longer ago than that counts as gone.
///   Test: `unpolled_batch_delays_no_other`.
#[derive(Clone)]
pub(crate) struct Batch(Arc<Shared>);

struct Shared {
    client: Client,
    response_timeout: Duration,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a caller has sent its request alone and waits for the reply.
    has_lone: bool,
    /// When the last call of the task began, while there is one.
    sending_since: Option<Instant>,
}

struct Waiting {
    request: Request,
    reply: oneshot::Sender<Reply>,
}

impl Batch {
    pub(crate) fn new(client: Client) -> Self {
        let response_timeout = client.response_timeout();
        Self(Arc::new(Shared { client, response_timeout, queue: Mutex::default() }))
    }

    /// Sends a request, alone or with others, and returns its own reply.
    pub(crate) async fn send(&self, request: Request) -> Reply {
        let shared = &*self.0;
        let reply = match self.enqueue(request) {
            Ok(reply) => reply,
            Err(request) => {
                let _lone = Lone(shared);
                let mut replies = shared.call(&[request]).await?;
                return replies.pop().unwrap_or_else(|| Err(malformed("expected one reply")));
            }
        };
        match timeout(shared.response_timeout, reply).await {
            Ok(Ok(reply)) => reply,
            // The task has ended with its runtime. It may have sent the request.
            Ok(Err(_)) => {
                let message = "the runtime of the call has ended".to_owned();
                Err(StoreError::Disconnected { message })
            }
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Puts a request into the queue, and starts the task if there is none. Returns the request if
    /// there is nothing to wait for.
    fn enqueue(&self, request: Request) -> Result<oneshot::Receiver<Reply>, Request> {
        let mut queue = self.0.lock();
        let is_sending =
            queue.sending_since.is_some_and(|since| since.elapsed() <= self.0.response_timeout);
        if !is_sending && !queue.has_lone {
            queue.has_lone = true;
            return Err(request);
        }
        let (reply, receiver) = oneshot::channel();
        queue.waiting.push_back(Waiting { request, reply });
        if (!is_sending || queue.waiting.len().is_multiple_of(MOST))
            && let Ok(runtime) = Handle::try_current()
        {
            queue.sending_since = Some(Instant::now());
            let batch = self.clone();
            runtime.spawn(async move { batch.0.send_waiting().await });
        }
        Ok(receiver)
    }
}

/// A request that its caller sends alone.
struct Lone<'a>(&'a Shared);

impl Drop for Lone<'_> {
    fn drop(&mut self) {
        self.0.lock().has_lone = false;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what waits, until nothing does.
    async fn send_waiting(&self) {
        while let Some((requests, callers)) = self.take() {
            let replies = match self.call(&requests).await {
                Ok(replies) => replies,
                Err(error) => vec![Err(error); callers.len()],
            };
            for (caller, reply) in callers.into_iter().zip(replies) {
                // An error means that the caller has gone.
                let _ = caller.send(reply);
            }
            // The callers that have their replies often send their next requests at once.
            yield_now().await;
        }
    }

    /// Takes the requests of the next call. If there is none, the task is over.
    fn take(&self) -> Option<(Vec<Request>, Vec<oneshot::Sender<Reply>>)> {
        let mut queue = self.lock();
        let (mut requests, mut callers) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST));
        while requests.len() < MOST
            && let Some(Waiting { request, reply }) = queue.waiting.pop_front()
        {
            if !reply.is_closed() {
                requests.push(request);
                callers.push(reply);
            }
        }
        let is_over = requests.is_empty();
        queue.sending_since = if is_over { None } else { Some(Instant::now()) };
        (!is_over).then_some((requests, callers))
    }

    async fn call(&self, requests: &[Request]) -> Result<Vec<Reply>, StoreError> {
        let script = &self.client.scripts().admit;
        let mut command = script.command(requests.len());
        for request in requests {
            command.arg(&request.log);
        }
        for Request { member, limit, window_s, .. } in requests {
            command.arg(member).arg(limit).arg(window_s);
        }
        self.client.run_many(script, &command, requests.len()).await
    }
}
