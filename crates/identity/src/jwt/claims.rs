//! Maps the claims of a verified JWT to a name, a role and rights.

use super::JwtConfig;
use crate::binding::external_role;
use crate::{AuthRefusal, Rights};
use bytestring::ByteString;
use serde_json::{Map, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use toolbus_protocol::{ErrorCode, check_name};

pub type Claims = Map<String, Value>;

pub struct Holder {
    pub name: String,
    pub role: Option<ByteString>,
    pub rights: Rights,
    pub expires: SystemTime,
}

impl Holder {
    pub fn of(claims: &Claims, config: &JwtConfig) -> Result<Self, AuthRefusal> {
        let unusable = |what: &str, reason: String| {
            AuthRefusal::new(ErrorCode::BadName, format!("the token has an invalid {what} claim: {reason}"))
        };
        let name = find(claims, &config.name_claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| unusable("name", format!("{:?} is not a string", config.name_claim)))?;
        let agent = config.qualifier.qualify(name).map_err(|error| unusable("name", error.to_string()))?;
        let role = role_of(find(claims, &config.role_claim), &config.roles);
        if let Some(role) = &role {
            check_name(role).map_err(|error| unusable("role", error.to_string()))?;
        }
        let host_claim = config.host_claim.as_deref().and_then(|claim| find(claims, claim));
        let host = host_claim == Some(&Value::Bool(true)) || config.is_host(&agent);
        let expires = claims.get("exp").and_then(timestamp).ok_or_else(AuthRefusal::unknown)?;
        let rights = Rights { host, ..Rights::WORKER };
        Ok(Self { name: agent, role: role.map(ByteString::from), rights, expires })
    }
}

/// Finds a claim by name, or by JSON pointer if `claim` starts with a slash.
fn find<'a>(claims: &'a Claims, claim: &str) -> Option<&'a Value> {
    let Some(path) = claim.strip_prefix('/') else { return claims.get(claim) };
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = claims.get(&first.replace("~1", "/").replace("~0", "~"))?;
    rest.map_or(Some(value), |rest| value.pointer(&format!("/{rest}")))
}

/// With a table, the role of its first entry that matches; without one, the claim itself if it is a single string.
/// Holders without a role get no permission that rules grant by role.
fn role_of(claim: Option<&Value>, table: &[(String, String)]) -> Option<String> {
    let values: Vec<&str> = match claim? {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    if table.is_empty() {
        let [only] = values[..] else { return None };
        return external_role(only.to_owned());
    }
    table.iter().find(|(value, _)| values.contains(&value.as_str())).map(|(_, role)| role.clone())
}

/// Seconds since 1970, possibly fractional.
fn timestamp(value: &Value) -> Option<SystemTime> {
    let seconds = value.as_u64().map(Duration::from_secs);
    let since = seconds.or_else(|| Duration::try_from_secs_f64(value.as_f64()?).ok())?;
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_role_comes_from_the_claim_or_through_the_table() {
        let table = [("admins".to_owned(), "writer".to_owned()), ("all".to_owned(), "reader".to_owned())];
        let check = |claim: Value, table: &[(String, String)], role: Option<&str>| {
            assert_eq!(role_of(Some(&claim), table).as_deref(), role, "{claim}");
        };
        check(json!("operator"), &[], None);
        check(json!("local"), &[], None);
        check(json!("root"), &[("root".to_owned(), "operator".to_owned())], Some("operator"));
        check(json!("reader"), &[], Some("reader"));
        check(json!(["reader"]), &[], Some("reader"));
        check(json!(["reader", "writer"]), &[], None);
        check(json!(7), &[], None);
        check(json!(["all", "admins"]), &table, Some("writer"));
        check(json!("all"), &table, Some("reader"));
        check(json!("reader"), &table, None);
        check(json!("ALL"), &table, None);
    }

    #[test]
    fn a_claim_may_be_nested() {
        let Value::Object(claims) = json!({"realm": {"roles": ["r"]}, "a/b": 1}) else { unreachable!() };
        assert_eq!(find(&claims, "/realm/roles"), Some(&json!(["r"])));
        assert_eq!(find(&claims, "/a~1b"), Some(&json!(1)));
        assert_eq!(find(&claims, "a/b"), Some(&json!(1)));
        assert_eq!(find(&claims, "/realm/none"), None);
    }
}
