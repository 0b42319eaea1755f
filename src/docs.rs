//! The guide. These modules contain only documentation.
//!
//! - [Which tool for which problem](which_tool): compares sliding windows, token buckets, counts
//!   of distinct members, and bans.
//! - [What a policy counts](what_a_policy_counts): requests, costs, distinct values or requests in flight.
//! - [What a key costs](memory) in memory, and where a sliding log is the wrong choice.
//! - [Redis's own commands](redis_commands) for rate limiting beside this crate.
//! - [Limiting messages and jobs](not_a_request): per-receiver quotas for queues and workers, where the
//!   receiver is known only when a message is sent.
//! - [Waiting](waiting) until there is room in one log or in several, the order of sending, and the shutdown of a
//!   worker.
//! - [Budgets of tokens or bytes](token_budgets): quotas for what a request turns out to have cost, with a
//!   recipe for language models.
//! - [Configuration](configuration): policies from a file that is read again while the program runs, and
//!   the networks that addresses are counted by. And tests with a paused clock.
//! - [Why a key is denied](why_denied): the log of a key explained, and a quota tried
//!   on live traffic.
//! - [What to watch](watching): metrics, alerts, and the keys that are denied most.
//! - [What clients see](responses): responses of one's own, and the fields that show a quota.
//! - [Recipes](recipes): programs for common tasks. Each is run as a test, with helpers that only send requests and
//!   are not shown.
//! - [Migrating](migrating) from another rate limiter.

#[doc = include_str!("docs/which_tool.md")]
pub mod which_tool {}

#[doc = include_str!("docs/what_a_policy_counts.md")]
pub mod what_a_policy_counts {}

#[doc = include_str!("docs/memory.md")]
pub mod memory {}

#[doc = include_str!("docs/redis_commands.md")]
pub mod redis_commands {}

#[doc = include_str!("docs/not_a_request.md")]
pub mod not_a_request {}

#[doc = include_str!("docs/waiting.md")]
pub mod waiting {}

#[doc = include_str!("docs/watching.md")]
pub mod watching {}

#[doc = include_str!("docs/token_budgets.md")]
pub mod token_budgets {}

#[doc = include_str!("docs/configuration.md")]
pub mod configuration {}

#[doc = include_str!("docs/responses.md")]
pub mod responses {}

#[doc = include_str!("docs/why_denied.md")]
pub mod why_denied {}

pub mod recipes {
    //! Complete programs for common tasks. Each one is compiled and run as a test.
    //!
    //! | task | recipe |
    //! |---|---|
    //! | more requests for users that pay, other quotas for single users, no limit for the monitoring | [plans] |
    //! | addresses before authentication and users after it, and an address in a header of a provider | [user and address](user_and_address) |
    //! | guesses of passwords: only failures count, by account and by address, with a ban | [failed logins](failed_logins) |
    //! | one machine with many accounts: at most so many different users behind an address | [accounts behind an address](accounts_per_address) |
    //! | exports, downloads, connections or jobs that run at the same time | [concurrent requests](concurrent_requests) |
    //! | a 429 in JSON, which a script on another site can read | [JSON and CORS](json_and_cors) |
    //! | calls of tonic services, alone or together with HTTP | [gRPC](grpc) |
    //! | messages over a WebSocket that share the budget of an HTTP route | [WebSocket](websocket) |
    //! | tokens of a language model, and requests together with tokens | [budgets of tokens](super::token_budgets) |
    //! | endpoints that show a user, empty a log, impose and lift bans, and change quotas | [admin] |
    //! | a store of one's own, with the contract test | [custom store](custom_store) |
    //! | calls to a partner that has a quota, by all servers together | [outbound calls](outbound) |
    //! | messages to a receiver, from a queue | [messages and jobs](super::not_a_request) |
    //! | messages that wait until there is room, also in several logs | [waiting](super::waiting) |
    //! | what to alert on, and who is denied most | [what to watch](super::watching) |
    //! | a new quota, tried on live traffic before it is enforced | [why a key is denied](super::why_denied#try-a-quota-before-you-enforce-it) |
    //! | quotas from a file that is read again while the program runs | [configuration](super::configuration) |
    //! | a test that does not wait for the window | [a paused clock](super::configuration#tests-with-a-paused-clock) |

    #[doc = include_str!("docs/recipes/plans.md")]
    pub mod plans {}

    #[doc = include_str!("docs/recipes/user_and_address.md")]
    pub mod user_and_address {}

    #[doc = include_str!("docs/recipes/outbound.md")]
    pub mod outbound {}

    #[doc = include_str!("docs/recipes/failed_logins.md")]
    pub mod failed_logins {}

    #[doc = include_str!("docs/recipes/accounts_per_address.md")]
    pub mod accounts_per_address {}

    #[doc = include_str!("docs/recipes/concurrent_requests.md")]
    pub mod concurrent_requests {}

    #[doc = include_str!("docs/recipes/json_and_cors.md")]
    pub mod json_and_cors {}

    #[doc = include_str!("docs/recipes/grpc.md")]
    pub mod grpc {}

    #[doc = include_str!("docs/recipes/websocket.md")]
    pub mod websocket {}

    #[doc = include_str!("docs/recipes/admin.md")]
    pub mod admin {}

    #[doc = include_str!("docs/recipes/custom_store.md")]
    pub mod custom_store {}
}

pub mod migrating {
    //! For programs that have another rate limiter: what its settings are called here, and what differs.
    //!
    //! | from | page |
    //! |---|---|
    //! | `GovernorLayer` of tower_governor | [tower_governor] |
    //! | `RateLimitLayer` and `ConcurrencyLimitLayer` of tower | [`tower::limit`](tower_limit) |
    //! | `rateLimit` of express-rate-limit, for Node.js | [express-rate-limit](express_rate_limit) |

    #[doc = include_str!("docs/migrating/tower_governor.md")]
    pub mod tower_governor {}

    #[doc = include_str!("docs/migrating/tower_limit.md")]
    pub mod tower_limit {}

    #[doc = include_str!("docs/migrating/express_rate_limit.md")]
    pub mod express_rate_limit {}
}
