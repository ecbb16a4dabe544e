//! Sorts requests by path into a fixed number of routes, each of which has its own series in the metrics.

/// Paths that metrics tell apart, the frequent ones first.
const PATHS: [&str; 21] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech/stream",
    "/v1/audio/transcriptions/stream",
    "/v1/realtime",
    "/v1/realtime/calls",
    "/v1/models",
    "/v1/messages",
    "/v1/rerank",
    "/generate",
    "/health",
    "/liveness",
    "/readiness",
    "/metrics",
    "/workers",
    FLEET,
];

/// The paths below it are the same route: pages ask for them again and again.
const FLEET: &str = "/fleet";

/// Paths that the access log leaves out: probes, scrapers and pages ask for them all the time.
const UNLOGGED: [&str; 5] = ["/health", "/liveness", "/readiness", "/metrics", FLEET];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u8);

impl Route {
    pub const COUNT: usize = PATHS.len() + 1;

    pub fn of(path: &str) -> Route {
        let is_below = |known: &str| known == FLEET && path.starts_with("/fleet/");
        let known = PATHS
            .iter()
            .position(|&known| known == path || is_below(known));
        Route(known.unwrap_or(PATHS.len()) as u8)
    }

    pub fn all() -> impl Iterator<Item = Route> {
        (0..Route::COUNT as u8).map(Route)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The path, or `other`.
    pub fn name(self) -> &'static str {
        PATHS.get(self.index()).copied().unwrap_or("other")
    }

    pub fn is_logged(self) -> bool {
        !UNLOGGED.contains(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_path_or_other() {
        assert_eq!(
            Route::of("/v1/chat/completions").name(),
            "/v1/chat/completions"
        );
        assert_eq!(Route::of("/workers").name(), "/workers");
        assert_eq!(Route::of("/v1/chat/completions/").name(), "other");
        assert_eq!(Route::of("/fleet/3/pipeline").name(), "/fleet");
        assert_eq!(Route::of("/fleets").name(), "other");
        assert_eq!(Route::all().count(), Route::COUNT);
        assert!(Route::of("/other").is_logged() && !Route::of("/health").is_logged());
    }
}
