//! The figures of this run beside those of other proxies, which are constants from an earlier measurement with the same
//! suite and the same server.

use super::{MeasuredPath, NOT_COMPARED};

struct Earlier {
    path: &'static str,
    passed: [usize; 2],
    lost: &'static str,
}

const OTHERS: [Earlier; 6] = [
    Earlier { path: "supergateway 4.0.0 --stateful", passed: [29, 35], lost: "DNS-rebinding check, stateless" },
    Earlier { path: "mcp-remote 0.15.1 behind supergateway", passed: [29, 35], lost: "the same" },
    Earlier { path: "fastmcp 4.1.2 → HTTP", passed: [26, 33], lost: "completion, subscriptions, …" },
    Earlier { path: "fastmcp 4.1.2 → stdio", passed: [21, 33], lost: "+ logging, sampling, elicitation" },
    Earlier { path: "npm mcp-proxy 6.7.19", passed: [25, 25], lost: "sampling, elicitation, multi-round requests" },
    Earlier { path: "PyPI mcp-proxy 0.13.0", passed: [23, 5], lost: "logging, progress, sampling, …; no modern era" },
];

pub fn print(paths: &[MeasuredPath]) {
    println!("\n{:<40} {:>11} {:>11}   lost", "scored scenarios passed", "2025-11-25", "2026-07-28");
    for path in paths {
        let cells: Vec<String> = path
            .reports
            .iter()
            .map(|(_, report)| format!("{} of {}", report.passed(), report.scored().count()))
            .collect();
        let failing = path.reports.iter().flat_map(|(_, report)| report.scored()).filter(|scenario| !scenario.passed());
        let lost: Vec<&str> = failing.map(|scenario| scenario.name.as_str()).collect();
        print_row(path.name, &cells, &lost.join(", "));
    }
    println!("measured earlier, not in this run:");
    for other in &OTHERS {
        print_row(other.path, &other.passed.map(|passed| passed.to_string()), other.lost);
    }
    for path in paths {
        for (era, report) in &path.reports {
            let unscored = report.scenarios.iter().filter(|scenario| !scenario.scored);
            let (good, bad): (Vec<_>, Vec<_>) = unscored.partition(|scenario| scenario.passed());
            let names: Vec<&str> = bad.iter().map(|scenario| scenario.name.as_str()).collect();
            println!("not scored, {}, {}: {} pass; fail: {}", path.name, era.revision(), good.len(), names.join(" "));
        }
    }
    for (name, why) in NOT_COMPARED {
        println!("not compared: {name}: {why}");
    }
}

fn print_row(path: &str, cells: &[String], lost: &str) {
    let cell = |index: usize| cells.get(index).map_or("", String::as_str);
    println!("{path:<40} {:>11} {:>11}   {lost}", cell(0), cell(1));
}
