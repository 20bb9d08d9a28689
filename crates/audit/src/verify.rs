//! Whether a log is still what was written.

use crate::error::AuditError;
use crate::files::{self, HEAD_FILE, Head};
use crate::line::{Line, Link};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A log may be written while it is checked: a line that is just being written is looked at again.
const SECOND_LOOKS: usize = 5;
const SECOND_LOOK_AFTER: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub lines: u64,
    pub files: usize,
    /// The hash of the last line: noted elsewhere, it shows later that nothing up to here was changed.
    pub last_hash: String,
    /// Repaired after a crash without the loss of a line.
    pub repairs: u64,
    /// Records that the log says are missing, because they came faster than they could be written.
    pub missed: u64,
    /// The first thing that is wrong.
    pub problem: Option<Problem>,
    /// What else is: scars that the log itself tells of, up to [`MOST_SCARS`], and at last what ended the check.
    pub others: Vec<Problem>,
    /// All of the scars.
    pub scars: u64,
}

/// Of more, only the number is told.
pub const MOST_SCARS: u64 = 100;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A file of the folder, and where there is one, the number of its line.
    pub file: String,
    pub line: Option<u64>,
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

/// Checks every line, the head, and, if one is given, that a line with the noted hash is still there.
pub fn verify(folder: &Path, expect: Option<&str>) -> Result<Report, AuditError> {
    for _ in 0..SECOND_LOOKS {
        let check = Check::run(folder, expect)?;
        if !check.may_be_in_the_making {
            return Ok(check.report);
        }
        std::thread::sleep(SECOND_LOOK_AFTER);
    }
    Ok(Check::run(folder, expect)?.report)
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
    link: Link,
    head_seen: bool,
    expected_seen: bool,
    /// What stands before the first line that is there, if that is not the first of all.
    needed: Option<(String, Link)>,
    may_be_in_the_making: bool,
}

impl<'a> Check<'a> {
    fn run(folder: &Path, expect: Option<&'a str>) -> Result<Self, AuditError> {
        // The head first: what is written meanwhile lies behind it.
        let head = files::read_head(folder);
        let numbers = files::numbers(folder)?;
        let link = Link::start();
        let report = Report {
            lines: 0,
            files: numbers.len(),
            last_hash: link.hash.clone(),
            repairs: 0,
            missed: 0,
            problem: None,
            others: Vec::new(),
            scars: 0,
        };
        let mut check = Self {
            head: head.clone().ok().flatten(),
            expect,
            report,
            link,
            head_seen: false,
            expected_seen: expect.is_none(),
            needed: None,
            may_be_in_the_making: false,
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
        check.report.last_hash = check.link.hash.clone();
        if let Err(problem) = check.ends(head, numbers.last().copied()) {
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
        let bytes = fs::read(&path).map_err(AuditError::io("read", path))?;
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let problem = |what: String| Problem { file: name.clone(), line: Some(index as u64 + 1), what };
            let Some(line) = line.strip_suffix(b"\n") else {
                self.may_be_in_the_making = is_last;
                let what = "it is cut short; if that was a crash, the log is repaired when it is opened again";
                return Ok(Err(problem(what.to_owned())));
            };
            let read = std::str::from_utf8(line).map_err(|_| "it is not text".to_owned()).and_then(Line::read);
            match read.and_then(|line| self.line(line, number)) {
                Ok(None) => {}
                Ok(Some(scar)) => self.report.add_scar(problem(scar)),
                Err(what) => return Ok(Err(problem(what))),
            }
        }
        Ok(Ok(()))
    }

    /// With the scar that the line tells of. The lines behind it are as good as any.
    fn line(&mut self, line: Line, number: u64) -> Result<Option<String>, String> {
        if self.report.lines == 0 && line.seq > 1 {
            self.link = Link { seq: line.seq - 1, hash: line.prev.clone() };
            self.needed = Some((files::file_name(number.saturating_sub(1)), self.link.clone()));
        }
        line.follows(&self.link)?;
        self.link = line.link();
        self.report.lines += 1;
        let mut scar = None;
        match line.event.as_str() {
            "removed" => self.removed(&line),
            "recovered" if line.head_missing => scar = Some("the head was missing when the log was opened".to_owned()),
            "recovered" if line.lost > 0 => {
                scar = Some(format!("{} lines before it were gone when the log was opened", line.lost));
            }
            "recovered" => self.report.repairs += 1,
            "missed" => self.report.missed += line.count,
            _ => {}
        }
        if let Some(head) = &self.head
            && head.link.seq == line.seq
        {
            if head.link.hash != line.hash || head.file != number {
                return Err(format!("{HEAD_FILE} names another line {}", line.seq));
            }
            self.head_seen = true;
        }
        self.expected_seen |= self.expect == Some(line.hash.as_str());
        Ok(scar)
    }

    /// Files that the log itself has removed need not be there.
    fn removed(&mut self, line: &Line) {
        let told = (line.file.clone().unwrap_or_default(), line.last_seq, line.last_hash.clone().unwrap_or_default());
        if self.needed.as_ref().is_some_and(|(file, link)| told == (file.clone(), link.seq, link.hash.clone())) {
            self.needed = None;
        }
    }

    fn ends(&mut self, head: Result<Option<Head>, String>, last: Option<u64>) -> Result<(), Problem> {
        let of_head = |what: String| Problem { file: HEAD_FILE.to_owned(), line: None, what };
        if let Some((file, _)) = &self.needed {
            let what = "it is gone, and the log does not say that it was removed".to_owned();
            return Err(Problem { file: file.clone(), line: None, what });
        }
        match head.map_err(of_head)? {
            None if last.is_none() => {}
            None => return Err(of_head("it is missing, so nobody can tell whether the end is there".to_owned())),
            Some(head) if head.link.seq > self.link.seq => {
                let gone = head.link.seq - self.link.seq;
                let file = files::file_name(last.unwrap_or(head.file));
                let what = format!("{gone} lines are missing at the end: the head names line {}", head.link.seq);
                return Err(Problem { file, line: None, what });
            }
            Some(head) if !self.head_seen => {
                return Err(of_head(format!("the log has no line {} any more", head.link.seq)));
            }
            Some(_) => {}
        }
        if !self.expected_seen {
            let what = "no line has the hash that you noted: the log was written anew, or the line was removed since";
            return Err(Problem { file: files::file_name(last.unwrap_or(1)), line: None, what: what.to_owned() });
        }
        Ok(())
    }
}
