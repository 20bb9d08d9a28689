//! URI templates, as precisely as routing needs them: literal parts, and expressions that match any text.

/// The literal parts of a template, separated by expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriTemplate {
    literals: Vec<String>,
}

impl UriTemplate {
    /// Parses the text of a template. An expression that is not closed extends to the end.
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

    /// Whether some URI matches both templates. With an expression in both, the parts in between can follow one another, so
    /// only the beginnings and the ends have to agree.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (&self.literals[..], &other.literals[..]) {
            ([uri], _) => other.matches(uri),
            (_, [uri]) => self.matches(uri),
            ([first, .., last], [other_first, .., other_last]) => {
                (first.starts_with(&**other_first) || other_first.starts_with(&**first))
                    && (last.ends_with(&**other_last) || other_last.ends_with(&**last))
            }
            _ => false,
        }
    }

    /// Whether it leaves the scheme to its expressions, as `{+uri}` does.
    pub fn is_of_any_scheme(&self) -> bool {
        self.literals.len() > 1 && self.literals.first().is_some_and(|first| !first.contains(':'))
    }

    /// The text with nameless expressions.
    pub fn skeleton(&self) -> String {
        self.literals.join("{}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_matches_its_template_and_no_other() {
        let check =
            |template, uri, expected| assert_eq!(UriTemplate::new(template).matches(uri), expected, "{template} {uri}");
        check("test://item/{id}/data", "test://item/7/data", true);
        check("test://item/{id}/data", "test://item/7/date", false);
        check("file:///{+path}", "file:///a/b", true);
        check("db://{table}/{row}", "db://t/1", true);
        check("db://{table}/{row}", "db://t", false);
        check("x://fixed", "x://fixed", true);
        check("x://fixed", "x://fixed/more", false);
        check("x://{broken", "x://anything", true);
    }

    #[test]
    fn templates_overlap_if_a_uri_matches_both() {
        let check = |one, other, expected| {
            let (one, other) = (UriTemplate::new(one), UriTemplate::new(other));
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (expected, expected), "{one:?} {other:?}");
        };
        check("file:///t/{x}", "file:///t/{y}", true);
        check("file:///t/{x}", "file:///{+any}", true);
        check("file:///t/{x}", "{+any}", true);
        check("file:///t/{x}", "file:///u/{x}", false);
        check("db://{table}/rows", "db://{table}/columns", false);
        check("db://{table}/a/{b}/rows", "db://x{+rest}", true);
        check("file:///t/{x}", "file:///t/fixed", true);
        check("file:///t/{x}", "file:///fixed", false);
        check("file:///fixed", "file:///fixed", true);
    }

    #[test]
    fn a_scheme_may_be_left_open() {
        let check = |text, expected| assert_eq!(UriTemplate::new(text).is_of_any_scheme(), expected, "{text}");
        check("{+any}", true);
        check("{scheme}://x", true);
        check("file:///{x}", false);
        check("fixed", false);
        assert_eq!(UriTemplate::new("db://{table}/{?query*}").skeleton(), "db://{}/{}");
    }
}
