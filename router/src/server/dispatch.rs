//! Takes a request to where its path leads, and gives every answer its request id.

use std::convert::Infallible;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::route::{Endpoint, Route, route};
use super::{admin, models, status};
use crate::app::App;
use crate::error::Error;
use crate::pipeline::{self, Account, AnswerBody};

/// Answers one request. Every failure is an answer.
pub async fn dispatch(app: Arc<App>, request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
    let response = match route(request.method(), request.uri().path()) {
        Ok(Route::Engine(endpoint)) => engine(&app, &endpoint, request).await,
        Ok(Route::Health) => text("ok\n"),
        Ok(Route::Ready) => ready(&app),
        Ok(Route::Status) => json(&status::status(&app)),
        Ok(Route::Metrics) => metrics(&app),
        Ok(Route::Version) => json(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION") })),
        Ok(Route::Admin(call)) => match admin::call(&app, call, request).await {
            Ok((status, answer)) => with_status(status, json(&answer)),
            Err(error) => own(Error::from(error).response()),
        },
        Err(error) => own(Error::from(error).response()),
    };
    Ok(response)
}

async fn engine(app: &Arc<App>, endpoint: &Endpoint, request: Request<Incoming>) -> Response<AnswerBody> {
    let mut account = Account::open(app, endpoint, request.headers());
    let id = account.answer_id();
    let result = if app.is_draining() {
        Err(Error::ShuttingDown)
    } else if endpoint.lists_models() {
        models::models(app, request.headers()).await
    } else {
        // On the heap once, instead of in every future that contains it.
        Box::pin(pipeline::handle(app, endpoint, request, &mut account)).await
    };
    let mut response = match result {
        Ok(response) => {
            account.answering(response.status());
            response.map(|body| body.accounted(account))
        }
        Err(error) => {
            account.failed(&error);
            own(error.response())
        }
    };
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

fn ready(app: &App) -> Response<AnswerBody> {
    match app.ready() {
        Ok(()) => text("ready\n"),
        Err(why) => with_status(StatusCode::SERVICE_UNAVAILABLE, text(format!("{why}\n"))),
    }
}

fn metrics(app: &App) -> Response<AnswerBody> {
    let mut response = text(app.metrics.render());
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn text(body: impl Into<String>) -> Response<AnswerBody> {
    let mut response = own(Response::new(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn json(value: &serde_json::Value) -> Response<AnswerBody> {
    let mut response = own(Response::new(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn with_status(status: StatusCode, mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    *response.status_mut() = status;
    response
}

fn own(response: Response<String>) -> Response<AnswerBody> {
    response.map(AnswerBody::own)
}
