//! Reads `[auth.jwt]` and `[auth.certificates]` of toolbus.toml.

use crate::certificate::{CertificateConfig, NameField};
use crate::jwt::{JwtConfig, KeysFrom};
use crate::patterns::Pattern;
use crate::qualifier::Qualifier;
use hyper::Uri;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use toolbus_config::{ConfigError, Document, Setting, Table, Value};
use toolbus_protocol::check_name;

const JWT_KEYS: [&str; 12] = [
    "issuer",
    "audience",
    "keys",
    "jwks_file",
    "jwks_url",
    "refresh",
    "name_claim",
    "qualifier",
    "role_claim",
    "roles",
    "host_claim",
    "hosts",
];
const CERTIFICATE_KEYS: [&str; 6] = ["name", "prefix", "qualifier", "role", "roles", "hosts"];
const DEFAULT_REFRESH: Duration = Duration::from_secs(300);
const MIN_REFRESH: Duration = Duration::from_secs(30);

/// Configuration of the external authenticators.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuthConfig {
    /// The table `[auth.jwt]`.
    pub jwt: Option<JwtConfig>,
    /// The table `[auth.certificates]`.
    pub certificates: Option<CertificateConfig>,
}

/// Reads `[auth]` of a toolbus.toml. Paths in it are relative to `folder`.
pub fn read_auth(file: &Document, folder: &Path) -> Result<AuthConfig, ConfigError> {
    let Some(auth) = file.root().read("auth", |auth| auth.section(&["jwt", "certificates"]))? else {
        return Ok(AuthConfig::default());
    };
    let jwt = auth.read("jwt", |jwt| read_jwt(jwt.section(&JWT_KEYS)?, folder))?;
    let certificates =
        auth.read("certificates", |certificates| read_certificates(certificates.section(&CERTIFICATE_KEYS)?))?;
    Ok(AuthConfig { jwt, certificates })
}

fn read_jwt(table: &Table, folder: &Path) -> Result<JwtConfig, ConfigError> {
    const AUDIENCE_HINT: &str =
        "set the audience of tokens for this bus, so that tokens for other services are refused";
    let audiences = table.read("audience", strings)?.filter(|audiences| !audiences.is_empty());
    Ok(JwtConfig {
        issuer: table.read("issuer", string)?.ok_or_else(|| table.missing("issuer", "add it"))?,
        audiences: audiences.ok_or_else(|| table.missing("audience", AUDIENCE_HINT))?,
        keys: read_keys(table, folder)?,
        name_claim: table.read("name_claim", string)?.unwrap_or_else(|| "sub".to_owned()),
        qualifier: qualifier(table, Qualifier::JWT)?,
        role_claim: table.read("role_claim", string)?.unwrap_or_else(|| "role".to_owned()),
        roles: table.read("roles", roles)?.unwrap_or_default(),
        host_claim: table.read("host_claim", string)?,
        hosts: table.read("hosts", patterns)?.unwrap_or_default(),
    })
}

fn read_keys(table: &Table, folder: &Path) -> Result<KeysFrom, ConfigError> {
    const NO_KEYS: &str = "add keys, jwks_file or jwks_url, with the issuer's public keys";
    let named: Vec<&Setting> = ["keys", "jwks_file", "jwks_url"].iter().filter_map(|key| table.get(key)).collect();
    if let [_, second, ..] = named[..] {
        return Err(second.wrong("the only one of keys, jwks_file and jwks_url"));
    }
    let refresh = table.read("refresh", |refresh| {
        const EXPECTED: &str = "a time of 30s or more, such as \"5m\"";
        let time = Some(refresh.duration(EXPECTED)?).filter(|time| *time >= MIN_REFRESH);
        time.ok_or_else(|| refresh.wrong(EXPECTED))
    })?;
    let url = table
        .read("jwks_url", |url| url.parse("a URL that starts with https://", |url| url.parse().ok().filter(is_safe)))?;
    if let Some(url) = url {
        return Ok(KeysFrom::JwksUrl { url, refresh: refresh.unwrap_or(DEFAULT_REFRESH) });
    }
    if let Some(refresh) = table.get("refresh") {
        return Err(refresh.wrong("omitted: it applies to jwks_url only"));
    }
    if let Some(file) = table.read("jwks_file", string)? {
        return Ok(KeysFrom::JwksFile(folder.join(file)));
    }
    let keys = table.get("keys").ok_or_else(|| table.missing("keys", NO_KEYS))?;
    let files = Some(strings(keys)?).filter(|files| !files.is_empty());
    let files = files.ok_or_else(|| keys.wrong("a list of PEM files"))?;
    Ok(KeysFrom::Pem(files.iter().map(|file| folder.join(file)).collect()))
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

fn read_certificates(table: &Table) -> Result<CertificateConfig, ConfigError> {
    let name = table.read("name", |name| {
        name.parse("\"cn\", \"dns\", \"uri\" or \"email\"", |word| match word {
            "cn" => Some(NameField::CommonName),
            "dns" => Some(NameField::Dns),
            "uri" => Some(NameField::Uri),
            "email" => Some(NameField::Email),
            _ => None,
        })
    })?;
    let role_from_unit = table.read("role", |role| {
        role.parse("\"ou\"; roles by name are in the table `roles`", |word| (word == "ou").then_some(true))
    })?;
    Ok(CertificateConfig {
        name: name.unwrap_or(NameField::CommonName),
        prefix: table.read("prefix", string)?.unwrap_or_default(),
        qualifier: qualifier(table, Qualifier::CERTIFICATE)?,
        roles: table.read("roles", roles_by_pattern)?.unwrap_or_default(),
        role_from_unit: role_from_unit.unwrap_or_else(|| table.get("roles").is_none()),
        hosts: table.read("hosts", patterns)?.unwrap_or_default(),
    })
}

fn qualifier(table: &Table, default: &str) -> Result<Qualifier, ConfigError> {
    let valid = |text: &str| Qualifier::new(text).ok();
    let read = table.read("qualifier", |setting| setting.parse("the beginning of an agent's name, or \"\"", valid))?;
    Ok(read.or_else(|| valid(default)).expect("the defaults are valid"))
}

fn string(setting: &Setting) -> Result<String, ConfigError> {
    setting.parse("a non-empty string", |text| (!text.is_empty()).then(|| text.to_owned()))
}

/// A list, or a single string.
fn strings(setting: &Setting) -> Result<Vec<String>, ConfigError> {
    match &setting.value {
        Value::List(list) => list.iter().map(string).collect(),
        Value::Text(_) => Ok(vec![string(setting)?]),
        _ => Err(setting.wrong("a string or a list of strings")),
    }
}

fn patterns(setting: &Setting) -> Result<Vec<Pattern>, ConfigError> {
    strings(setting)?.iter().map(|text| pattern(setting, text)).collect()
}

fn pattern(setting: &Setting, text: &str) -> Result<Pattern, ConfigError> {
    Pattern::new(text).map_err(|error| setting.invalid(error.to_string(), "correct the value"))
}

/// A table that maps strings to roles, in file order.
fn roles(setting: &Setting) -> Result<Vec<(String, String)>, ConfigError> {
    let table = setting.table("a table of roles, such as { \"group\" = \"reader\" }")?;
    let role = |(name, _, role): (&str, _, &Setting)| {
        let text = role.text()?;
        check_name(text).map_err(|error| role.invalid(format!("the role {text:?}: {error}"), "correct the value"))?;
        Ok((name.to_owned(), text.to_owned()))
    };
    table.entries().map(role).collect()
}

fn roles_by_pattern(setting: &Setting) -> Result<Vec<(Pattern, String)>, ConfigError> {
    roles(setting)?.into_iter().map(|(name, role)| Ok((pattern(setting, &name)?, role))).collect()
}
