//! Matches a URI against a URI template, as precisely as routing needs it.

/// The literal parts of a template, separated by expressions.
#[derive(Debug)]
pub struct Template {
    literals: Vec<String>,
}

impl Template {
    pub fn new(text: &str) -> Self {
        let mut literals = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            literals.push(literal.to_owned());
            rest = after.split_once('}').map_or("", |(_, after)| after);
        }
        literals.push(rest.to_owned());
        Self { literals }
    }

    /// An expression matches any text. That can't extract the variables, but suffices to find the server.
    pub fn matches(&self, uri: &str) -> bool {
        let Some((first, others)) = self.literals.split_first() else { return false };
        let Some(mut rest) = uri.strip_prefix(first.as_str()) else { return false };
        let Some((last, between)) = others.split_last() else { return rest.is_empty() };
        for literal in between {
            let Some(at) = rest.find(literal.as_str()) else { return false };
            rest = &rest[at + literal.len()..];
        }
        rest.ends_with(last.as_str())
    }
}

/// The scheme of the URI, in lower case, because schemes are case-insensitive.
pub fn scheme(uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    (!scheme.is_empty() && !scheme.contains(['/', '{'])).then(|| scheme.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_matches_its_template_and_no_other() {
        let check =
            |template, uri, expected| assert_eq!(Template::new(template).matches(uri), expected, "{template} {uri}");
        check("test://item/{id}/data", "test://item/7/data", true);
        check("test://item/{id}/data", "test://item/7/date", false);
        check("file:///{+path}", "file:///a/b", true);
        check("db://{table}/{row}", "db://t/1", true);
        check("db://{table}/{row}", "db://t", false);
        check("x://fixed", "x://fixed", true);
        check("x://fixed", "x://fixed/more", false);
        check("x://{broken", "x://anything", true);
    }
}
