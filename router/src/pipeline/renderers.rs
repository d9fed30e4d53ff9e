//! Asks renderers, one after the other until one has answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_router_policy::InstanceId;
use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::time::timeout;

use crate::app::App;
use crate::body::read::read_capped;
use crate::body::splice::Segments;
use crate::error::render::RenderError;
use crate::error::{Unavailable, chain};
use crate::fleet::{Fleet, InFlight, Instance};
use crate::metrics::Metrics;
use crate::telemetry::Sometimes;
use crate::upstream::LegRequest;

/// A renderer's answer may be this long: it holds what was made of images and sounds.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

static FAILURE_LOG: Sometimes = Sometimes::every(Duration::from_secs(1));

/// All that it takes to ask one. Answers that are streamed ask after their request's handler has ended.
#[derive(Debug, Clone)]
pub(super) struct Renderers {
    fleet: Arc<Fleet>,
    pub(super) metrics: Arc<Metrics>,
    limit: Duration,
    retries: u32,
    /// Whether what is asked belongs to an answer, which must go on.
    answers: bool,
}

/// What one of them answered: no error of its own, but maybe a refusal.
pub(super) struct Said {
    pub(super) head: http::response::Parts,
    pub(super) body: Bytes,
    pub(super) by: Arc<Instance>,
}

impl Renderers {
    pub(super) fn of(app: &App) -> Self {
        Self {
            fleet: Arc::clone(&app.fleet),
            metrics: Arc::clone(&app.metrics),
            limit: app.config.timeouts.render,
            retries: app.config.retries,
            answers: false,
        }
    }

    /// The same for answers: a renderer that is being drained still sees to them.
    pub(super) fn of_answers(app: &App) -> Self {
        Self { answers: true, ..Self::of(app) }
    }

    /// Posts `body` to `path`.
    pub(super) async fn post(
        &self,
        path: &'static str,
        headers: &HeaderMap,
        body: Segments,
    ) -> Result<Said, RenderError> {
        let (method, headers) = (Method::POST, headers.clone());
        self.ask(LegRequest { method, uri: Uri::from_static(path), headers, body, repeatable: true }).await
    }

    /// Sends `request`. A renderer that fails is followed by another, as long as there are tries left:
    /// rendering leaves no traces.
    pub(super) async fn ask(&self, request: LegRequest) -> Result<Said, RenderError> {
        let mut tried: Vec<InstanceId> = Vec::new();
        let mut last = None;
        for _ in 0..=self.retries {
            let found = match self.answers {
                true => self.fleet.renderer_of_answers(&tried),
                false => self.fleet.renderer(&tried),
            };
            let Some(instance) = found else { break };
            if last.is_some() {
                self.metrics.request.retried("render");
            }
            match self.ask_one(&instance, &request).await {
                Ok(said) => return Ok(said),
                Err(error) => {
                    if FAILURE_LOG.now() {
                        tracing::warn!(
                            instance = instance.address(),
                            error = chain(&error),
                            "rendering failed"
                        );
                    }
                    tried.push(instance.id());
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| RenderError::NoInstance(self.why())))
    }

    async fn ask_one(&self, instance: &Arc<Instance>, request: &LegRequest) -> Result<Said, RenderError> {
        let mut in_flight = InFlight::new(Arc::clone(instance), 0);
        let answering = async {
            let sent = instance.pool().send(request, self.limit).await;
            let (head, body) = sent.map_err(RenderError::Unanswered)?.into_parts();
            in_flight.answered();
            let body = read_capped(body, MAX_ANSWER).await.map_err(|error| RenderError::Cut(error.into()))?;
            Ok(Said { head, body, by: Arc::clone(instance) })
        };
        let answered = timeout(self.limit, answering).await.unwrap_or(Err(RenderError::Stalled(self.limit)));
        let said = answered.inspect_err(|_| instance.health().request_failed())?;
        let status = said.head.status;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // It is well, but takes nothing more at the moment.
            return Err(RenderError::Refused(status));
        }
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            instance.health().request_failed();
            return Err(RenderError::Refused(status));
        }
        instance.health().request_succeeded();
        Ok(said)
    }

    fn why(&self) -> Unavailable {
        let snapshot = self.fleet.snapshot();
        if snapshot.renderers().next().is_none() {
            Unavailable::None
        } else if snapshot.renderers().any(|i| i.is_saturated()) {
            Unavailable::Saturated
        } else if snapshot.renderers().any(|i| i.is_draining() && i.health().is_healthy()) {
            Unavailable::Draining
        } else {
            Unavailable::Unhealthy
        }
    }
}
