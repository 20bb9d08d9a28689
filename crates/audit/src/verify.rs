//! Verifies the integrity of a log.

use crate::error::AuditError;
use crate::files::{self, HEAD_FILE, Head};
use crate::line::{ChainPosition, Line};
use crate::log::AuditOptions;
use crate::seal::VerificationKey;
use crate::verify_seals::{SealCheck, Sealed};
use std::path::Path;
use std::time::Duration;

/// The log may be written during the check, so an incomplete last line is read again.
const RETRIES: usize = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Number of lines checked.
    pub lines: u64,
    /// Number of files.
    pub files: usize,
    /// Hash of the last line. Stored elsewhere, it proves later that no line up to here was changed.
    pub last_hash: String,
    /// Repairs after a crash that lost no line.
    pub repairs: u64,
    /// Records that were dropped because the queue was full, according to the log.
    pub missed: u64,
    /// The first problem.
    pub problem: Option<Problem>,
    /// Further problems: up to [`MOST_SCARS`] scars, which are losses recorded in the log itself, and finally the
    /// problem that ended the check.
    pub others: Vec<Problem>,
    /// Total number of scars.
    pub scars: u64,
    /// How far the log is sealed, if it is. Seals are verified only with a key.
    pub sealed: Option<Sealed>,
    /// The first file, if rotation removed earlier ones.
    pub rotated_before: Option<String>,
}

/// What a log is verified against.
pub struct VerifyOptions {
    /// Hash of a line that must exist.
    pub expect: Option<String>,
    /// Keys of seals. If there are any, the log must be sealed with one of them.
    pub keys: Vec<VerificationKey>,
    /// Number of files that rotation keeps.
    pub max_files: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { expect: None, keys: Vec::new(), max_files: AuditOptions::default().max_files }
    }
}

/// Maximum number of scars that are reported in detail.
pub const MOST_SCARS: u64 = 100;

/// A problem in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line in the file, if the problem is in one.
    pub line: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// Checks every line and the head, the seals if there is a key, and that the expected line still exists.
pub fn verify(folder: &Path, options: &VerifyOptions) -> Result<Report, AuditError> {
    for _ in 0..RETRIES {
        let check = Check::run(folder, options)?;
        if !check.may_be_incomplete {
            return Ok(check.report);
        }
        std::thread::sleep(RETRY_DELAY);
    }
    Ok(Check::run(folder, options)?.report)
}

impl Report {
    fn add(&mut self, problem: Problem) {
        match self.problem {
            None => self.problem = Some(problem),
            Some(_) => self.others.push(problem),
        }
    }

    fn add_scar(&mut self, scar: Problem) {
        self.scars += 1;
        if self.scars <= MOST_SCARS {
            self.add(scar);
        }
    }
}

struct Check<'a> {
    head: Option<Head>,
    expect: Option<&'a str>,
    report: Report,
    position: ChainPosition,
    head_seen: bool,
    expected_seen: bool,
    seals: SealCheck<'a>,
    /// The removed predecessor of the first existing line, until a record of its removal is found.
    needed: Option<(String, ChainPosition)>,
    may_be_incomplete: bool,
}

impl<'a> Check<'a> {
    fn run(folder: &Path, options: &'a VerifyOptions) -> Result<Self, AuditError> {
        // Both are read before the files: lines written meanwhile are behind them.
        let seals = SealCheck::new(folder, &options.keys, options.max_files);
        let head = files::read_head(folder);
        let numbers = files::numbers(folder)?;
        let position = ChainPosition::start();
        let report = Report {
            lines: 0,
            files: numbers.len(),
            last_hash: position.hash.clone(),
            repairs: 0,
            missed: 0,
            problem: None,
            others: Vec::new(),
            scars: 0,
            sealed: None,
            rotated_before: numbers.first().filter(|first| **first > 1).map(|first| files::file_name(*first)),
        };
        let expect = options.expect.as_deref();
        let mut check = Self {
            head: head.clone().ok().flatten(),
            expect,
            seals,
            report,
            position,
            head_seen: false,
            expected_seen: expect.is_none(),
            needed: None,
            may_be_incomplete: false,
        };
        let mut before = None;
        for (index, number) in numbers.iter().copied().enumerate() {
            let is_last = index + 1 == numbers.len();
            if let Err(problem) = check.file(folder, number, before, is_last)? {
                check.report.add(problem);
                return Ok(check);
            }
            before = Some(number);
        }
        check.report.last_hash = check.position.hash.clone();
        let last = numbers.last().copied();
        if let Err(problem) = check.check_end(head, last).and_then(|()| check.check_seals(last)) {
            check.report.add(problem);
        }
        Ok(check)
    }

    fn file(
        &mut self,
        folder: &Path,
        number: u64,
        before: Option<u64>,
        is_last: bool,
    ) -> Result<Result<(), Problem>, AuditError> {
        let name = files::file_name(number);
        if before.is_some_and(|before| before + 1 != number) {
            let what = "the file before it is missing".to_owned();
            return Ok(Err(Problem { file: name, line: None, what }));
        }
        let path = folder.join(&name);
        let bytes = files::read(&path).map_err(AuditError::io("read", path))?;
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let problem = |what: String| Problem { file: name.clone(), line: Some(index as u64 + 1), what };
            let Some(line) = line.strip_suffix(b"\n") else {
                self.may_be_incomplete = is_last;
                let what = "it is incomplete; if a crash caused it, the log is repaired when it is opened again";
                return Ok(Err(problem(what.to_owned())));
            };
            let read = std::str::from_utf8(line).map_err(|_| "it is not valid UTF-8".to_owned()).and_then(Line::read);
            match read.and_then(|line| self.line(line, number)) {
                Ok(None) => {}
                Ok(Some(scar)) => self.report.add_scar(problem(scar)),
                Err(what) => return Ok(Err(problem(what))),
            }
        }
        Ok(Ok(()))
    }

    /// Checks a line and returns the scar that it records, if any. The chain continues normally behind a scar.
    fn line(&mut self, line: Line, number: u64) -> Result<Option<String>, String> {
        if self.report.lines == 0 && line.seq > 1 {
            self.position = ChainPosition { seq: line.seq - 1, hash: line.prev.clone() };
            self.needed = Some((files::file_name(number.saturating_sub(1)), self.position.clone()));
        }
        line.follows(&self.position)?;
        self.position = line.position();
        self.report.lines += 1;
        let mut scar = self.seals.line(&line, number)?;
        match line.event.as_str() {
            "removed" => self.removed(&line),
            "recovered" if line.head_missing => scar = Some("the head was missing when the log was opened".to_owned()),
            "recovered" if line.lost > 0 => {
                scar = Some(format!("{} lines before it were missing when the log was opened", line.lost));
            }
            "recovered" => self.report.repairs += 1,
            "missed" => self.report.missed += line.count,
            _ => {}
        }
        if let Some(head) = &self.head
            && head.position.seq == line.seq
        {
            if head.position.hash != line.hash || head.file != number {
                return Err(format!("{HEAD_FILE} names a different line {}", line.seq));
            }
            self.head_seen = true;
        }
        self.expected_seen |= self.expect == Some(line.hash.as_str());
        Ok(scar)
    }

    /// A file whose removal the log records may be missing.
    fn removed(&mut self, line: &Line) {
        let removed =
            (line.file.clone().unwrap_or_default(), line.last_seq, line.last_hash.clone().unwrap_or_default());
        if self
            .needed
            .as_ref()
            .is_some_and(|(file, position)| removed == (file.clone(), position.seq, position.hash.clone()))
        {
            self.needed = None;
        }
    }

    fn check_seals(&mut self, last: Option<u64>) -> Result<(), Problem> {
        self.report.sealed = self.seals.finish(&files::file_name(last.unwrap_or(1)))?;
        Ok(())
    }

    fn check_end(&mut self, head: Result<Option<Head>, String>, last: Option<u64>) -> Result<(), Problem> {
        let head_problem = |what: String| Problem { file: HEAD_FILE.to_owned(), line: None, what };
        if let Some((file, _)) = &self.needed {
            let what = "it is missing, and the log does not record its removal".to_owned();
            return Err(Problem { file: file.clone(), line: None, what });
        }
        match head.map_err(head_problem)? {
            None if last.is_none() => {}
            None => return Err(head_problem("it is missing, so a truncated end can't be detected".to_owned())),
            Some(head) if head.position.seq > self.position.seq => {
                let missing = head.position.seq - self.position.seq;
                let file = files::file_name(last.unwrap_or(head.file));
                let what = format!("{missing} lines are missing at the end: the head names line {}", head.position.seq);
                return Err(Problem { file, line: None, what });
            }
            Some(head) if !self.head_seen => {
                return Err(head_problem(format!("the log has no line {}", head.position.seq)));
            }
            Some(_) => {}
        }
        if !self.expected_seen {
            let what = "no line has the expected hash: the log was rewritten, or the line was removed since";
            return Err(Problem { file: files::file_name(last.unwrap_or(1)), line: None, what: what.to_owned() });
        }
        Ok(())
    }
}
