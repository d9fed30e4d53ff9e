//! A loopback port that stays an engine's own while the engine is down.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Holds the port with a socket that never listens: connections are refused, and nobody else is given the port.
pub(crate) struct HeldPort {
    address: SocketAddr,
    _holder: TcpSocket,
}

impl HeldPort {
    /// Takes `address`, any port if its port is 0.
    ///
    /// # Errors
    /// If the port is in use.
    pub(crate) fn take(address: SocketAddr) -> io::Result<Self> {
        let holder = bind(address)?;
        Ok(Self { address: holder.local_addr()?, _holder: holder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to listen; dropping the listener leaves the port held.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        bind(self.address)?.listen(1024)
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Both sockets ask for it, which lets them share the port.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}
