//! Authentication: turns a credential into an [`Identity`] or a refusal. The name and role that a peer claims are
//! accepted only if its credential confirms them.
//!
//! - [`Authenticator`] is the trait that the broker uses; [`SharedToken`] is the original's scheme, one secret for all.
//! - [`Registry`] checks the broker's own tokens, [`AgentsFolder`] manages them.
//! - [`JwtAuthenticator`] and [`CertificateAuthenticator`] check credentials issued elsewhere; [`Chain`] selects the
//!   authenticator for the credential presented. [`read_auth`] reads their configuration.
//! - [`Identity`] is the authenticated identity of a connection; [`Standing`] tells how long it is valid.
//! - [`Agents`] tells an [`AgentsFollower`] which agents there are.

mod agents;
mod authenticator;
mod binding;
mod broker_key;
mod certificate;
mod chain;
mod config;
mod files;
mod identity;
mod jwt;
mod patterns;
mod qualifier;
mod registry;
mod shared_token;
mod standing;
mod token;

pub use agents::{AgentState, Agents, AgentsFollower, RegisteredAgent};
pub use authenticator::{AuthRefusal, Authenticator, Credential};
pub use binding::{BadAgentName, check_agent_name};
pub use broker_key::{BROKER_KEY_FILE, ensure_broker_key, read_broker_key};
pub use certificate::{CertificateAuthenticator, CertificateConfig, NameField};
pub use chain::Chain;
pub use config::{AuthConfig, read_auth};
pub use files::FileMark;
pub use identity::{Identity, OWN_NAME, mailbox_of};
pub use jwt::{JwtAuthenticator, JwtConfig, JwtError, KeysFrom};
pub use patterns::{BadPattern, Pattern};
pub use qualifier::Qualifier;
pub use registry::{
    AGENTS_FILE, AgentInfo, AgentsFolder, AgentsMark, HOST_AGENT, HOST_TOKEN_FILE, Issued, KeyInfo, LOCAL_AGENT,
    LOCAL_TOKEN_FILE, LocalCredentials, NewAgent, OPERATOR_AGENT, OPERATOR_TOKEN_FILE, Registry, RegistryError,
    SharedRecord, ensure_credentials_of_member, ensure_local_credentials, local_token_file,
};
pub use shared_token::SharedToken;
pub use standing::{EndReason, Standing};
pub use token::Token;
pub use toolbus_base::{Rights, principal_of};
