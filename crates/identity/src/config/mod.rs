//! `[auth.jwt]` and `[auth.certificates]` of toolbus.toml. Every key is known or refused, with its place in the file.

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

/// Who else is believed about who a peer is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuthConfig {
    pub jwt: Option<JwtConfig>,
    pub certificates: Option<CertificateConfig>,
}

/// Reads `[auth]` out of the text of a toolbus.toml; its other tables are read elsewhere. Paths in it are relative to
/// `folder`.
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
    let audiences = table.texts_or_one("audience")?.filter(|audiences| !audiences.is_empty());
    Ok(JwtConfig {
        issuer: table.text("issuer")?.ok_or_else(|| table.missing("issuer"))?.to_owned(),
        audiences: audiences.ok_or_else(|| table.missing("audience"))?,
        keys: read_keys(table, folder)?,
        name_claim: table.text("name_claim")?.unwrap_or("sub").to_owned(),
        role_claim: table.text("role_claim")?.unwrap_or("role").to_owned(),
        roles: table.roles("roles")?,
        host_claim: table.text("host_claim")?.map(str::to_owned),
        hosts: table.patterns("hosts")?,
    })
}

fn read_keys(table: &Table<'_>, folder: &Path) -> Result<KeysFrom, AuthConfigError> {
    const ONE: &str = "given alone: one of keys, jwks_file and jwks_url";
    let named: Vec<&str> =
        ["keys", "jwks_file", "jwks_url"].into_iter().filter(|key| table.get(key).is_some()).collect();
    let beside = |path: &str| -> PathBuf { folder.join(path) };
    let refresh = table.duration("refresh")?;
    let from = match named[..] {
        [] => return Err(table.missing("keys, jwks_file or jwks_url")),
        [_, second, ..] => return Err(table.wrong(second, ONE)),
        ["keys"] => {
            let files = table.texts_or_one("keys")?.filter(|files| !files.is_empty());
            let files = files.ok_or_else(|| table.wrong("keys", "a list of PEM files"))?;
            KeysFrom::Pem(files.iter().map(|file| beside(file)).collect())
        }
        ["jwks_file"] => KeysFrom::JwksFile(beside(table.text("jwks_file")?.unwrap_or_default())),
        [_] => {
            let url = table.text("jwks_url")?.and_then(|url| url.parse().ok()).filter(is_safe);
            let url = url.ok_or_else(|| table.wrong("jwks_url", "a URL that begins with https://"))?;
            return Ok(KeysFrom::JwksUrl { url, refresh: refresh.unwrap_or(DEFAULT_REFRESH) });
        }
    };
    match refresh {
        Some(_) => Err(table.wrong("refresh", "left out: it is about jwks_url")),
        None => Ok(from),
    }
}

/// Keys that came in plain text could be anybody's, unless they never left this machine.
fn is_safe(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match url.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_here,
        _ => false,
    }
}

fn read_certificates(table: &Table<'_>) -> Result<CertificateConfig, AuthConfigError> {
    let name = match table.text("name")? {
        None | Some("cn") => NameField::CommonName,
        Some("dns") => NameField::Dns,
        Some("uri") => NameField::Uri,
        Some("email") => NameField::Email,
        Some(_) => return Err(table.wrong("name", "\"cn\", \"dns\", \"uri\" or \"email\"")),
    };
    let role_from_unit = match table.text("role")? {
        None => table.get("roles").is_none(),
        Some("ou") => true,
        Some(_) => return Err(table.wrong("role", "\"ou\"; roles by name are in the table `roles`")),
    };
    Ok(CertificateConfig {
        name,
        prefix: table.text("prefix")?.unwrap_or_default().to_owned(),
        roles: table.roles_by_pattern("roles")?,
        role_from_unit,
        hosts: table.patterns("hosts")?,
    })
}
