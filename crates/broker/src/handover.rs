//! Hands a data folder over from a broker whose server was aborted to the next one in the same process. Its connections may
//! still hold the old [`BrokerCore`], and with it the lock of the folder, until their tasks are polled again.

use crate::core::BrokerCore;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use toolbus_store::{FolderDisk, Identity, OpenError};

/// How long an open waits for the lock, also of another process that is about to end.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// The open folders of this process.
static OPEN: Mutex<Vec<(PathBuf, Weak<BrokerCore>)>> = Mutex::new(Vec::new());

/// Opens the folder, once a broker that no longer serves it has given it up. Blocks.
pub fn open_folder(folder: &Path) -> Result<(FolderDisk, Identity), OpenError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match FolderDisk::open(folder) {
            Err(OpenError::Locked { .. }) if Instant::now() < deadline => {
                if !close_abandoned(folder) {
                    std::thread::sleep(RETRY);
                }
            }
            opened => return opened,
        }
    }
}

/// Registers an open folder.
pub fn register(folder: &Path, core: &Arc<BrokerCore>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, core)| core.strong_count() > 0);
    open.extend(folder.canonicalize().map(|path| (path, Arc::downgrade(core))));
}

/// Closes the core of a folder whose server was aborted or has ended. Returns false if there is none.
fn close_abandoned(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let found = {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = |core: &Weak<BrokerCore>| core.upgrade().filter(|core| core.is_abandoned());
        let position = open.iter().position(|(path, core)| *path == folder && abandoned(core).is_some());
        position.and_then(|position| open.swap_remove(position).1.upgrade())
    };
    // Not under the lock: it waits for the last write.
    found.inspect(|core| core.close()).is_some()
}
