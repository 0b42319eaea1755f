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

/// Makes a module of each page of a folder.
macro_rules! pages {
    ($folder:literal, $($page:ident),*) => {$(
        #[doc = include_str!(concat!("docs/", $folder, stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages!(
    "",
    which_tool,
    what_a_policy_counts,
    memory,
    redis_commands,
    not_a_request,
    waiting,
    watching,
    token_budgets,
    configuration,
    responses,
    why_denied
);

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

    pages!(
        "recipes/",
        plans,
        user_and_address,
        outbound,
        failed_logins,
        accounts_per_address,
        concurrent_requests,
        json_and_cors,
        grpc,
        websocket,
        admin,
        custom_store
    );
}

pub mod migrating {
    //! For programs that have another rate limiter: what its settings are called here, and what differs.
    //!
    //! | from | page |
    //! |---|---|
    //! | `GovernorLayer` of tower_governor | [tower_governor] |
    //! | `RateLimitLayer` and `ConcurrencyLimitLayer` of tower | [`tower::limit`](tower_limit) |
    //! | `rateLimit` of express-rate-limit, for Node.js | [express-rate-limit](express_rate_limit) |

    pages!("migrating/", tower_governor, tower_limit, express_rate_limit);
}
