//! Suggestions for a mistyped name.

/// The most similar names, best first, at most three.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const SIMILAR: f64 = 0.8;
    const MAX_NAMES: usize = 3;
    let lower = wrong.to_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .into_iter()
        .map(|name| {
            let other = name.to_lowercase();
            // A substring of a long name is a good guess too.
            let part = lower.len() >= 3 && other.contains(&lower);
            // In a short name a single typo lowers the similarity too much.
            let one_off = lower.len() >= 3 && strsim::damerau_levenshtein(&lower, &other) == 1;
            let score = strsim::jaro_winkler(&lower, &other);
            (
                if part {
                    0.95
                } else if one_off {
                    score.max(SIMILAR)
                } else {
                    score
                },
                name,
            )
        })
        .filter(|(score, _)| *score >= SIMILAR)
        .collect();
    scored.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
    scored.dedup();
    scored.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
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
