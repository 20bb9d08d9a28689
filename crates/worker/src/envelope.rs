//! The mandatory `_meta` fields of a modern request. They are checked before anything else in the request.

use crate::error;
use toolbus_mcp::{MODERN_VERSIONS, Members, Raw, RpcError, meta};

#[derive(Debug)]
pub struct Envelope {
    pub version: String,
    pub capabilities: Raw,
    pub client_info: Option<Raw>,
}

impl Envelope {
    pub fn read(params: Option<&Raw>) -> Result<Self, RpcError> {
        let missing = |names: &str| RpcError::invalid_params(format!("params._meta lacks {names}"));
        let params = Members::of(params).map_err(|error| RpcError::invalid_params(error.to_string()))?;
        let meta = params.get(meta::META).and_then(|meta| Members::of(Some(meta)).ok());
        let Some(meta) = meta else {
            return Err(missing(&format!("{} and {}", meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES)));
        };
        let version = meta.text(meta::PROTOCOL_VERSION).ok_or_else(|| missing(meta::PROTOCOL_VERSION))?;
        let capabilities = meta.get(meta::CLIENT_CAPABILITIES).filter(|found| found.get().starts_with('{'));
        let capabilities = capabilities.ok_or_else(|| missing(meta::CLIENT_CAPABILITIES))?.to_owned();
        Ok(Self { version, capabilities, client_info: meta.get(meta::CLIENT_INFO).map(ToOwned::to_owned) })
    }

    pub fn with_known_version(self) -> Result<Self, RpcError> {
        self.check_version().map(|()| self)
    }

    pub fn check_version(&self) -> Result<(), RpcError> {
        if MODERN_VERSIONS.contains(&self.version.as_str()) {
            return Ok(());
        }
        Err(error::unsupported_version(&self.version))
    }
}
