//! The folder of the installed servers and clients, and the command of each server.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// One stdio server, as in the `mcpServers` of a client's configuration.
pub struct Server {
    pub name: &'static str,
    pub definition: Value,
}

pub struct Installed {
    folder: PathBuf,
}

impl Installed {
    /// Fails the test if the parts are not installed, rather than skipping it.
    pub fn find() -> Self {
        let folder = std::env::var_os("TOOLBUS_PARTS").expect(
            "TOOLBUS_PARTS is not set. `cargo xtask test` installs the real servers and clients and sets it; \
             `cargo xtask parts` only installs them and prints the folder. To leave these tests out: \
             `cargo nextest run -E 'not binary(real_parts)'`",
        );
        let installed = Self { folder: folder.into() };
        assert!(installed.python().exists(), "{} is incomplete: run `cargo xtask parts`", installed.folder.display());
        installed
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn python(&self) -> PathBuf {
        self.folder.join("python/bin/python")
    }

    pub fn node(&self) -> PathBuf {
        self.folder.join("node/node_modules/node/bin/node")
    }

    pub fn inspector(&self) -> PathBuf {
        self.npm("inspector/cli/build/cli.js")
    }

    pub fn both_eras(&self) -> Server {
        Server {
            name: "both_eras",
            definition: json!({ "command": self.python(), "args": [script("servers/both_eras.py")] }),
        }
    }

    pub fn everything(&self) -> Server {
        let args = json!([self.npm("server-everything/dist/index.js"), "stdio"]);
        Server { name: "everything", definition: json!({ "command": self.node(), "args": args }) }
    }

    pub fn files(&self, allowed: &Path) -> Server {
        let args = json!([self.npm("server-filesystem/dist/index.js"), allowed]);
        Server { name: "files", definition: json!({ "command": self.node(), "args": args }) }
    }

    pub fn memory(&self, file: &Path) -> Server {
        let definition = json!({
            "command": self.node(),
            "args": [self.npm("server-memory/dist/index.js")],
            "env": { "MEMORY_FILE_PATH": file },
        });
        Server { name: "memory", definition }
    }

    pub fn all(&self, folder: &Path) -> Vec<Server> {
        let allowed = folder.join("allowed");
        std::fs::create_dir_all(&allowed).expect("a temporary folder is writable");
        vec![self.both_eras(), self.everything(), self.files(&allowed), self.memory(&folder.join("memory.jsonl"))]
    }

    fn npm(&self, path: &str) -> PathBuf {
        self.folder.join("node/node_modules/@modelcontextprotocol").join(path)
    }
}

/// The path of a Python or JavaScript program of these tests.
pub fn script(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_parts").join(path)
}
