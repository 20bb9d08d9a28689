//! Warnings about roles that may use nothing, which are most likely mistyped.

use crate::nearest::{nearest, or_list};

/// Have rules where toolbus.toml names no roles.
const BUILT_IN: [&str; 2] = ["local", "operator"];
/// Keeps its built-in rules where toolbus.toml names others.
const ALWAYS_BUILT_IN: &str = "operator";

/// A warning about a role, given by that option, for which there are no rules: neither in the file, whose roles these are,
/// nor built in.
pub fn role_without_rules(option: &str, role: &str, roles: &[&str]) -> Option<String> {
    if roles.is_empty() {
        return (!BUILT_IN.contains(&role)).then(|| {
            format!(
                "WARNING: {option} {role}: there are no [roles] in toolbus.toml here, so it may use nothing; add \
                 [roles.{role}] with allow = [\"…\"] where the host runs"
            )
        });
    }
    if roles.contains(&role) || role == ALWAYS_BUILT_IN {
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

/// The same with a shared token, where every role may use everything as long as the file names none.
pub fn claimed_role_without_rules(option: &str, role: &str, roles: &[&str]) -> Option<String> {
    if roles.is_empty() { None } else { role_without_rules(option, role, roles) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_without_rules_is_worth_a_warning() {
        let warning = |role, roles: &[&str]| role_without_rules("--role", role, roles);
        assert_eq!(warning("local", &[]), None);
        assert_eq!(warning("operator", &[]), None);
        assert_eq!(warning("operator", &["reader"]), None);
        assert_eq!(warning("reader", &["reader"]), None);
        assert!(warning("reader", &[]).is_some_and(|warning| warning.contains("[roles.reader]")));
        assert!(warning("local", &["reader"]).is_some());
        let misspelt = role_without_rules("--mcp-role", "raeder", &["reader", "clerk"]).expect("a warning");
        assert!(misspelt.contains("--mcp-role raeder") && misspelt.ends_with("did you mean reader?"), "{misspelt}");
        let unknown = warning("x", &["reader", "clerk"]).expect("a warning");
        assert!(unknown.ends_with("there is reader or clerk"), "{unknown}");
    }

    #[test]
    fn with_a_shared_token_every_role_has_rules_as_long_as_none_are_configured() {
        assert_eq!(claimed_role_without_rules("--role", "x", &[]), None);
        assert!(claimed_role_without_rules("--role", "x", &["reader"]).is_some());
    }
}
