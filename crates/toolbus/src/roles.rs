//! Warnings about roles without rules, which are most likely mistyped.

use toolbus_base::{nearest, or_list};

/// Roles with built-in rules if toolbus.toml has no roles.
const BUILT_IN: [&str; 2] = ["local", "operator"];
/// The role that keeps its built-in rules even if toolbus.toml has other roles.
const ALWAYS_BUILT_IN: &str = "operator";

/// A warning if a role given by `option` has rules neither in the file, which has `roles`, nor built in.
pub fn role_without_rules(option: &str, role: &str, roles: &[&str]) -> Option<String> {
    if roles.is_empty() {
        return (!BUILT_IN.contains(&role)).then(|| {
            format!(
                "WARNING: {option} {role}: there are no [roles] in toolbus.toml here, so this role may use nothing; \
                 add [roles.{role}] with allow = [\"…\"] on the host's machine"
            )
        });
    }
    if roles.contains(&role) || role == ALWAYS_BUILT_IN {
        return None;
    }
    let guess = match nearest(role, roles.iter().copied())[..] {
        [] => format!("known roles: {}", roles.join(", ")),
        ref similar => format!("did you mean {}?", or_list(similar)),
    };
    Some(format!(
        "WARNING: {option} {role}: there is no [roles.{role}] in toolbus.toml, so this role may use nothing; {guess}"
    ))
}

/// The same for a shared token, with which every role may use everything if the file has no roles.
pub fn claimed_role_without_rules(option: &str, role: &str, roles: &[&str]) -> Option<String> {
    if roles.is_empty() { None } else { role_without_rules(option, role, roles) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_without_rules_causes_a_warning() {
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
        assert!(unknown.ends_with("known roles: reader, clerk"), "{unknown}");
    }

    #[test]
    fn with_a_shared_token_only_configured_roles_cause_a_warning() {
        assert_eq!(claimed_role_without_rules("--role", "x", &[]), None);
        assert!(claimed_role_without_rules("--role", "x", &["reader"]).is_some());
    }
}
