//! One life of an engine process: from a start to the next death or restart.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::config::Config;
use super::counters::Counters;
use super::digest::random_uuid;
use super::fault::Faults;
use super::journal::Journal;
use super::port::HeldPort;
use super::rank::Rank;
use super::route::Service;
use super::server;
use super::side_channel;
use super::violations::Violations;

/// What outlives the process: settings, ports, and what the tests look at.
pub(crate) struct Machine {
    pub(crate) config: Arc<Config>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) violations: Arc<Violations>,
    port: HeldPort,
    side_ports: Vec<HeldPort>,
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
        let side_ports = (0..config.dp_size).map(|_| HeldPort::take(side)).collect::<io::Result<_>>()?;
        Ok(Self {
            config: Arc::new(config),
            faults: Arc::default(),
            journal: Arc::default(),
            violations: Arc::default(),
            port,
            side_ports,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Starts a process with a new engine id and empty caches, on the same ports.
    pub(crate) fn boot(&self) -> io::Result<Process> {
        let engine_id = random_uuid();
        let death = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        let mut ranks = Vec::new();
        for (index, side_port) in self.side_ports.iter().enumerate() {
            let id =
                if self.side_ports.len() > 1 { format!("{engine_id}_dp{index}") } else { engine_id.clone() };
            let (config, faults) = (Arc::clone(&self.config), Arc::clone(&self.faults));
            let port = side_port.address().port();
            let rank = Arc::new(Rank::new(config, faults, index, id, port, death.clone()));
            let serve = side_channel::serve(side_port.listen()?, Arc::clone(&rank));
            tasks.spawn(until_death(serve, Arc::clone(&rank)));
            ranks.push(rank);
        }
        let ranks: Arc<[Arc<Rank>]> = ranks.into();
        let service = Service {
            config: Arc::clone(&self.config),
            faults: Arc::clone(&self.faults),
            journal: Arc::clone(&self.journal),
            violations: Arc::clone(&self.violations),
            ranks: Arc::clone(&ranks),
            dead: death.subscribe(),
        };
        if let Some(rank) = ranks.first() {
            let serve = server::serve(self.port.listen()?, Arc::new(service));
            tasks.spawn(until_death(serve, Arc::clone(rank)));
        }
        Ok(Process { ranks, tasks })
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

    pub(crate) fn pinned(&self) -> usize {
        self.ranks.iter().map(|rank| rank.core().leases.len()).sum()
    }

    pub(crate) fn leaked_blocks(&self) -> usize {
        self.ranks.iter().map(|rank| rank.core().leaked).sum()
    }

    pub(crate) fn free_blocks(&self) -> usize {
        self.ranks.iter().map(|rank| rank.core().pool.free_count()).sum()
    }

    pub(crate) fn running(&self) -> usize {
        self.ranks.iter().map(|rank| rank.core().running).sum()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ranks.iter().map(|rank| rank.core().waiting()).sum()
    }
}
