//! Reads the few figures that matter from an engine's `/metrics`.

/// What vLLM reports of its load (engine contract §11.1). Sums over its data-parallel ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Report {
    pub(super) running: u32,
    pub(super) waiting: u32,
    /// The fullest rank.
    pub(super) kv_usage: Option<f32>,
}

/// Reads Prometheus text. `None` if none of the figures is in it.
pub(super) fn parse(text: &str) -> Option<Report> {
    let mut report = Report::default();
    let mut found = false;
    for line in text.lines().filter(|l| l.starts_with("vllm:")) {
        let Some((name, value)) = sample(line) else { continue };
        match name {
            "vllm:num_requests_running" => report.running += count(value),
            "vllm:num_requests_waiting" => report.waiting += count(value),
            "vllm:kv_cache_usage_perc" => {
                report.kv_usage = Some(report.kv_usage.map_or(value, |v: f32| v.max(value)));
            }
            _ => continue,
        }
        found = true;
    }
    found.then_some(report)
}

fn sample(line: &str) -> Option<(&str, f32)> {
    let (name, value) = line.rsplit_once(' ')?;
    let name = name.split_once('{').map_or(name, |(name, _)| name);
    Some((name, value.parse().ok()?))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn count(value: f32) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_added_up() {
        let text = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 4.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 1.0\n\
            vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n";
        assert_eq!(parse(text), Some(Report { running: 7, waiting: 1, kv_usage: Some(0.5) }));
    }

    #[test]
    fn strange_text_is_no_report() {
        for text in
            ["", "<html>", "vllm:num_requests_running", "vllm:num_requests_running{} NaNaN", "other 1"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
