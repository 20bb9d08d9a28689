//! `cargo xtask conformance`: the MCP conformance suite against one server, directly, through toolbus and through a cluster of
//! brokers, in both eras. Every check that passes directly must also pass on the other paths.

mod cluster;
mod suite;
mod table;
mod target;

use crate::parts::Parts;
use crate::run::{StepError, cargo, root, target_folder};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use suite::{Era, Report};
use target::Target;

#[derive(Args)]
pub struct ConformanceArgs {
    /// The binary to test, instead of a release build.
    #[arg(long, value_name = "FILE", conflicts_with = "direct_only")]
    binary: Option<PathBuf>,
    /// Test only the server itself, without toolbus.
    #[arg(long)]
    direct_only: bool,
    /// Folder for the suite's reports.
    #[arg(long, value_name = "DIR", default_value = REPORTS)]
    output: PathBuf,
}

const REPORTS: &str = "target/conformance";

impl ConformanceArgs {
    pub fn of_binary(binary: PathBuf) -> Self {
        Self { binary: Some(binary), direct_only: false, output: REPORTS.into() }
    }
}

/// Unscored scenarios, and checks that may be skipped, about the transport between the suite and its direct peer rather
/// than about the server.
const NOT_COMPARED: [(&str, &str); 2] = [
    ("server-sse-polling", "the tool closes its caller's HTTP stream; behind a proxy that stream belongs to the proxy"),
    ("server-sse-streams-functional", "it checks SSE streams, but toolbus sends quick answers as JSON"),
];

/// The reports of one path to the server, in both eras.
pub struct MeasuredPath {
    pub name: &'static str,
    pub reports: Vec<(Era, Report)>,
}

pub fn run(args: &ConformanceArgs) -> Result<(), StepError> {
    let parts = Parts::install()?;
    let output = root().join(&args.output);
    let mut paths = vec![measure("direct", &parts, &output, Target::fixture)?];
    if !args.direct_only {
        let binary = match &args.binary {
            Some(binary) => binary.clone(),
            None => release_binary()?,
        };
        paths.push(measure("toolbus → stdio", &parts, &output, |parts, folder| {
            Target::through_toolbus_stdio(&binary, parts, folder)
        })?);
        paths.push(measure("toolbus → HTTP", &parts, &output, |parts, folder| {
            Target::through_toolbus_http(&binary, parts, folder)
        })?);
        paths.push(measure("cluster → stdio", &parts, &output, |parts, folder| {
            Target::through_cluster(&binary, parts, folder)
        })?);
    }
    table::print(&paths);
    judge(&paths)
}

fn release_binary() -> Result<PathBuf, StepError> {
    cargo("build the binary", ["build", "--release", "--package", "toolbus"]).run()?;
    Ok(target_folder().join("release/toolbus"))
}

fn measure(
    name: &'static str,
    parts: &Parts,
    output: &Path,
    start: impl Fn(&Parts, &Path) -> Result<Target, StepError>,
) -> Result<MeasuredPath, StepError> {
    eprintln!("\n── conformance: {name}");
    let folder = output.join(name.replace(" → ", "-"));
    let failed = |source| StepError::File { path: folder.clone(), source };
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let target = start(parts, &folder)?;
    let mut reports = Vec::new();
    for era in Era::ALL {
        reports.push((era, suite::run(parts, target.url(), era, &folder)?));
    }
    Ok(MeasuredPath { name, reports })
}

fn judge(paths: &[MeasuredPath]) -> Result<(), StepError> {
    let (direct, others) = paths.split_first().expect("the direct path is always measured");
    let mut losses = Vec::new();
    for (era, report) in &direct.reports {
        let failing = report.scored().filter(|scenario| !scenario.passed()).map(|scenario| &scenario.name);
        losses.extend(failing.map(|name| format!("direct, {}: {name} fails", era.revision())));
    }
    for path in others {
        for ((era, through), (_, direct)) in path.reports.iter().zip(&direct.reports) {
            let lost = through.lost_against(direct, &NOT_COMPARED.map(|(name, _)| name));
            losses.extend(lost.into_iter().map(|loss| format!("{}, {}: {loss}", path.name, era.revision())));
        }
    }
    if losses.is_empty() { Ok(()) } else { Err(StepError::Conformance(losses.join("\n"))) }
}
