//! Resolves JSON pointers (RFC 6901) against raw JSON text, all in one pass, without building a tree and without
//! recursing into values that no pointer refers to.
//!
//! Servers disagree about duplicate keys, and some match keys case-insensitively. If such a key lies on the path of a
//! pointer, the result is `Unclear` instead of a suggestion.

use std::borrow::Cow;
use std::collections::HashMap;
use toolbus_base::fold_case;

pub const MAX_POINTER_DEPTH: usize = 32;

/// Why a condition can't be evaluated on the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsProblem {
    /// The arguments are JSON, but not an object.
    #[error("the arguments are not a JSON object")]
    NotAnObject,
    /// A key that a condition refers to occurs twice.
    #[error("the arguments have a duplicate key")]
    KeyTwice,
    /// A key differs only in case from one that a condition refers to.
    #[error("the arguments have a key that differs only in case from the one in the policy")]
    OtherCase,
    /// A string or key is not valid Unicode, for example a lone surrogate.
    #[error("the arguments have a string that is not valid Unicode")]
    NotUnicode,
    /// The arguments are not valid JSON.
    #[error("the arguments are not JSON")]
    NotJson,
}

/// The value that a pointer refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'d> {
    Nothing,
    Value(&'d str),
    Unclear(ArgumentsProblem),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    #[error("a JSON pointer is empty or begins with /")]
    NoSlash,
    #[error("in a JSON pointer, ~ is only valid in ~0 (for ~) and ~1 (for /)")]
    BadEscape,
    #[error("the JSON pointer has more than {MAX_POINTER_DEPTH} parts")]
    TooDeep,
}

/// The pointers of one role, merged into a tree.
#[derive(Debug, Clone)]
pub struct Pointers {
    nodes: Vec<Node>,
    slots: usize,
}

#[derive(Debug, Clone, Default)]
struct Node {
    slot: Option<usize>,
    /// Keyed by the case-folded name; each entry has the exact name and the index of its node.
    children: HashMap<String, Vec<(String, usize)>>,
}

impl Default for Pointers {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], slots: 0 }
    }
}

impl Pointers {
    /// Returns the slot of its value in the result of [`Self::find`]. The same pointer always has the same slot.
    pub fn add(&mut self, pointer: &str) -> Result<usize, PointerError> {
        let mut at = 0;
        for name in tokens(pointer)? {
            let folded = fold_case(&name);
            let known = self.nodes[at].children.get(&folded);
            let child = known.and_then(|known| known.iter().find(|(exact, _)| *exact == name)).map(|(_, child)| *child);
            at = child.unwrap_or_else(|| {
                let new = self.nodes.len();
                self.nodes.push(Node::default());
                self.nodes[at].children.entry(folded).or_default().push((name, new));
                new
            });
        }
        Ok(*self.nodes[at].slot.get_or_insert_with(|| {
            self.slots += 1;
            self.slots - 1
        }))
    }

    /// The value at each slot.
    pub fn find<'d>(&self, document: &'d str) -> Result<Vec<Found<'d>>, ArgumentsProblem> {
        let mut search =
            Search { pointers: self, scan: Scan { text: document, at: 0 }, found: vec![Found::Nothing; self.slots] };
        search.scan.space();
        if search.scan.peek() != Some(b'{') {
            return Err(ArgumentsProblem::NotAnObject);
        }
        search.value(0).ok_or(ArgumentsProblem::NotJson)?;
        Ok(search.found)
    }
}

fn tokens(pointer: &str) -> Result<Vec<String>, PointerError> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let parts = pointer.strip_prefix('/').ok_or(PointerError::NoSlash)?;
    let token = |part: &str| {
        let escapes = part.matches('~').count();
        let known = part.matches("~0").count() + part.matches("~1").count();
        if escapes == known { Ok(part.replace("~1", "/").replace("~0", "~")) } else { Err(PointerError::BadEscape) }
    };
    let tokens: Vec<String> = parts.split('/').map(token).collect::<Result<_, _>>()?;
    if tokens.len() > MAX_POINTER_DEPTH { Err(PointerError::TooDeep) } else { Ok(tokens) }
}

struct Search<'p, 'd> {
    pointers: &'p Pointers,
    scan: Scan<'d>,
    found: Vec<Found<'d>>,
}

/// Methods return `None` if the text is not JSON. Recursion depth is bounded by the deepest pointer.
impl<'p> Search<'p, '_> {
    fn value(&mut self, node: usize) -> Option<()> {
        let current = &self.pointers.nodes[node];
        self.scan.space();
        let start = self.scan.at;
        match self.scan.peek()? {
            b'{' if !current.children.is_empty() => self.object(current)?,
            b'[' if !current.children.is_empty() => self.array(current)?,
            _ => self.scan.skip_value()?,
        }
        if let Some(slot) = current.slot {
            self.found[slot] = Found::Value(self.scan.text.get(start..self.scan.at)?);
        }
        Some(())
    }

    fn object(&mut self, current: &'p Node) -> Option<()> {
        let mut seen: Vec<usize> = Vec::new();
        self.scan.at += 1;
        loop {
            self.scan.space();
            match self.scan.peek()? {
                b'}' => {
                    self.scan.at += 1;
                    return Some(());
                }
                b',' => {
                    self.scan.at += 1;
                    continue;
                }
                _ => {}
            }
            let key = self.scan.string()?;
            self.scan.space();
            self.scan.expect(b':')?;
            let Some(key) = unescaped(key) else {
                self.mark_children_unclear(current, ArgumentsProblem::NotUnicode);
                seen.extend(current.children.values().flatten().map(|(_, child)| *child));
                self.scan.skip_value()?;
                continue;
            };
            let similar = current.children.get(&fold_case(&key)).map(Vec::as_slice).unwrap_or_default();
            match similar.iter().find(|(exact, _)| *exact == key) {
                Some((_, child)) if !seen.contains(child) => {
                    seen.push(*child);
                    self.value(*child)?;
                }
                Some((_, child)) => {
                    self.mark_unclear(*child, ArgumentsProblem::KeyTwice);
                    self.scan.skip_value()?;
                }
                None => {
                    for (_, child) in similar {
                        seen.push(*child);
                        self.mark_unclear(*child, ArgumentsProblem::OtherCase);
                    }
                    self.scan.skip_value()?;
                }
            }
        }
    }

    fn array(&mut self, current: &'p Node) -> Option<()> {
        self.scan.at += 1;
        let mut index = 0usize;
        loop {
            self.scan.space();
            match self.scan.peek()? {
                b']' => {
                    self.scan.at += 1;
                    return Some(());
                }
                b',' => {
                    self.scan.at += 1;
                    continue;
                }
                _ => {}
            }
            match current.children.get(&index.to_string()).and_then(|same| same.first()) {
                Some((_, child)) => self.value(*child)?,
                None => self.scan.skip_value()?,
            }
            index += 1;
        }
    }

    fn mark_unclear(&mut self, node: usize, problem: ArgumentsProblem) {
        let current = &self.pointers.nodes[node];
        if let Some(slot) = current.slot {
            self.found[slot] = Found::Unclear(problem);
        }
        self.mark_children_unclear(current, problem);
    }

    fn mark_children_unclear(&mut self, current: &'p Node, problem: ArgumentsProblem) {
        for (_, child) in current.children.values().flatten() {
            self.mark_unclear(*child, problem);
        }
    }
}

/// Returns `None` if the string is not valid Unicode.
pub fn unescaped(quoted: &str) -> Option<Cow<'_, str>> {
    if quoted.contains('\\') {
        return serde_json::from_str(quoted).ok().map(Cow::Owned);
    }
    quoted.strip_prefix('"')?.strip_suffix('"').map(Cow::Borrowed)
}

/// A position in JSON text. The text is expected to be valid; the scan ends where it is not.
struct Scan<'d> {
    text: &'d str,
    at: usize,
}

impl<'d> Scan<'d> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Includes the quotes.
    fn string(&mut self) -> Option<&'d str> {
        let start = self.at;
        self.expect(b'"')?;
        self.rest_of_string()?;
        self.text.get(start..self.at)
    }

    fn rest_of_string(&mut self) -> Option<()> {
        loop {
            let rest = self.text.as_bytes().get(self.at..)?;
            let next = memchr::memchr2(b'"', b'\\', rest)?;
            let is_end = rest[next] == b'"';
            self.at += next + if is_end { 1 } else { 2 };
            if is_end {
                return Some(());
            }
        }
    }

    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        self.space();
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    self.rest_of_string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                b',' | b':' => return None,
                _ => {
                    while self
                        .peek()
                        .is_some_and(|byte| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'))
                    {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
#[path = "pointer_tests.rs"]
mod tests;
