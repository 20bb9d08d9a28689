//! The broker's own credentials: read from `agents.json`, looked at again whenever that file changes.
//!
//! `edit` changes the file, `watch` notices, `table` is what counts; [`ensure_local_credentials`] makes the credentials
//! that commands on the broker's own machine use.

mod edit;
mod error;
mod file;
mod local;
mod table;
mod watch;

pub use edit::{AgentInfo, AgentsFolder, Issued, KeyInfo, NewAgent};
pub use error::RegistryError;
pub use file::FILE_NAME as AGENTS_FILE;
pub use local::{
    HOST_AGENT, HOST_TOKEN_FILE, LOCAL_AGENT, LOCAL_TOKEN_FILE, LocalCredentials, OPERATOR_AGENT, OPERATOR_TOKEN_FILE,
};
pub use local::{ensure_local_credentials, local_token_file};

use crate::binding::bind;
use crate::token;
use crate::{AuthRefusal, Authenticator, Credential, EndReason, Identity, Rights, mailbox_of};
use bytestring::ByteString;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use table::Holder;
use toolbus_protocol::{AgentRef, ErrorCode};
use watch::Watched;

/// How the mailboxes of dead letters end.
const DEAD_LETTER_SUFFIX: &str = "#dead";

/// Compared with where there is no such key, so that this takes as long as a wrong secret.
const NOBODYS_HASH: token::SecretHash = [0x5a; 32];

/// Who may connect, by tokens of our own. Keeps nothing about those who may not.
#[derive(Clone)]
pub struct Registry {
    watched: Arc<Watched>,
}

impl Registry {
    /// Reads the folder's `agents.json` and follows its changes until the last clone is dropped.
    pub fn open(folder: &Path) -> Result<Self, RegistryError> {
        Ok(Self { watched: Watched::start(folder.join(file::FILE_NAME))? })
    }

    /// Looks at the file now instead of within the next moment.
    pub fn refresh(&self) {
        self.watched.look();
    }
}

impl Authenticator for Registry {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let (id, secret) = token::parts(credential.token).ok_or_else(AuthRefusal::unknown)?;
        let mut table = self.watched.table();
        if table.key(id).is_none() {
            // It may have been made a moment ago.
            self.watched.look_for_a_stranger();
            table = self.watched.table();
        }
        let key = table.key(id);
        let expected = key.map_or(&NOBODYS_HASH, |key| &key.hash);
        let equal: bool = token::hash(secret).ct_eq(expected).into();
        let key = key.filter(|_| equal).ok_or_else(AuthRefusal::unknown)?;
        if let Some(reason) = key.end_at(SystemTime::now()) {
            return Err(refusal(reason));
        }
        let holder = &key.holder;
        let standing = key.standing.clone();
        if let Some(mailbox) = dead_letters(holder, credential.claimed) {
            // To read and acknowledge, and nothing else: it is another's name.
            return Ok(Identity { agent: AgentRef::new(mailbox), rights: Rights::WORKER, standing });
        }
        let agent = bind(&holder.name, Some(&holder.role), credential.claimed)?;
        Ok(Identity { agent, rights: holder.rights, standing })
    }

    fn knows(&self, name: &str) -> bool {
        self.watched.table().knows(name)
    }

    fn role_of(&self, name: &str) -> Option<String> {
        self.watched.table().role_of(name).map(str::to_owned)
    }

    fn is_host(&self, name: &str) -> bool {
        self.watched.table().is_host(name)
    }
}

/// Dead letters are there to be looked at by whoever looks after the broker.
fn dead_letters(holder: &Holder, claimed: &AgentRef) -> Option<ByteString> {
    let mailbox = &claimed.session_id;
    let is_anothers = mailbox_of(&holder.name, mailbox).is_none();
    (holder.rights.operator && is_anothers && mailbox.ends_with(DEAD_LETTER_SUFFIX)).then(|| mailbox.clone())
}

/// Said only to whoever had the secret.
fn refusal(reason: EndReason) -> AuthRefusal {
    match reason {
        EndReason::Expired => AuthRefusal::new(ErrorCode::CredentialExpired, "the token has expired"),
        EndReason::Revoked => AuthRefusal::new(ErrorCode::CredentialRevoked, "the token was revoked or replaced"),
    }
}
