//! Whether an instance can be trusted with requests.
//!
//! One failure says nothing: engines drop a connection when they restart a worker, and a client can
//! provoke a 500. Only several failures in a row, without a success between them, take an instance
//! out; then it comes back by a probe, and not before a pause, so that an engine whose `/health` is
//! fine while its requests fail does not flap.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// An engine that has never answered is given this many times as many failures: it takes minutes to
/// load a model, and probes of a starting instance are frequent.
const STARTING_PATIENCE: u32 = 8;

/// Probing and the limits of health.
#[derive(Debug, Clone, Copy)]
pub struct HealthSettings {
    /// Time between probes of one instance.
    pub interval: Duration,
    /// For one probe.
    pub timeout: Duration,
    /// Consecutive failures, of probes or requests, that take an instance out; at least 1.
    pub failures: u32,
    /// How long an instance stays out after failed requests, even if probes succeed.
    pub cool_down: Duration,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            failures: 3,
            cool_down: Duration::from_secs(5),
        }
    }
}

/// What is known of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthState {
    /// No probe has succeeded yet.
    Starting,
    /// May be chosen.
    Healthy,
    /// Failed several times in a row.
    Unhealthy,
    /// Answers, but serves other models than the router was told to; they are named.
    WrongModel(Vec<String>),
}

impl HealthState {
    /// As `/status` and the metrics name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::WrongModel(_) => "wrong-model",
        }
    }
}

/// The health of one instance.
#[derive(Debug)]
pub struct Health {
    settings: HealthSettings,
    /// Copy of `inner`, for the request path.
    healthy: AtomicBool,
    /// Since the last success of a request.
    failures: AtomicU32,
    /// Since the last success of a request or a probe.
    probe_failures: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: HealthState,
    out_until: Option<Instant>,
    /// Why the last probe failed, if it did.
    why: Option<String>,
}

impl Health {
    pub(super) fn new(settings: HealthSettings) -> Self {
        Self {
            settings,
            healthy: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            probe_failures: AtomicU32::new(0),
            inner: Mutex::new(Inner { state: HealthState::Starting, out_until: None, why: None }),
        }
    }

    /// Whether the instance may be chosen.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Failures since the last success, of requests and probes together.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed).saturating_add(self.probe_failures.load(Ordering::Relaxed))
    }

    /// The state, for people.
    pub fn state(&self) -> HealthState {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).state.clone()
    }

    /// Why the last probe failed, for people; `None` if it did not.
    pub fn last_probe_error(&self) -> Option<String> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).why.clone()
    }

    /// A request was answered. Requests refused for what is in them count as answered.
    pub fn request_succeeded(&self) {
        if self.failures() != 0 {
            self.forget_failures();
        }
    }

    /// A request failed for the engine's fault.
    pub fn request_failed(&self) {
        self.failed(&self.failures, Some(self.settings.cool_down));
    }

    /// A probe failed.
    pub(super) fn probe_failed(&self, why: String) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).why = Some(why);
        self.failed(&self.probe_failures, None);
    }

    /// A probe succeeded, which brings the instance (back) in if its pause is over.
    pub(super) fn probe_succeeded(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.why = None;
        if inner.state == HealthState::Healthy {
            // Failed requests go on counting: /health says little of an engine's worth.
            self.probe_failures.store(0, Ordering::Relaxed);
            return;
        }
        if inner.out_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        *inner = Inner { state: HealthState::Healthy, out_until: None, why: None };
        self.forget_failures();
        self.healthy.store(true, Ordering::Relaxed);
    }

    /// A probe found other models than the wanted one.
    pub(super) fn wrong_model(&self, served: Vec<String>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.state, inner.why) = (HealthState::WrongModel(served), None);
        self.healthy.store(false, Ordering::Relaxed);
    }

    fn forget_failures(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.probe_failures.store(0, Ordering::Relaxed);
    }

    fn failed(&self, of_its_kind: &AtomicU32, cool_down: Option<Duration>) {
        of_its_kind.fetch_add(1, Ordering::Relaxed);
        let failures = self.failures();
        if failures < self.settings.failures {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.state == HealthState::Starting && failures < self.settings.failures * STARTING_PATIENCE {
            return;
        }
        inner.state = HealthState::Unhealthy;
        if let Some(pause) = cool_down {
            inner.out_until = Some(Instant::now() + pause);
        }
        self.healthy.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Health {
        let health = Health::new(HealthSettings::default());
        health.probe_succeeded();
        health
    }

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_take_an_instance_out() {
        let health = healthy();
        for _ in 0..10 {
            health.request_failed();
            health.request_failed();
            health.request_succeeded();
        }
        assert!(health.is_healthy());
        health.request_failed();
        health.request_failed();
        assert!(health.is_healthy());
        health.request_failed();
        assert!(!health.is_healthy());
        assert_eq!(health.state(), HealthState::Unhealthy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_now_and_then_says_nothing() {
        let health = healthy();
        for _ in 0..10 {
            health.probe_failed("x".into());
            health.probe_failed("x".into());
            assert_eq!(health.failures(), 2);
            health.probe_succeeded();
            assert_eq!(health.failures(), 0);
        }
        assert!(health.is_healthy());
        health.request_failed();
        health.request_failed();
        health.probe_succeeded();
        assert_eq!(health.failures(), 2);
        health.request_failed();
        assert!(!health.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn it_comes_back_by_a_probe_after_the_pause() {
        let health = healthy();
        (0..3).for_each(|_| health.request_failed());
        health.probe_succeeded();
        assert!(!health.is_healthy());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!health.is_healthy());
        health.probe_succeeded();
        assert!(health.is_healthy());
        assert_eq!(health.failures(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_answers_is_given_up_in_the_end() {
        let health = Health::new(HealthSettings::default());
        (0..23).for_each(|_| health.probe_failed("x".into()));
        assert_eq!(health.state(), HealthState::Starting);
        health.probe_failed("x".into());
        assert_eq!(health.state(), HealthState::Unhealthy);
        health.probe_succeeded();
        assert!(health.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_probes_need_no_pause() {
        let health = healthy();
        (0..3).for_each(|_| health.probe_failed("x".into()));
        assert!(!health.is_healthy());
        health.probe_succeeded();
        assert!(health.is_healthy());
    }
}
