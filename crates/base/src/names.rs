//! Names of mailboxes: `NAME` and `NAME#suffix` belong to the agent `NAME`.

/// Suffix of the dead-letter mailbox of `NAME`, `NAME#dead`, which is read like any other mailbox.
pub const DEAD_LETTER_SUFFIX: &str = "#dead";

/// Returns the agent that a mailbox belongs to.
pub fn principal_of(mailbox: &str) -> &str {
    // Names are short, so a plain loop is faster than a general search.
    mailbox.bytes().position(|byte| byte == b'#').map_or(mailbox, |end| &mailbox[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_the_name_before_the_first_hash_sign() {
        for (mailbox, agent) in [("bob", "bob"), ("bob#mcp-1", "bob"), ("bob#a#dead", "bob"), ("#dead", ""), ("", "")] {
            assert_eq!(principal_of(mailbox), agent, "{mailbox}");
        }
    }
}
