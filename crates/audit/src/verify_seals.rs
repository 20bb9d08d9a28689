//! Verifies the seals of a log with the key that is kept elsewhere.

use crate::files;
use crate::key_file::{self, KEY_FILE};
use crate::line::Line;
use crate::seal::{SealingKey, VerificationKey};
use crate::verify::Problem;
use std::path::Path;

/// How far a log is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Number of seals that the log has.
    pub seals: u64,
    /// Time of the last one.
    pub time: String,
    /// Number of lines behind it, which it does not protect.
    pub unsealed: u64,
}

/// The check of all seals, line by line.
pub struct SealCheck<'a> {
    keys: &'a [VerificationKey],
    /// Rotation keeps that many files.
    max_files: usize,
    /// Read before the log, so all seals of earlier keys are in the log.
    stored: Result<Option<SealingKey>, String>,
    /// The key that verified the first seal, and the key of the next seal.
    verified_by: Option<(&'a VerificationKey, SealingKey)>,
    /// Index of the next seal.
    next: u64,
    lines: u64,
    report: Option<Sealed>,
}

impl<'a> SealCheck<'a> {
    pub fn new(folder: &Path, keys: &'a [VerificationKey], max_files: usize) -> Self {
        let stored = key_file::read(folder);
        Self { keys, max_files, stored, verified_by: None, next: 0, lines: 0, report: None }
    }

    /// Checks the next line, in the file with that number, and returns the scar that it shows, if any.
    pub fn line(&mut self, line: &Line, file: u64) -> Result<Option<String>, String> {
        self.lines += 1;
        if let Some(report) = &mut self.report {
            report.unsealed += 1;
        }
        match line.event.as_str() {
            "seal" => self.seal(line),
            // Earlier seals are in files that rotation removed.
            "continued" if self.lines == 1 && line.seq > 1 => {
                self.next = line.seals.unwrap_or(0);
                Ok(None)
            }
            "removed" if !self.keys.is_empty() => self.removed(line, file).map(|()| None),
            _ => Ok(None),
        }
    }

    fn seal(&mut self, line: &Line) -> Result<Option<String>, String> {
        let seals = self.report.as_ref().map_or(0, |report| report.seals) + 1;
        self.report = Some(Sealed { seals, time: line.time.clone(), unsealed: 0 });
        if self.keys.is_empty() {
            return Ok(None);
        }
        let of = |key: &'a VerificationKey, mut from: SealingKey| {
            (from.advance_to(line.index) && from.matches(line)).then_some((key, from))
        };
        let verified = match self.verified_by.take() {
            Some((key, next)) => of(key, next),
            None => self.keys.iter().find_map(|key| of(key, key.first_key(&line.log))),
        };
        let (key, mut sealing) = verified.ok_or_else(|| {
            "the seal is not one of this key: lines before it were changed, or it is another log's key".to_owned()
        })?;
        let missing = line.index.saturating_sub(self.next);
        sealing.evolve();
        self.next = sealing.index;
        self.verified_by = Some((key, sealing));
        Ok((missing > 0).then(|| format!("{missing} seals before it are missing, with the lines that they sealed")))
    }

    /// A record of a removal that rotation would not have made doesn't excuse the missing file.
    fn removed(&self, line: &Line, file: u64) -> Result<(), String> {
        let removed = line.file.as_deref().and_then(files::number_of).unwrap_or(file);
        if file.saturating_sub(removed) < self.max_files as u64 {
            return Err(format!("it records the removal of a file that is among the last {}", self.max_files));
        }
        Ok(())
    }

    /// Checks the end of the log against the key on disk, which never precedes a durable seal.
    pub fn finish(&mut self, last_file: &str) -> Result<Option<Sealed>, Problem> {
        if self.keys.is_empty() {
            return Ok(self.report.take());
        }
        let problem = |file: &str, what: String| Problem { file: file.to_owned(), line: None, what };
        let Some((key, next)) = &self.verified_by else {
            return Err(problem(last_file, "the log is not sealed".to_owned()));
        };
        let stored = self.stored.as_ref().map_err(|what| problem(KEY_FILE, what.clone()))?;
        let stored = stored.as_ref().ok_or_else(|| {
            problem(KEY_FILE, "it is missing, so seals that were removed at the end can't be detected".to_owned())
        })?;
        if stored.index > self.next {
            let missing = stored.index - self.next;
            return Err(problem(last_file, format!("{missing} seals are missing at the end, with their lines")));
        }
        let mut expected = key.first_key(&next.log);
        if !expected.advance_to(stored.index) || expected != *stored {
            return Err(problem(KEY_FILE, "it was replaced: its key does not follow from the given one".to_owned()));
        }
        Ok(self.report.take())
    }
}
