//! [`Batch`]: sends the requests of concurrent callers in one script call.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::circuit_breaker::{LONGEST_WAIT, MOST_CALLS};
use super::client::Client;
use super::keys::Keys;
use super::reply::{Replies, malformed};
use super::request::is_redirection;
use super::scripts::{Script, Scripts};
use crate::error::{StoreError, task_has_ended};
use crate::telemetry;
use crate::window::LogId;

/// The most requests of one call. As checks they keep Redis busy for about 0.15 ms.
const MOST: usize = 32;
/// How often other tasks run before a call. More save nothing: a batch has its size by then.
const MOST_YIELDS: usize = 8;
/// A call takes no more requests when they have this many places. They keep Redis busy for about
/// half a millisecond.
const MOST_PLACES: usize = 512;

/// How long a request waits for a call under way before it goes in another one. Redis is then far away, or
/// the process busy.
const LONGEST_GATHERING: Duration = Duration::from_millis(5);

/// The most nodes of a Cluster that have a queue of their own.
const MOST_NODES: usize = 128;
/// The most requests that wait. A process that gets more in a second can't serve them.
const MOST_WAITING: usize = 65_536;

type Result<T> = std::result::Result<T, StoreError>;

/// A request to a script that takes several in one call, each with a reply of its own.
pub(crate) trait BatchedRequest: Sized + Send + Sync + 'static {
    type Reply: Send + 'static;

    /// How many of its keys, the first ones, a node of a Cluster must have.
    const MOST_DECLARED: usize = usize::MAX;

    /// What requests have in common that are beside each other in a call.
    type Shape: Ord;

    fn script(scripts: &'static Scripts) -> &'static Script;

    /// Returns how many entries the request adds or changes at most.
    fn places(&self) -> usize;

    fn shape(&self) -> Self::Shape;

    /// Returns one of its logs, which all have one key. A request without logs has none.
    fn log(&self) -> Option<&LogId>;

    /// Adds the names of its Redis keys.
    fn add_keys(&self, keys: &Keys, names: &mut Vec<Vec<u8>>);

    /// Adds the arguments of a call with these requests.
    fn add_arguments<'a>(requests: impl Iterator<Item = &'a Self> + Clone, command: &mut Cmd);

    /// Reads the reply to each request of a call.
    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        replies: Replies<'_>,
    ) -> Result<Vec<Result<Self::Reply>>>;
}

/// Requests that wait while a call is under way, and then go together in the next ("group commit").
///
/// - A task sends them: up to 32 in a call, in their order, and one call at a time.
///   Before each call it lets other tasks run while they bring more requests: no timer is involved.
///   If 32 wait, or the call has been under way for 5 ms, another task sends them: a Redis far away has
///   many calls under way. A task ends when none waits.
/// - At most 64 calls are under way, beside those of [`Client::run`]. A request that has waited for a second when its call
///   begins, while others began, is not sent, and its caller learns that the store is overloaded, or gone if nothing replied
///   meanwhile: in an overload each call serves requests whose callers still wait, and when the load falls, service is back at
///   once. Requests that are sent alone wait for the places of [`Client::run`].
/// - On a Cluster all of this holds for each node by itself. A call has keys of several slots there, of which the
///   node may have given some away: the requests that it refuses are sent alone, and find the other node. So is one that
///   was alone already: of a slot on its way, the node refuses a log as soon as a call has removed its last entry.
/// - Each request has its own reply. A check whose caller has gone is not sent. If the reply to a call
///   is lost, each caller learns that Redis may have served its request, and sends it again.
///
/// # Interleavings
///
/// - A request arrives while the task finds the queue empty, or ends thereafter. Both happen under the lock: the request is
///   taken by this task, or starts another one, so that the end of the first one abandons nothing.
/// - The runtime of the task ends. The callers whose requests it had taken, and of those that wait
///   behind them if there is no other task, learn that at once, by their dropped senders. The next request starts another task.
///   Test: `batch_outlives_its_runtime`.
/// - The runtime of the task is no longer polled, but not dropped either. Callers give up at their
///   time limit. A task whose last call has begun longer ago than that counts as gone.
///   Test: `unpolled_batch_delays_no_other`.
pub(crate) struct Batch<R: BatchedRequest> {
    client: Client,
    /// One for a server, and one for each node of a Cluster.
    queues: Box<[Mutex<Queue<R>>]>,
}

struct Queue<R: BatchedRequest> {
    waiting: VecDeque<QueuedRequest<R>>,
    /// When the last call of a task began, while there is one.
    sending_since: Option<Instant>,
    /// How many tasks there are.
    tasks: usize,
    /// When requests were last taken.
    taken_at: Instant,
    /// Since when they are taken without a long pause. After one, in which this process stood still, or nobody sent a request,
    /// those that wait have not waited for Redis.
    going_since: Instant,
}

struct QueuedRequest<R: BatchedRequest> {
    request: R,
    since: Instant,
    caller: Caller<R>,
}

type Caller<R> = oneshot::Sender<Result<<R as BatchedRequest>::Reply>>;

impl<R: BatchedRequest> Batch<R> {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        let queues = if client.is_cluster() { MOST_NODES } else { 1 };
        let now = Instant::now();
        let queue = || Queue {
            waiting: VecDeque::new(),
            sending_since: None,
            tasks: 0,
            taken_at: now,
            going_since: now,
        };
        let queues = (0..queues).map(|_| Mutex::new(queue())).collect();
        Arc::new(Self { client, queues })
    }

    /// Sends a request with others that come meanwhile. `now` is the present instant.
    pub(crate) fn send(
        self: &Arc<Self>,
        request: R,
        now: Instant,
    ) -> impl Future<Output = Result<R::Reply>> + Send + use<R> {
        let (caller, reply) = oneshot::channel();
        match self.queue_of(&request) {
            Some(queue) => self.enqueue(queue, request, caller, now),
            None => self.send_alone(request, caller),
        }
        // The task sees the call to its end. This is for a task that is no longer polled.
        let longest = self.client.cluster.response_timeout.saturating_mul(2);
        let reply = timeout(LONGEST_WAIT.saturating_add(longest), reply);
        async move {
            match reply.await {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) => Err(task_has_ended()),
                Err(_) => Err(StoreError::Timeout),
            }
        }
    }

    /// Puts a request into a queue, and starts a task if it needs one.
    fn enqueue(self: &Arc<Self>, number: usize, request: R, caller: Caller<R>, now: Instant) {
        let mut queue = self.lock(number);
        let sending_for = queue.sending_since.map(|since| now.saturating_duration_since(since));
        let is_sending = sending_for.is_some_and(|time| time <= LONGEST_GATHERING);
        // A task whose last call began so long ago counts as gone.
        let is_gone = sending_for.is_none_or(|time| time > self.client.cluster.response_timeout);
        if queue.waiting.len() >= MOST_WAITING {
            let since = queue.waiting.front().map_or(now, |first| first.since);
            drop(queue);
            let error = match now.saturating_duration_since(since) > LONGEST_WAIT {
                true => self.client.breaker_of(request.log()).waited_too_long(since),
                // So many at once are no silence.
                false => StoreError::Overloaded,
            };
            let _ = caller.send(Err(error));
            return;
        }
        queue.waiting.push_back(QueuedRequest { request, since: now, caller });
        let is_more = !is_sending || queue.waiting.len().is_multiple_of(MOST);
        if is_gone || is_more && queue.tasks < MOST_CALLS {
            self.start_task(number, queue, now);
        }
    }

    /// Sends what waits in a queue, until nothing does.
    async fn send_waiting(self: &Arc<Self>, queue: usize) {
        loop {
            self.gather(queue).await;
            let Some(batch) = self.take(queue) else { break };
            let result = {
                let mut call = pin!(self.call(batch.iter().map(|waiting| &waiting.request)));
                match timeout(LONGEST_GATHERING, call.as_mut()).await {
                    Ok(result) => result,
                    Err(_) => {
                        self.send_beside(queue);
                        call.await
                    }
                }
            };
            let (is_cluster, requests) = (self.client.is_cluster(), batch.len());
            let replies =
                result.unwrap_or_else(|error| batch.iter().map(|_| Err(error.clone())).collect());
            for (waiting, reply) in batch.into_iter().zip(replies) {
                // A slot of its keys may have moved to another node.
                let may_be_elsewhere = |error: &_| may_be_elsewhere(error, requests);
                if is_cluster && reply.as_ref().is_err_and(may_be_elsewhere) {
                    self.send_alone(waiting.request, waiting.caller);
                } else {
                    // An error means that the caller has gone.
                    let _ = waiting.caller.send(reply);
                }
            }
        }
    }

    /// Sends a request in a call of its own.
    fn send_alone(self: &Arc<Self>, request: R, caller: Caller<R>) {
        if caller.is_closed() {
            return;
        }
        let batch = self.clone();
        tokio::spawn(async move {
            let breaker = batch.client.breaker_of(request.log());
            let replies = match breaker.place().await {
                Ok(_) if caller.is_closed() => return,
                Ok(_place) => batch.call([&request].into_iter()).await,
                Err(error) => Err(error),
            };
            let reply = replies.map(|mut replies| replies.pop());
            let none = || Err(malformed("expected one reply"));
            let _ = caller.send(reply.and_then(|reply| reply.unwrap_or_else(none)));
        });
    }

    /// Starts another task for what waits.
    fn send_beside(self: &Arc<Self>, number: usize) {
        let queue = self.lock(number);
        if !queue.waiting.is_empty() && queue.tasks < MOST_CALLS {
            self.start_task(number, queue, Instant::now());
        }
    }

    fn start_task(
        self: &Arc<Self>,
        number: usize,
        mut queue: MutexGuard<'_, Queue<R>>,
        now: Instant,
    ) {
        queue.sending_since = Some(now);
        queue.tasks += 1;
        // Outside a runtime and in one that ends, the task is dropped at once, which takes the lock.
        drop(queue);
        let task = Task { batch: self.clone(), queue: number };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let Task { batch, queue } = &task;
                batch.send_waiting(*queue).await;
            });
        }
    }
}

/// Counts as one of the tasks of a queue until it is dropped.
struct Task<R: BatchedRequest> {
    batch: Arc<Batch<R>>,
    queue: usize,
}

impl<R: BatchedRequest> Drop for Task<R> {
    fn drop(&mut self) {
        let mut queue = self.batch.lock(self.queue);
        queue.tasks -= 1;
        if queue.tasks == 0 {
            // Nothing waits, unless the runtime has ended. Then there may be no next request that starts another task.
            queue.sending_since = None;
            let abandoned: Vec<_> = queue.waiting.drain(..).collect();
            drop(queue);
            // Not under the lock: it wakes the callers.
            drop(abandoned);
        }
    }
}

/// Returns whether a node may have refused a request in a call of so many because its keys are elsewhere, or a proxy because
/// it does not know where they are. One that was alone has followed the redirections already.
fn may_be_elsewhere(error: &StoreError, requests: usize) -> bool {
    let StoreError::Refused { code, .. } = error else { return false };
    let may_be = is_redirection(code) || matches!(&**code, "CLUSTERDOWN" | "CROSSSLOT");
    code == "ERR" || requests > 1 && may_be
}

impl<R: BatchedRequest> Batch<R> {
    fn lock(&self, queue: usize) -> MutexGuard<'_, Queue<R>> {
        self.queues[queue].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queue of a request, or `None` if it is not known which node has it.
    fn queue_of(&self, request: &R) -> Option<usize> {
        self.client.number_of(request.log()).filter(|number| *number < self.queues.len())
    }

    /// Lets other tasks run for as long as they bring more requests: those that have their replies
    /// often send the next at once. A task that waits for nothing else takes about a microsecond.
    async fn gather(&self, queue: usize) {
        let mut waiting = 0;
        for _ in 0..MOST_YIELDS {
            yield_now().await;
            let before = mem::replace(&mut waiting, self.lock(queue).waiting.len());
            if waiting == before || waiting >= MOST {
                break;
            }
        }
    }

    /// Takes the requests of the next call. If there is none, the task is over.
    fn take(&self, queue: usize) -> Option<Vec<QueuedRequest<R>>> {
        let now = Instant::now();
        let mut queue = self.lock(queue);
        let (mut batch, mut places) = (Vec::with_capacity(queue.waiting.len().min(MOST)), 0);
        let mut late = Vec::new();
        let pause = now.saturating_duration_since(mem::replace(&mut queue.taken_at, now));
        // Unless all places are taken by calls that last for so long.
        if pause > LONGEST_WAIT / 2 && queue.tasks < MOST_CALLS {
            queue.going_since = now;
        }
        while batch.len() < MOST
            && places < MOST_PLACES
            && let Some(waiting) = queue.waiting.pop_front()
        {
            let since = waiting.since.max(queue.going_since);
            let is_late = now.saturating_duration_since(since) > LONGEST_WAIT;
            if is_late {
                late.push(waiting);
            } else if !waiting.caller.is_closed() {
                places += waiting.request.places();
                batch.push(waiting);
            }
        }
        let is_over = batch.is_empty();
        // From then on a request starts another task.
        queue.sending_since = (!is_over).then_some(now);
        drop(queue);
        // Not under the lock: it wakes the callers.
        for QueuedRequest { request, since, caller } in late {
            let _ = caller.send(Err(self.client.breaker_of(request.log()).waited_too_long(since)));
        }
        // Stable: requests for one log stay in their order.
        batch.sort_by_cached_key(|waiting| waiting.request.shape());
        (!is_over).then_some(batch)
    }

    /// Sends requests in one call, and returns the reply to each.
    pub(crate) async fn call<'a>(
        &self,
        requests: impl ExactSizeIterator<Item = &'a R> + Clone,
    ) -> Result<Vec<Result<R::Reply>>> {
        let (script, count) = (R::script(self.client.scripts), requests.len());
        telemetry::script_shared(script.name(), count);
        let mut names = Vec::with_capacity(2 * count);
        requests.clone().for_each(|request| request.add_keys(&self.client.keys, &mut names));
        let declared = match count {
            _ if !self.client.is_cluster() => names.len(),
            1 => names.len().min(R::MOST_DECLARED),
            // They are in several slots.
            _ => 0,
        };
        let mut command = script.shared_command(&names, declared);
        R::add_arguments(requests.clone(), &mut command);
        let read = |replies: Replies<'_>| R::replies(requests, replies);
        self.client.run_many(script, command, read).await
    }
}
