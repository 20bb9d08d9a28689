//! Reads `[auth.jwt]` and `[auth.certificates]` of toolbus.toml. Unknown keys are errors with their position.

mod error;
mod table;

pub use error::{AuthConfigError, Position};

use crate::certificate::{CertificateConfig, NameField};
use crate::jwt::{JwtConfig, KeysFrom};
use hyper::Uri;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::Table;
use toml::de::DeTable;

const JWT_KEYS: [&str; 11] = [
    "issuer",
    "audience",
    "keys",
    "jwks_file",
    "jwks_url",
    "refresh",
    "name_claim",
    "role_claim",
    "roles",
    "host_claim",
    "hosts",
];
const CERTIFICATE_KEYS: [&str; 5] = ["name", "prefix", "role", "roles", "hosts"];
const DEFAULT_REFRESH: Duration = Duration::from_secs(300);

/// Configuration of the external authenticators.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuthConfig {
    /// The table `[auth.jwt]`.
    pub jwt: Option<JwtConfig>,
    /// The table `[auth.certificates]`.
    pub certificates: Option<CertificateConfig>,
}

/// Reads `[auth]` from the text of a toolbus.toml; other tables are ignored here. Paths in it are relative to `folder`.
pub fn read_auth(text: &str, folder: &Path) -> Result<AuthConfig, AuthConfigError> {
    let file = DeTable::parse(text).map_err(|error| AuthConfigError::Syntax {
        position: Position::of_offset(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let Some(auth) = file.get_ref().get("auth") else { return Ok(AuthConfig::default()) };
    let auth = Table::new(text, "auth", auth, &["jwt", "certificates"])?;
    let jwt = auth.get("jwt").map(|jwt| read_jwt(&Table::new(text, "auth.jwt", jwt, &JWT_KEYS)?, folder));
    let certificates = auth.get("certificates").map(|certificates| {
        read_certificates(&Table::new(text, "auth.certificates", certificates, &CERTIFICATE_KEYS)?)
    });
    Ok(AuthConfig { jwt: jwt.transpose()?, certificates: certificates.transpose()? })
}

fn read_jwt(table: &Table<'_>, folder: &Path) -> Result<JwtConfig, AuthConfigError> {
    let audiences = table.string_list("audience")?.filter(|audiences| !audiences.is_empty());
    Ok(JwtConfig {
        issuer: table.string("issuer")?.ok_or_else(|| table.missing("issuer"))?.to_owned(),
        audiences: audiences.ok_or_else(|| table.missing("audience"))?,
        keys: read_keys(table, folder)?,
        name_claim: table.string("name_claim")?.unwrap_or("sub").to_owned(),
        role_claim: table.string("role_claim")?.unwrap_or("role").to_owned(),
        roles: table.roles("roles")?,
        host_claim: table.string("host_claim")?.map(str::to_owned),
        hosts: table.patterns("hosts")?,
    })
}

fn read_keys(table: &Table<'_>, folder: &Path) -> Result<KeysFrom, AuthConfigError> {
    const ONE: &str = "the only one of keys, jwks_file and jwks_url";
    let named: Vec<&str> =
        ["keys", "jwks_file", "jwks_url"].into_iter().filter(|key| table.get(key).is_some()).collect();
    let resolve = |path: &str| -> PathBuf { folder.join(path) };
    let refresh = table.duration("refresh")?;
    let from = match named[..] {
        [] => return Err(table.missing("keys, jwks_file or jwks_url")),
        [_, second, ..] => return Err(table.wrong(second, ONE)),
        ["keys"] => {
            let files = table.string_list("keys")?.filter(|files| !files.is_empty());
            let files = files.ok_or_else(|| table.wrong("keys", "a list of PEM files"))?;
            KeysFrom::Pem(files.iter().map(|file| resolve(file)).collect())
        }
        ["jwks_file"] => KeysFrom::JwksFile(resolve(table.string("jwks_file")?.unwrap_or_default())),
        [_] => {
            let url = table.string("jwks_url")?.and_then(|url| url.parse().ok()).filter(is_safe);
            let url = url.ok_or_else(|| table.wrong("jwks_url", "a URL that starts with https://"))?;
            return Ok(KeysFrom::JwksUrl { url, refresh: refresh.unwrap_or(DEFAULT_REFRESH) });
        }
    };
    match refresh {
        Some(_) => Err(table.wrong("refresh", "omitted: it applies to jwks_url only")),
        None => Ok(from),
    }
}

/// Keys fetched in plain text could be forged on the network, so http:// is allowed on loopback only.
fn is_safe(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match url.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_loopback,
        _ => false,
    }
}

fn read_certificates(table: &Table<'_>) -> Result<CertificateConfig, AuthConfigError> {
    let name = match table.string("name")? {
        None | Some("cn") => NameField::CommonName,
        Some("dns") => NameField::Dns,
        Some("uri") => NameField::Uri,
        Some("email") => NameField::Email,
        Some(_) => return Err(table.wrong("name", "\"cn\", \"dns\", \"uri\" or \"email\"")),
    };
    let role_from_unit = match table.string("role")? {
        None => table.get("roles").is_none(),
        Some("ou") => true,
        Some(_) => return Err(table.wrong("role", "\"ou\"; roles by name are in the table `roles`")),
    };
    Ok(CertificateConfig {
        name,
        prefix: table.string("prefix")?.unwrap_or_default().to_owned(),
        roles: table.roles_by_pattern("roles")?,
        role_from_unit,
        hosts: table.patterns("hosts")?,
    })
}
