//! The environment of a server's process: its configured variables, a few standard ones, and those that say how the
//! network is reached. It contains no variables of toolbus and none of the host's secrets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "DISPLAY",
    "WAYLAND_DISPLAY",
];
/// Proxies, in both cases, and certificate authorities. Without them a server can't reach anything where they are needed.
const NETWORK: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "FTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "NODE_USE_ENV_PROXY",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "UV_SYSTEM_CERTS",
    "UV_NATIVE_TLS",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_NOPROXY",
    "NPM_CONFIG_CAFILE",
];
const INHERITED_PREFIXES: &[&str] = &["LC_", "XDG_"];

pub(super) fn of_server(configured: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().filter(|(name, _)| is_inherited(name)).collect();
    env.extend(configured.iter().map(|(name, value)| (name.into(), value.into())));
    env
}

fn is_inherited(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    INHERITED.contains(&name)
        || NETWORK.iter().any(|known| known.eq_ignore_ascii_case(name))
        || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_and_certificates_are_inherited_and_secrets_are_not() {
        let names = ["HTTPS_PROXY", "https_proxy", "no_proxy", "NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR", "LC_ALL", "PATH"];
        for name in names {
            assert!(is_inherited(OsStr::new(name)), "{name}");
        }
        for name in ["TOOLBUS_TOKEN", "GITHUB_TOKEN", "MY_HTTP_PROXY", "path"] {
            assert!(!is_inherited(OsStr::new(name)), "{name}");
        }
    }
}
