//! The result of `toolbus bench`, as text or as JSON.

use super::load::Latencies;
use crate::table::table;
use serde_json::json;
use std::time::Duration;
use toolbus_base::escaped;

pub struct Report {
    pub tool: String,
    pub server: String,
    pub host: String,
    pub levels: Vec<Level>,
    pub parts: Parts,
}

/// A measurement with a number of calls in flight.
pub struct Level {
    pub in_flight: u32,
    pub latencies: Latencies,
}

/// Where the time of a lone call goes. Each part is a difference of medians.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    /// From this process to the broker and back.
    pub broker: Duration,
    /// From the broker to the host and back, through both mailboxes.
    pub host: Duration,
    /// The rest: the host's journal, the server and the tool.
    pub call: Duration,
}

impl Parts {
    /// From the medians of a question to the broker, a question to the host, and a call.
    pub fn new(broker: Duration, host: Duration, call: Duration) -> Self {
        Self { broker, host: host.saturating_sub(broker), call: call.saturating_sub(host) }
    }
}

impl Report {
    pub fn as_text(&self) -> String {
        let Self { tool, server, host, levels, parts } = self;
        let [tool, server, host] = [tool, server, host].map(|name| escaped(name).to_string());
        let mut rows = vec![["IN FLIGHT", "CALLS/S", "P50", "P90", "P99", "MAX"].map(str::to_owned)];
        for Level { in_flight, latencies } in levels {
            let at = |fraction| milliseconds(latencies.quantile(fraction));
            let rate = format!("{:.0}", latencies.per_second());
            let max = milliseconds(latencies.max());
            rows.push([in_flight.to_string(), rate, at(0.5), at(0.9), at(0.99), max]);
        }
        let parts = [
            ["broker", "this process, the broker, and back"],
            ["host", "the broker, the host, and back"],
            ["call", "journal (a sync unless the tool is replay-safe), server and tool"],
        ]
        .into_iter()
        .zip([parts.broker, parts.host, parts.call])
        .map(|([name, meaning], time)| [name.to_owned(), milliseconds(time), meaning.to_owned()]);
        let mut part_rows = vec![["PART", "P50", "WHAT"].map(str::to_owned)];
        part_rows.extend(parts);
        let calls: usize = levels.iter().map(|level| level.latencies.count()).sum();
        format!(
            "{calls} calls of {tool} ({server} on {host})\n\n{}\n\nWhere the time of a lone call goes:\n\n{}",
            table(&rows, None),
            table(&part_rows, None)
        )
    }

    pub fn as_json(&self) -> String {
        let microseconds = |time: Duration| time.as_micros() as u64;
        let level = |Level { in_flight, latencies }: &Level| {
            let at = |fraction| microseconds(latencies.quantile(fraction));
            json!({
                "in_flight": in_flight, "calls": latencies.count(), "per_second": latencies.per_second(),
                "p50_us": at(0.5), "p90_us": at(0.9), "p99_us": at(0.99), "max_us": microseconds(latencies.max()),
            })
        };
        let Parts { broker, host, call } = self.parts;
        json!({
            "tool": self.tool, "server": self.server, "host": self.host,
            "levels": self.levels.iter().map(level).collect::<Vec<_>>(),
            "parts": {
                "broker_us": microseconds(broker), "host_us": microseconds(host), "call_us": microseconds(call),
            },
        })
        .to_string()
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_call_and_are_never_negative() {
        let us = Duration::from_micros;
        assert_eq!(Parts::new(us(100), us(250), us(900)), Parts { broker: us(100), host: us(150), call: us(650) });
        assert_eq!(Parts::new(us(100), us(90), us(80)), Parts { broker: us(100), host: us(0), call: us(0) });
    }
}
