//! The broker's own tokens, read from `agents.json` and reloaded whenever that file changes.
//!
//! `edit` changes the file, `watch` detects changes, `table` holds the current version, `shared` joins the files of
//! several brokers; [`ensure_local_credentials`]
//! creates the credentials that commands on the broker's machine use.

mod edit;
mod error;
mod file;
mod local;
mod shared;
mod table;
mod watch;

pub use edit::{AgentInfo, AgentsFolder, Issued, KeyInfo, NewAgent};
pub use error::RegistryError;
pub use file::FILE_NAME as AGENTS_FILE;
pub use local::{
    HOST_AGENT, HOST_TOKEN_FILE, LOCAL_AGENT, LOCAL_TOKEN_FILE, LocalCredentials, OPERATOR_AGENT, OPERATOR_TOKEN_FILE,
};
pub use local::{ensure_credentials_of_member, ensure_local_credentials, local_token_file};
pub use shared::{AgentsMark, SharedRecord};

use crate::binding::bind;
use crate::token;
use crate::{AgentsFollower, AuthRefusal, Authenticator, Credential, EndReason, Identity, Rights, mailbox_of};
use bytestring::ByteString;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use table::Holder;
use toolbus_base::DEAD_LETTER_SUFFIX;
use toolbus_protocol::{AgentRef, ErrorCode};
use watch::WatchedFile;

/// Compared for an unknown key, so that it takes as long as a wrong secret.
const DUMMY_HASH: token::SecretHash = [0x5a; 32];

/// Authenticates our own tokens. Keeps no state about failed attempts.
#[derive(Clone)]
pub struct Registry {
    watched: Arc<WatchedFile>,
}

impl Registry {
    /// Reads the folder's `agents.json` and watches it until the last clone is dropped.
    pub fn open(folder: &Path) -> Result<Self, RegistryError> {
        Ok(Self { watched: WatchedFile::start(folder.join(file::FILE_NAME))? })
    }

    /// Checks the file for changes now instead of at the next poll.
    pub fn refresh(&self) {
        self.watched.refresh();
    }
}

impl Authenticator for Registry {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let (id, secret) = token::parts(credential.token).ok_or_else(AuthRefusal::unknown)?;
        let mut table = self.watched.table();
        if table.key(id).is_none() {
            // The token may have been issued since the last poll.
            self.watched.refresh_for_unknown_key();
            table = self.watched.table();
        }
        let key = table.key(id);
        let expected = key.map_or(&DUMMY_HASH, |key| &key.hash);
        let equal: bool = token::hash(secret).ct_eq(expected).into();
        let key = key.filter(|_| equal).ok_or_else(AuthRefusal::unknown)?;
        // The standing ends before a new version of the table is in use.
        if let Some(reason) = key.end_at(SystemTime::now()).or_else(|| key.standing.ended()) {
            return Err(refusal(reason));
        }
        let holder = &key.holder;
        let standing = key.standing.clone();
        if let Some(mailbox) = dead_letter_mailbox(holder, credential.claimed) {
            // Only to read and acknowledge, since the name belongs to another agent.
            let agent = AgentRef::new(mailbox);
            return Ok(Identity { agent, rights: Rights::WORKER, standing, incarnation: 0 });
        }
        let agent = bind(&holder.name, Some(&holder.role), credential.claimed)?;
        Ok(Identity { agent, rights: holder.rights, standing, incarnation: holder.incarnation })
    }

    fn follow_agents(&self, follower: AgentsFollower) {
        self.watched.set_follower(follower);
    }

    fn knows(&self, name: &str) -> bool {
        self.watched.table().knows(name)
    }

    fn is_unknown(&self, name: &str) -> bool {
        !self.knows(name)
    }

    fn role_of(&self, name: &str) -> Option<String> {
        self.watched.table().role_of(name).map(str::to_owned)
    }

    fn is_host(&self, name: &str) -> bool {
        self.watched.table().is_host(name)
    }
}

/// The dead-letter mailbox of another agent, which operators may read.
fn dead_letter_mailbox(holder: &Holder, claimed: &AgentRef) -> Option<ByteString> {
    let mailbox = &claimed.session_id;
    let is_foreign = mailbox_of(&holder.name, mailbox).is_none();
    (holder.rights.operator && is_foreign && mailbox.ends_with(DEAD_LETTER_SUFFIX)).then(|| mailbox.clone())
}

/// Given only to peers that presented the right secret.
fn refusal(reason: EndReason) -> AuthRefusal {
    match reason {
        EndReason::Expired => AuthRefusal::new(ErrorCode::CredentialExpired, "the token has expired"),
        EndReason::Revoked => AuthRefusal::new(ErrorCode::CredentialRevoked, "the token was revoked or replaced"),
    }
}
