//! How a request ended, for metrics and logs.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete = 0,
    /// The client closed its connection first.
    ClientLeft = 1,
    /// The worker broke off in the middle of its answer.
    WorkerCut = 2,
    /// The rest of an answer, or anything on an upgraded connection, did not come in time.
    IdleTimeout = 3,
}

impl End {
    pub const NAMES: [&str; 4] = ["complete", "client_left", "worker_cut", "idle_timeout"];

    pub fn name(self) -> &'static str {
        End::NAMES[self as usize]
    }
}
