//! Loopback ports that stay an engine's own while the engine is down.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use tokio::net::{TcpListener, TcpSocket};

use super::digest::random;

/// Where rows of ports are looked for: below those that the system gives to clients, of which there may be thousands.
const ROWS: Range<u16> = 10_000..32_000;
/// How often a run of free ports is looked for.
const TRIES: usize = 100;

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
        let holder = bind(address, true)?;
        Ok(Self { address: holder.local_addr()?, _holder: holder })
    }

    /// Takes `count` ports in a row: engines add the DP rank to the first.
    ///
    /// # Errors
    /// If there is no such row.
    pub(crate) fn take_row(address: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        if count == 1 {
            return Ok(vec![Self::take(address)?]);
        }
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            let first = ROWS.start + (random() % u64::from(ROWS.end - ROWS.start)) as u16;
            match (0..count as u16).map(|at| Self::take_unshared(address.ip(), first + at)).collect() {
                Ok(row) => return Ok(row),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn take_unshared(ip: IpAddr, port: u16) -> io::Result<Self> {
        let address = SocketAddr::new(ip, port);
        // Another engine's port could be shared, so it is first asked for as by one that shares nothing.
        drop(bind(address, false)?);
        Self::take(address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to listen; dropping the listener leaves the port held.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        bind(self.address, true)?.listen(1024)
    }
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Both sockets ask for it, which lets them share the port.
    socket.set_reuseaddr(shared)?;
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_row_of_ports_has_no_gap() {
        let row = HeldPort::take_row(SocketAddr::from(([127, 0, 0, 1], 0)), 4).unwrap();
        let ports: Vec<u16> = row.iter().map(|port| port.address().port()).collect();
        assert_eq!(ports, (ports[0]..ports[0] + 4).collect::<Vec<_>>());
        assert!(row.iter().all(|port| port.listen().is_ok()));
    }
}
