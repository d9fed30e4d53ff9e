//! One life of an engine process: from a start to the next death or restart.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::config::{Config, Role};
use super::connector::Connector;
use super::counters::Counters;
use super::digest::random_uuid;
use super::encoder::Encodings;
use super::fault::Faults;
use super::journal::Journal;
use super::port::HeldPort;
use super::rank::{Death, Place, Rank};
use super::route::Service;
use super::side_channel::{self, Door};
use super::violations::Violations;
use super::{bootstrap, registration, server};
use crate::lock::lock;

/// What outlives the process: settings, ports, and what the tests look at.
pub(crate) struct Machine {
    pub(crate) config: Arc<Config>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) violations: Arc<Violations>,
    /// Of the life that there is.
    pub(crate) encodings: Arc<Encodings>,
    /// Of all lives so far.
    pub(crate) engine_ids: Arc<Mutex<Vec<String>>>,
    pub(crate) deaths: Arc<AtomicUsize>,
    port: HeldPort,
    /// The side channel of each DP rank (MoRIIO: for handshakes).
    side_ports: Vec<HeldPort>,
    /// MoRIIO only: where each DP rank is told of blocks and writes.
    notify_ports: Vec<HeldPort>,
    /// Mooncake's prefill engines only.
    bootstrap_port: Option<HeldPort>,
}

/// A running engine. Dropping it kills it: ports stop answering, connections close, all state is gone.
pub(crate) struct Process {
    pub(crate) ranks: Arc<[Arc<Rank>]>,
    tasks: JoinSet<()>,
}

impl Machine {
    pub(crate) fn new(config: Config) -> io::Result<Self> {
        let port = HeldPort::take(config.listen)?;
        let side = SocketAddr::new(port.address().ip(), 0);
        let row =
            |wanted: bool| if wanted { HeldPort::take_row(side, config.dp_size) } else { Ok(Vec::new()) };
        let has_bootstrap = matches!(config.connector, Connector::Mooncake) && config.role != Role::Decode;
        Ok(Self {
            side_ports: row(true)?,
            notify_ports: row(config.connector.moriio_mode().is_some())?,
            bootstrap_port: has_bootstrap.then(|| HeldPort::take(side)).transpose()?,
            config: Arc::new(config),
            faults: Arc::default(),
            journal: Arc::default(),
            violations: Arc::default(),
            encodings: Arc::default(),
            engine_ids: Arc::default(),
            deaths: Arc::default(),
            port,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where the side channel of DP rank 0 is.
    pub(crate) fn side_address(&self) -> SocketAddr {
        self.side_ports.first().map_or(self.port.address(), HeldPort::address)
    }

    pub(crate) fn bootstrap_address(&self) -> Option<SocketAddr> {
        self.bootstrap_port.as_ref().map(HeldPort::address)
    }

    /// As MoRIIO's engines announce it, with the ports of DP rank 0.
    pub(crate) fn zmq_address(&self) -> Option<String> {
        let (handshake, notify) = (self.side_address(), self.notify_ports.first()?.address());
        Some(format!("host:{},handshake:{},notify:{}", handshake.ip(), handshake.port(), notify.port()))
    }

    /// Starts a process with a new engine id and empty caches, on the same ports.
    pub(crate) fn boot(&self) -> io::Result<Process> {
        self.encodings.clear();
        let death = Death { dead: watch::Sender::new(false), deaths: Arc::clone(&self.deaths) };
        let mut tasks = JoinSet::new();
        let ranks: Arc<[Arc<Rank>]> =
            self.ids().into_iter().enumerate().map(|(index, id)| self.rank(index, id, &death)).collect();
        for rank in ranks.iter() {
            let door = if self.notify_ports.is_empty() { Door::All } else { Door::Handshake };
            let serve =
                side_channel::serve(self.side_ports[rank.place.index].listen()?, Arc::clone(rank), door);
            tasks.spawn(until_death(serve, Arc::clone(rank)));
            if let Some(port) = self.notify_ports.get(rank.place.index) {
                let serve = side_channel::serve(port.listen()?, Arc::clone(rank), Door::Notify);
                tasks.spawn(until_death(serve, Arc::clone(rank)));
            }
        }
        let Some(first) = ranks.first() else { return Ok(Process { ranks, tasks }) };
        if let Some(port) = &self.bootstrap_port {
            let serve = bootstrap::serve(port.listen()?, Arc::clone(&ranks));
            tasks.spawn(until_death(serve, Arc::clone(first)));
        }
        if let Some(frame) = registration::frame(self) {
            tasks.spawn(until_death(registration::beat(Arc::clone(&self.config), frame), Arc::clone(first)));
        }
        let serve = server::serve(self.port.listen()?, Arc::new(self.service(&ranks, &death)));
        tasks.spawn(until_death(serve, Arc::clone(first)));
        Ok(Process { ranks, tasks })
    }

    /// The engine id of each rank of a new life. MoRIIO's are addresses, and outlive a restart.
    fn ids(&self) -> Vec<String> {
        let (life, ranks) = (random_uuid(), self.side_ports.len());
        let ids: Vec<String> = match self.config.connector {
            Connector::MoriioRead | Connector::MoriioWrite => {
                vec![self.side_address().to_string(); ranks]
            }
            _ if ranks > 1 => (0..ranks).map(|rank| format!("{life}_dp{rank}")).collect(),
            _ => vec![life],
        };
        lock(&self.engine_ids).extend_from_slice(&ids);
        ids
    }

    fn rank(&self, index: usize, engine_id: String, death: &Death) -> Arc<Rank> {
        let port =
            |ports: &[HeldPort], index: usize| ports.get(index).map_or(0, |port| port.address().port());
        let place = Place {
            index,
            engine_id,
            side_port: port(&self.side_ports, index),
            side_base: port(&self.side_ports, 0),
            notify_base: port(&self.notify_ports, 0),
        };
        Arc::new(Rank::new(Arc::clone(&self.config), Arc::clone(&self.faults), place, death.clone()))
    }

    fn service(&self, ranks: &Arc<[Arc<Rank>]>, death: &Death) -> Service {
        Service {
            config: Arc::clone(&self.config),
            faults: Arc::clone(&self.faults),
            journal: Arc::clone(&self.journal),
            violations: Arc::clone(&self.violations),
            encodings: Arc::clone(&self.encodings),
            address: self.address(),
            ranks: Arc::clone(ranks),
            dead: death.dead.subscribe(),
        }
    }
}

/// Serves until the core is dead and the rest of the process has followed.
async fn until_death(serve: impl Future<Output = ()>, rank: Arc<Rank>) {
    let death = async {
        rank.dead().await;
        sleep(rank.config.death_throes()).await;
    };
    tokio::select! {
        () = serve => {}
        () = death => {}
    }
}

impl Process {
    /// Stops; on return nobody listens any more.
    pub(crate) async fn kill(mut self) {
        self.ranks.iter().for_each(|rank| rank.silence());
        self.tasks.shutdown().await;
    }

    pub(crate) fn died(&self) -> bool {
        self.ranks.iter().any(|rank| rank.is_dead())
    }

    pub(crate) fn counters(&self) -> Counters {
        self.ranks.iter().map(|rank| rank.core().counters).fold(Counters::default(), |sum, next| sum + next)
    }

    /// The sum over all ranks of what `of` says of one.
    pub(crate) fn sum(&self, of: impl Fn(&super::rank::Core) -> usize) -> usize {
        self.ranks.iter().map(|rank| of(&rank.core())).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ranks.iter().for_each(|rank| rank.silence());
    }
}
