//! Which eras a server speaks.

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::options::ConnectionOptions;
use toolbus_mcp::{Era, Raw};

/// The eras of a server, each with the server's own words about itself. At least one is there.
#[derive(Debug, Clone)]
pub struct Eras {
    /// The result of `server/discover`.
    pub modern: Option<Raw>,
    /// The result of `initialize`, as it was answered to a client without capabilities.
    pub legacy: Option<Raw>,
}

impl Eras {
    pub fn speaks(&self, era: Era) -> bool {
        match era {
            Era::Modern => self.modern.is_some(),
            Era::Legacy => self.legacy.is_some(),
        }
    }
}

/// Asks the server, within the start timeout of the options.
pub async fn probe(config: &ServerConfig, _options: &ConnectionOptions) -> Result<Eras, ServerError> {
    Err(ServerError::Closed { server: config.name.clone() })
}
