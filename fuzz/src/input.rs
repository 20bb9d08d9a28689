//! Splits the bytes of the fuzzer into choices and texts.

/// Takes parts off the fuzzer's bytes. At the end of the input every choice is 0 and every text is empty.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % bound.max(1)
    }

    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// The bytes up to the next line break, which is not part of them.
    pub fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let line = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        line
    }

    /// The next line, if it is UTF-8.
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.line()).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
