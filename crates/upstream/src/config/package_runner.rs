//! Recognises programs that download a server before they start it.

use super::{ServerConfig, TransportConfig};
use std::path::Path;

/// Programs that always run a package.
const RUNNERS: &[&str] = &["npx", "uvx", "bunx", "pnpx", "dnx"];
/// Programs that run a package with one of these first arguments.
const WITH_COMMAND: &[(&str, &[&str])] = &[
    ("npm", &["exec", "x"]),
    ("pnpm", &["dlx", "exec"]),
    ("yarn", &["dlx"]),
    ("bun", &["x"]),
    ("uv", &["run", "tool", "x"]),
    ("pipx", &["run"]),
    ("docker", &["run", "compose"]),
    ("podman", &["run"]),
    ("nix", &["run", "shell"]),
    ("deno", &["run"]),
    ("go", &["run"]),
    ("cargo", &["run"]),
];

impl ServerConfig {
    /// The name of the package runner that starts the server, if one does.
    pub fn package_runner(&self) -> Option<&str> {
        let TransportConfig::Stdio { command, args, .. } = &self.transport else { return None };
        let name = Path::new(command).file_name()?.to_str()?;
        let first = args.iter().map(String::as_str).find(|arg| !arg.starts_with('-'));
        let is_command = |(runner, commands): &(&str, &[&str])| {
            *runner == name && first.is_some_and(|first| commands.contains(&first))
        };
        (RUNNERS.contains(&name) || WITH_COMMAND.iter().any(is_command)).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_runners_are_recognised() {
        let check = |command: &str, args: &[&str], runner: Option<&str>| {
            assert_eq!(ServerConfig::stdio("s", command, args).package_runner(), runner, "{command} {args:?}");
        };
        check("npx", &["-y", "pkg"], Some("npx"));
        check("/usr/bin/uvx", &[], Some("uvx"));
        check("docker", &["run", "-i", "image"], Some("docker"));
        check("pnpm", &["--silent", "dlx", "pkg"], Some("pnpm"));
        check("docker", &["exec", "x", "run"], None);
        check("node", &["npx"], None);
        assert_eq!(ServerConfig::http("s", "http://h/npx").package_runner(), None);
    }
}
