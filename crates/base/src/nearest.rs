//! Suggestions for a mistyped name.

/// Minimum [`similarity`] of two names for a suggestion.
pub const MIN_SIMILARITY: f64 = 0.8;

/// The most similar names, best first, at most three.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const MAX_NAMES: usize = 3;
    let lower = wrong.to_lowercase();
    // A substring of a long name is a good guess too.
    let is_part = |name: &str| lower.len() >= 3 && name.to_lowercase().contains(&lower);
    let score = |name| if is_part(name) { 0.95 } else { similarity(wrong, name) };
    let mut scored: Vec<(f64, &str)> = known.into_iter().map(|name| (score(name), name)).collect();
    scored.retain(|(score, _)| *score >= MIN_SIMILARITY);
    scored.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
    scored.dedup();
    scored.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
}

/// How similar two names are, from 0 to 1, regardless of case.
pub fn similarity(one: &str, other: &str) -> f64 {
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    let score = strsim::jaro_winkler(&one, &other);
    // Jaro-Winkler scores a single typo in a short name too low.
    let one_off = one.len() >= 3 && strsim::damerau_levenshtein(&one, &other) == 1;
    if one_off { score.max(MIN_SIMILARITY) } else { score }
}

/// `a`, `a or b`, `a, b or c`.
pub fn or_list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_and_substrings_find_the_name() {
        let known = ["text_stats", "now", "countdown", "chart"];
        assert_eq!(nearest("coutdown", known), ["countdown"]);
        assert_eq!(nearest("mow", known), ["now"]);
        assert_eq!(nearest("stats", known), ["text_stats"]);
        assert_eq!(nearest("Chart", known), ["chart"]);
        assert!(nearest("zzz", known).is_empty());
        assert_eq!(or_list(&["a", "b", "c"]), "a, b or c");
    }
}
