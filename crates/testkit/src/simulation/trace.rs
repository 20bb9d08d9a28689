//! Records events as a hash that identifies a run and, if enabled, prints them.

use toolbus_engine::Millis;

pub struct Trace {
    hash: u64,
    print: bool,
}

impl Trace {
    pub fn new(print: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, print }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn note(&mut self, now: Millis, what: &str, facts: &[(&str, u64)]) {
        self.mix(now);
        what.bytes().for_each(|byte| self.mix(byte.into()));
        facts.iter().for_each(|(_, value)| self.mix(*value));
        if self.print {
            let facts: Vec<String> = facts.iter().map(|(name, value)| format!("{name}={value}")).collect();
            println!("{now:>10}  {what:<18} {}", facts.join(" "));
        }
    }

    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}
