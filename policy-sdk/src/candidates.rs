//! The instances that may be chosen now, and the figures that tell them apart.

use crate::InstanceId;

/// The candidates as columns: row i of every column speaks of the same
/// instance.
///
/// Columns are what crosses into WebAssembly cheaply. Policies rarely need
/// them: [`iter`](Self::iter), [`get`](Self::get) and
/// [`min_by_key`](Self::min_by_key) give whole rows. The router never offers an
/// empty list; a column that is too short reads as unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// See [`Candidate::id`]; this column says how many rows there are.
    pub ids: Vec<InstanceId>,
    /// See [`Candidate::in_flight`].
    pub in_flight: Vec<u32>,
    /// See [`Candidate::queued_tokens`].
    pub queued_tokens: Vec<u32>,
    /// See [`Candidate::running`].
    pub running: Vec<u32>,
    /// See [`Candidate::waiting`].
    pub waiting: Vec<u32>,
    /// See [`Candidate::kv_usage`].
    pub kv_usage: Vec<f32>,
    /// See [`Candidate::cached_tokens`].
    pub cached_tokens: Vec<u32>,
    /// See [`Candidate::ttft_ms`].
    pub ttft_ms: Vec<f32>,
    /// See [`Candidate::failures`].
    pub failures: Vec<u32>,
}

/// One instance that may be chosen, and its figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// What a [`Target`](crate::Target) names.
    pub id: InstanceId,
    /// Requests that this router has on the instance now. A request counts
    /// from the moment it is scheduled.
    pub in_flight: u32,
    /// Estimated prompt tokens of those requests that have not produced their
    /// first byte yet: the work ahead of a new prompt.
    pub queued_tokens: u32,
    /// Requests running on the engine from all sources, as it last reported;
    /// 0 when unknown.
    pub running: u32,
    /// Requests waiting in the engine, as it last reported; 0 when unknown.
    pub waiting: u32,
    /// Share of the KV cache in use, 0 to 1, as the engine last reported;
    /// negative when unknown.
    pub kv_usage: f32,
    /// Leading tokens of this request that the instance probably has in its
    /// KV cache. 0 unless the manifest asks for
    /// [`Facts::cached_tokens`](crate::Facts::cached_tokens).
    pub cached_tokens: u32,
    /// Smoothed time to first byte in milliseconds as this router saw it; 0
    /// when unknown.
    pub ttft_ms: f32,
    /// Consecutive failures since the last success.
    pub failures: u32,
}

impl Default for Candidate {
    /// Instance 0, idle, with every engine figure unknown.
    fn default() -> Self {
        Self {
            id: 0,
            in_flight: 0,
            queued_tokens: 0,
            running: 0,
            waiting: 0,
            kv_usage: -1.0,
            cached_tokens: 0,
            ttft_ms: 0.0,
            failures: 0,
        }
    }
}

impl Candidate {
    /// Requests on the instance. The router's own count is exact but knows
    /// nothing of what comes from elsewhere, and the engine's report is some
    /// moments old: the higher one counts.
    pub fn requests(&self) -> u32 {
        self.in_flight.max(self.running.saturating_add(self.waiting))
    }
}

impl Candidates {
    /// How many instances may be chosen.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none; never so for what the router offers.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Row `index`.
    pub fn get(&self, index: usize) -> Option<Candidate> {
        fn at<T: Copy>(column: &[T], index: usize, unknown: T) -> T {
            column.get(index).copied().unwrap_or(unknown)
        }
        Some(Candidate {
            id: *self.ids.get(index)?,
            in_flight: at(&self.in_flight, index, 0),
            queued_tokens: at(&self.queued_tokens, index, 0),
            running: at(&self.running, index, 0),
            waiting: at(&self.waiting, index, 0),
            kv_usage: at(&self.kv_usage, index, -1.0),
            cached_tokens: at(&self.cached_tokens, index, 0),
            ttft_ms: at(&self.ttft_ms, index, 0.0),
            failures: at(&self.failures, index, 0),
        })
    }

    /// All rows, in the router's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Candidate> + Clone + '_ {
        // `get` answers for every index below the length of `ids`.
        (0..self.ids.len()).map(|index| self.get(index).unwrap_or_default())
    }

    /// The row with the smallest key; of several, the first. The router lists
    /// candidates in a stable order, so where equals are common, break the tie
    /// in the key: a policy that always takes the first sends every lone
    /// request to the same instance.
    pub fn min_by_key<K: Ord>(&self, key: impl FnMut(&Candidate) -> K) -> Option<Candidate> {
        self.iter().min_by_key(key)
    }

    /// Appends a row.
    pub fn push(&mut self, candidate: Candidate) {
        self.ids.push(candidate.id);
        self.in_flight.push(candidate.in_flight);
        self.queued_tokens.push(candidate.queued_tokens);
        self.running.push(candidate.running);
        self.waiting.push(candidate.waiting);
        self.kv_usage.push(candidate.kv_usage);
        self.cached_tokens.push(candidate.cached_tokens);
        self.ttft_ms.push(candidate.ttft_ms);
        self.failures.push(candidate.failures);
    }
}

impl FromIterator<Candidate> for Candidates {
    fn from_iter<I: IntoIterator<Item = Candidate>>(rows: I) -> Self {
        let mut candidates = Self::default();
        rows.into_iter().for_each(|row| candidates.push(row));
        candidates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u32, in_flight: u32) -> Candidate {
        Candidate { id, in_flight, ..Candidate::default() }
    }

    #[test]
    fn rows_survive_the_columns() {
        let rows = [
            Candidate { kv_usage: 0.5, ttft_ms: 12.0, failures: 1, ..row(3, 9) },
            Candidate { queued_tokens: 7, running: 5, waiting: 2, cached_tokens: 64, ..row(8, 1) },
        ];
        let candidates: Candidates = rows.into_iter().collect();
        assert_eq!(candidates.len(), 2);
        assert!(candidates.iter().eq(rows));
        assert_eq!(candidates.get(2), None);
    }

    #[test]
    fn requests_from_elsewhere_count_but_none_counts_twice() {
        assert_eq!(Candidate { running: 3, waiting: 2, ..row(1, 4) }.requests(), 5);
        assert_eq!(Candidate { running: 3, waiting: u32::MAX, ..row(1, 4) }.requests(), u32::MAX);
        assert_eq!(row(1, 4).requests(), 4);
    }

    #[test]
    fn of_equals_the_first_is_least() {
        let candidates: Candidates = [row(4, 2), row(5, 1), row(6, 1)].into_iter().collect();
        assert_eq!(candidates.min_by_key(|c| c.in_flight).map(|c| c.id), Some(5));
        assert_eq!(Candidates::default().min_by_key(|c| c.id), None);
    }

    #[test]
    fn a_short_column_reads_as_unknown() {
        let candidates = Candidates { ids: vec![1, 2], in_flight: vec![3], ..Candidates::default() };
        assert!(candidates.iter().eq([row(1, 3), row(2, 0)]));
    }
}
