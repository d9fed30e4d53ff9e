//! `/metrics` in Prometheus text, under vLLM's names: what a router, or a person debugging one, reads.

use super::counters::Counters;
use super::rank::Rank;

/// One exposition of all ranks.
pub(crate) fn render(ranks: &[std::sync::Arc<Rank>], model: &str) -> String {
    let mut text = Text::default();
    for rank in ranks {
        let core = rank.core();
        let counters = core.counters;
        let (running, waiting) = (core.running, core.waiting());
        let usage = 1.0 - core.pool.free_count() as f64 / rank.config.blocks.max(1) as f64;
        drop(core);
        let labels = format!("engine=\"{}\",model_name=\"{model}\"", rank.place.index);
        text.gauge("num_requests_running", &labels, running as f64);
        text.gauge("num_requests_waiting", &labels, waiting as f64);
        text.gauge("kv_cache_usage_perc", &labels, usage);
        let (size, blocks) = (rank.config.block_size, rank.config.blocks);
        let info = format!(
            "block_size=\"{size}\",enable_prefix_caching=\"True\",engine=\"{}\",num_gpu_blocks=\"{blocks}\"",
            rank.place.index
        );
        text.gauge("cache_config_info", &info, 1.0);
        text.counters(&labels, &counters);
    }
    text.lines
}

#[derive(Default)]
struct Text {
    lines: String,
}

impl Text {
    fn gauge(&mut self, name: &str, labels: &str, value: f64) {
        self.sample(name, "gauge", labels, value);
    }

    fn counter(&mut self, name: &str, labels: &str, value: u64) {
        self.sample(&format!("{name}_total"), "counter", labels, value as f64);
    }

    fn counters(&mut self, labels: &str, counters: &Counters) {
        let sources = [
            ("local_compute", counters.prompt_tokens_computed),
            ("local_cache_hit", counters.prompt_tokens_cached),
            ("external_kv_transfer", counters.prompt_tokens_transferred),
        ];
        for (source, tokens) in sources {
            self.counter("prompt_tokens_by_source", &format!("{labels},source=\"{source}\""), tokens);
        }
        let prompt_tokens = sources.iter().map(|(_, tokens)| tokens).sum();
        self.counter("prompt_tokens", labels, prompt_tokens);
        self.counter("generation_tokens", labels, counters.generation_tokens);
        self.counter("prefix_cache_queries", labels, prompt_tokens);
        self.counter("prefix_cache_hits", labels, counters.prompt_tokens_cached);
        self.counter("num_preemptions", labels, counters.preemptions);
        self.counter("nixl_num_kv_expired_reqs", labels, counters.kv_expired);
        self.counter("nixl_num_notifications_after_expiry", labels, counters.notifications_after_expiry);
        self.counter("nixl_num_failed_transfers", labels, counters.failed_loads);
        for (reason, ended) in [
            ("stop", counters.finished_stop),
            ("length", counters.finished_length),
            ("error", counters.finished_error),
            // Real engines do not count aborts here either.
            ("abort", 0),
        ] {
            self.counter("request_success", &format!("{labels},finished_reason=\"{reason}\""), ended);
        }
    }

    fn sample(&mut self, name: &str, kind: &str, labels: &str, value: f64) {
        let head = format!("# TYPE vllm:{name} {kind}\n");
        if !self.lines.contains(&head) {
            self.lines.push_str(&format!("# HELP vllm:{name} Simulated.\n{head}"));
        }
        self.lines.push_str(&format!("vllm:{name}{{{labels}}} {value:?}\n"));
    }
}
