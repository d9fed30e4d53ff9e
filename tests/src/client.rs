//! A small HTTP/1.1 client that hides nothing: one connection per request, each frame as it arrives, and a drop that
//! closes the connection.

mod raw;
mod secrets;
mod stream;

use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) use secrets::Secrets;
pub use stream::{Arrival, Stream};

use secrets::Watch;

use crate::sse::Transcript;

/// How long anything may take before the test fails; a bound for hangs, never a measure of speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Sends requests to one address.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    headers: HeaderMap,
    receive_buffer: Option<u32>,
    /// What the answers must not say.
    secrets: Option<Arc<Secrets>>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
}

impl Client {
    /// A client for `127.0.0.1:port`, or `http://127.0.0.1:port`.
    pub fn new(address: &str) -> Self {
        let address = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { address, headers: HeaderMap::new(), receive_buffer: None, secrets: None }
    }

    /// The same client, which panics at an answer that tells one of these.
    pub(crate) fn keeping(self, secrets: Secrets) -> Self {
        Self { secrets: Some(Arc::new(secrets)), ..self }
    }

    fn watch(&self, path: &str) -> Option<Watch> {
        self.secrets.as_ref().and_then(|secrets| secrets.watch(path))
    }

    /// The same client, for which the system keeps at most about so many unread bytes of an answer.
    pub fn receive_buffer(self, bytes: u32) -> Self {
        Self { receive_buffer: Some(bytes), ..self }
    }

    /// The same client, sending this header too. A header that is not valid HTTP is left out.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            self.headers.append(name, value);
        }
        self
    }

    /// GET.
    ///
    /// # Errors
    /// If the connection fails or ends before the whole answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, None).await?.whole().await
    }

    /// POST of a JSON body.
    ///
    /// # Errors
    /// If the connection fails or ends before the whole answer.
    pub async fn post_json(&self, path: &str, body: &Value) -> Result<Answer> {
        self.post_bytes(path, "application/json", body.to_string()).await
    }

    /// POST of any bytes.
    ///
    /// # Errors
    /// If the connection fails or ends before the whole answer.
    pub async fn post_bytes(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> Result<Answer> {
        self.request("POST", path, Some((content_type, body.into()))).await?.whole().await
    }

    /// POST of a JSON body; returns at the answer's headers. Dropping the stream closes the connection.
    ///
    /// # Errors
    /// If the connection fails or ends before the headers.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Stream> {
        self.request("POST", path, Some(("application/json", Bytes::from(body.to_string())))).await
    }

    /// Any method; `body` is a content type (none if empty) and the bytes. Returns at the answer's headers.
    ///
    /// # Errors
    /// If the connection fails or ends before the headers.
    pub async fn request(&self, method: &str, path: &str, body: Option<(&str, Bytes)>) -> Result<Stream> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.address);
        if let Some((content_type, _)) = body.as_ref().filter(|(content_type, _)| !content_type.is_empty()) {
            request = request.header(header::CONTENT_TYPE, *content_type);
        }
        let mut request = request.body(Full::new(body.map(|(_, bytes)| bytes).unwrap_or_default()))?;
        request.headers_mut().extend(self.headers.clone());
        self.connect().await?.send(request).await
    }

    /// A connection to send several requests on, one after the other.
    ///
    /// # Errors
    /// If nobody listens.
    pub async fn connect(&self) -> Result<Connection> {
        let connect = timeout(PATIENCE, self.tcp()).await?;
        let tcp = connect.with_context(|| format!("cannot connect to {}", self.address))?;
        tcp.set_nodelay(true)?;
        let (tcp, hang_up) = HangUp::of(tcp)?;
        let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        Ok(Connection { sender, driver: Driver { tasks, _hang_up: hang_up }, secrets: self.secrets.clone() })
    }

    async fn tcp(&self) -> Result<TcpStream> {
        let Some(bytes) = self.receive_buffer else { return Ok(TcpStream::connect(&self.address).await?) };
        let address = lookup_host(&self.address).await?.next().context("no address")?;
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_recv_buffer_size(bytes)?;
        Ok(socket.connect(address).await?)
    }
}

/// One connection; dropping it closes it.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Driver,
    secrets: Option<Arc<Secrets>>,
}

/// What moves a connection's bytes. Dropped, it closes the connection at once: not only when the runtime runs on, which
/// it does not when a test is over.
struct Driver {
    tasks: JoinSet<()>,
    _hang_up: HangUp,
}

struct HangUp(std::net::TcpStream);

impl HangUp {
    fn of(tcp: TcpStream) -> Result<(TcpStream, Self)> {
        let tcp = tcp.into_std()?;
        let hang_up = Self(tcp.try_clone()?);
        Ok((TcpStream::from_std(tcp)?, hang_up))
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        // The other side may have closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Sends a request and gives the connection away to the answer's stream.
    ///
    /// # Errors
    /// If the connection ends before the answer's headers.
    pub async fn send(mut self, request: Request<Full<Bytes>>) -> Result<Stream> {
        let watch = self.watch(&request);
        let answer =
            timeout(PATIENCE, self.sender.send_request(request)).await.context("no answer in time")?;
        Ok(Stream::new(answer?, self.driver, watch))
    }

    /// Sends a request, and reads the whole answer; the connection can then be used again, unless it was closed.
    ///
    /// # Errors
    /// If the connection ends before the whole answer.
    pub async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let watch = self.watch(&request);
        let answer =
            timeout(PATIENCE, self.sender.send_request(request)).await.context("no answer in time")??;
        let (parts, body) = answer.into_parts();
        let body = timeout(PATIENCE, read(body)).await.context("no whole answer in time")??;
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body }.watched(watch))
    }

    fn watch(&self, request: &Request<Full<Bytes>>) -> Option<Watch> {
        self.secrets.as_ref().and_then(|secrets| secrets.watch(request.uri().path()))
    }

    /// Waits until the other side closes.
    ///
    /// # Errors
    /// If it does not.
    pub async fn closed(&mut self) -> Result<()> {
        timeout(PATIENCE, self.driver.tasks.join_next()).await.context("the connection stays open")?;
        Ok(())
    }
}

async fn read(mut body: Incoming) -> Result<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

impl Answer {
    /// Itself, if it tells nothing that it must not.
    fn watched(self, watch: Option<Watch>) -> Self {
        if let Some(mut watch) = watch {
            watch.headers(&self.headers);
            watch.see(&self.body);
        }
        self
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What the answer says.
    pub fn transcript(&self) -> Transcript {
        Transcript::of_body(&self.json())
    }

    /// The answer itself, if it is a 200.
    ///
    /// # Errors
    /// With status and body, if it is not.
    pub fn ok(self) -> Result<Self> {
        ensure!(self.status == 200, "status {}: {}", self.status, self.text());
        Ok(self)
    }
}
