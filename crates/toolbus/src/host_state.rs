//! The persistent state of a host: pins, approvals, audit log and call journal, in a folder of its own.

use crate::config::{ConfigFile, JournalSettings};
use crate::failure::Failure;
use crate::folders;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolbus_audit::{AuditLog, AuditOptions};
use toolbus_host::pins::LOCK_FILE;
use toolbus_host::{Approvals, CATALOG_FILE, HostOptions, PinOptions, Pins};
use toolbus_journal::{Journal, JournalOptions};
use toolbus_ship::{ShipOptions, Shipper, Target};
use toolbus_upstream::PinMode;

const AUDIT_FOLDER: &str = "audit";
const JOURNAL_FOLDER: &str = "journal";
const HOSTS_FOLDER: &str = "hosts";

/// Where a host keeps its state. The default folder depends on the host's name, which may be known only after it has
/// connected.
pub struct StateFolder {
    /// The folder of `--state`.
    pub state: Option<PathBuf>,
    /// The toolbus.toml that is used.
    pub config: Option<ConfigFile>,
    pub pin: PinMode,
    pub journal: JournalSettings,
    /// Where lines of the audit log are copied to.
    pub ship_audit: Option<Target>,
}

impl StateFolder {
    /// Opens the state of the host with that name and adds it to its options. Without `--state` it is in `data`, the
    /// folder of a broker, or in the user's data folder. Dropping the shipper stops it.
    pub fn open(&self, options: &mut HostOptions, data: Option<&Path>, name: &str) -> Result<Option<Shipper>, Failure> {
        let folder = match &self.state {
            Some(folder) => folders::root(folder)?,
            None => {
                let hosts = folders::data_root(data.map(Path::to_owned))?.join(HOSTS_FOLDER);
                hosts.parent().map_or(Ok(()), folders::private)?;
                folders::private(&hosts)?;
                hosts.join(name)
            }
        };
        folders::private(&folder)?;
        let (audit, shipper) = open_audit(&folder, &format!("host {name}"), self.ship_audit.as_ref())?;
        let lock_file = self.config.as_ref().map_or_else(|| folder.join(LOCK_FILE), ConfigFile::lock_file);
        let pins = PinOptions {
            state: Some(folder.clone()),
            lock_file: Some(lock_file),
            lock_trust: self.config.as_ref().map(ConfigFile::trust_beside).unwrap_or_default(),
            mode: self.pin,
            audit: Some(audit.clone()),
        };
        options.pins = Arc::new(Pins::open(pins)?);
        options.catalog_file = Some(folder.join(CATALOG_FILE));
        options.journal = self.open_journal(&folder.join(JOURNAL_FOLDER))?;
        let approvals = Approvals::open(&folder);
        options.approvals = Arc::new(approvals.map_err(|source| Failure::State { folder, source })?);
        options.audit = Some(audit);
        Ok(shipper)
    }

    fn open_journal(&self, folder: &Path) -> Result<Arc<Journal>, Failure> {
        let kept = JournalOptions::keeping(self.journal.keep, self.journal.max_size);
        let options = JournalOptions { sync_results: self.journal.sync_results, ..kept };
        let journal = Journal::open(folder, options);
        let journal = journal.map_err(|source| Failure::Journal { folder: folder.to_owned(), source })?;
        if journal.recovery().is_damaged() {
            tracing::error!(
                folder = %folder.display(),
                "the call journal is corrupt: repeated calls that are missing in it are answered with outcome unknown"
            );
        }
        Ok(Arc::new(journal))
    }
}

/// Opens the audit log of a broker or host, and copies its lines to the target, if there is one.
pub fn open_audit(state: &Path, source: &str, target: Option<&Target>) -> Result<(AuditLog, Option<Shipper>), Failure> {
    let folder = state.join(AUDIT_FOLDER);
    let log = AuditLog::open(&folder, AuditOptions::default())?;
    let shipper = target.map(|target| Shipper::start(&folder, source, target, ShipOptions::default())).transpose();
    Ok((log, shipper.map_err(Failure::Runtime)?))
}

/// Options for the folders that a command reads.
#[derive(Args)]
pub struct StateArgs {
    /// The broker's data folder, which contains the state of its hosts. Default: the one in toolbus.toml, or
    /// TOOLBUS_DATA, or toolbus in the user's data folder.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// Read only the host with this state folder.
    #[arg(long, value_name = "DIR", conflicts_with = "data", global = true)]
    state: Option<PathBuf>,
}

impl StateArgs {
    /// The root of the folders that are read.
    pub fn root(&self) -> Result<PathBuf, Failure> {
        match &self.state {
            Some(state) => folders::root(state),
            None => match &self.data {
                Some(data) => folders::root(data),
                None => folders::data_root(crate::config::local_broker()?.data),
            },
        }
    }

    /// The state folders of hosts.
    pub fn hosts(&self) -> Result<Vec<PathBuf>, Failure> {
        if let Some(state) = &self.state {
            return Ok(vec![folders::root(state)?]);
        }
        let hosts = self.root()?.join(HOSTS_FOLDER);
        folders::refuse_link(&hosts)?;
        let entries = std::fs::read_dir(hosts).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        folders.sort();
        folders.iter().try_for_each(|folder| folders::refuse_link(folder))?;
        Ok(folders)
    }

    /// The folders of audit logs: the broker's own and those of hosts.
    pub fn audit_logs(&self) -> Result<Vec<PathBuf>, Failure> {
        let root = self.root()?;
        let broker = self.state.is_none().then(|| root.clone());
        let all = broker.into_iter().chain(self.hosts()?).map(|folder| folder.join(AUDIT_FOLDER));
        let logs: Vec<PathBuf> = all.filter(|folder| folder.is_dir()).collect();
        logs.iter().try_for_each(|folder| folders::refuse_link(folder))?;
        if logs.is_empty() { Err(Failure::NoAuditLog { folder: root }) } else { Ok(logs) }
    }
}
