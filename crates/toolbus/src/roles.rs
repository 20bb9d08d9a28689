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

#[cfg(test)]
mod tests {
    use super::*;

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
