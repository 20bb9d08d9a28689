//! A role that nobody gave any rules is most likely a mistyped one.

use crate::nearest::{nearest, or_list};

/// A warning about a role that is not among those of the configuration. Where there are none, every role is as good.
pub fn unknown_role(option: &str, role: Option<&str>, roles: &[&str]) -> Option<String> {
    let role = role?;
    if roles.is_empty() || roles.contains(&role) {
        return None;
    }
    let guess = match nearest(role, roles.iter().copied())[..] {
        [] => format!("there is {}", or_list(roles)),
        ref similar => format!("did you mean {}?", or_list(similar)),
    };
    Some(format!(
        "WARNING: {option} {role}: there is no [roles.{role}] in toolbus.toml, so it may use nothing; {guess}"
    ))
}

/// A warning about a credential for a role that may use nothing. Without any `[roles]` only two roles have rules, which
/// are built in.
pub fn role_without_rules(role: &str, roles: &[String]) -> Option<String> {
    let known: Vec<&str> = roles.iter().map(String::as_str).collect();
    match known.is_empty() {
        false => unknown_role("--role", Some(role), &known),
        true if BUILT_IN.contains(&role) => None,
        true => Some(format!(
            "WARNING: --role {role}: there are no [roles] in toolbus.toml here, so it may use nothing; add [roles.{role}] \
             with allow = [\"…\"] where the host runs"
        )),
    }
}

/// Have rules where toolbus.toml has none.
const BUILT_IN: [&str; 2] = ["local", "operator"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_for_a_role_without_rules_is_worth_a_warning() {
        assert_eq!(role_without_rules("local", &[]), None);
        assert_eq!(role_without_rules("reader", &["reader".into()]), None);
        assert!(role_without_rules("reader", &[]).is_some_and(|warning| warning.contains("[roles.reader]")));
        let warning = role_without_rules("raeder", &["reader".into()]).expect("a warning");
        assert!(warning.ends_with("did you mean reader?"), "{warning}");
    }

    #[test]
    fn only_a_role_without_rules_among_others_with_rules_is_worth_a_warning() {
        assert_eq!(unknown_role("--role", Some("x"), &[]), None);
        assert_eq!(unknown_role("--role", None, &["reader"]), None);
        assert_eq!(unknown_role("--role", Some("reader"), &["reader"]), None);
        let warning = unknown_role("--mcp-role", Some("raeder"), &["reader", "clerk"]).expect("a warning");
        assert!(warning.contains("--mcp-role raeder") && warning.ends_with("did you mean reader?"), "{warning}");
        let warning = unknown_role("--role", Some("x"), &["reader", "clerk"]).expect("a warning");
        assert!(warning.ends_with("there is reader or clerk"), "{warning}");
    }
}
