//! The first connection to a server: the one that answered the probe. A modern or shared server keeps it for all clients. At
//! a legacy server with a session per client it is the host's own, a spare: it reads the lists, and the first client that
//! would have opened it in the same way takes it over, so that one process serves the probe, the catalog and that client.

use crate::host::Host;
use crate::open_error::OpenError;
use crate::server::{Availability, Server};
use crate::upstream::{Upstream, Usage, host_initialize};
use std::sync::Arc;
use toolbus_mcp::{Era, LATEST_LEGACY, Members, Raw};
use toolbus_upstream::{Eras, Probed, ServerConfig, ServerError, probe};

impl Server {
    /// Finds out the server's eras. The connection that answered is kept.
    pub async fn probe(&self, host: &Arc<Host>, config: &ServerConfig) -> Result<Arc<Eras>, OpenError> {
        let usage = if self.is_shared() { Usage::Shared } else { Usage::Own };
        let probed = probe(config, &host.options.connection, host_initialize(usage)).await?;
        let Probed { eras, connection } = probed;
        let Some(connection) = connection else { return Ok(Arc::new(eras)) };
        let usage = if eras.modern.is_some() { Usage::Shared } else { usage };
        let upstream = Upstream::on(host, &self.config, connection, usage, None);
        if let Some(handshake) = eras.modern.as_ref().or(eras.legacy.as_ref()) {
            upstream.set_handshake(handshake.clone());
        }
        if eras.modern.is_some() {
            *self.modern.lock().await = Some(upstream);
            return Ok(Arc::new(eras));
        }
        upstream.connection.notify("notifications/initialized", None).await?;
        if self.is_shared() {
            *self.shared_legacy.lock().await = Some(upstream);
        } else {
            self.replace_spare(upstream);
        }
        Ok(Arc::new(eras))
    }

    /// The host's own connection to a legacy server, initialized.
    pub async fn spare_upstream(&self, host: &Arc<Host>) -> Result<Arc<Upstream>, OpenError> {
        let spare = self.spare.lock().expect("no code panics while it holds this lock").clone();
        if let Some(spare) = spare.filter(|spare| spare.is_open()) {
            return Ok(spare);
        }
        let upstream = Upstream::open(host, &self.config, Era::Legacy, Usage::Own, None).await?;
        upstream.initialize(host, &self.config, host_initialize(Usage::Own)).await?;
        upstream.connection.notify("notifications/initialized", None).await?;
        self.replace_spare(Arc::clone(&upstream));
        Ok(upstream)
    }

    fn replace_spare(&self, upstream: Arc<Upstream>) {
        *self.spare.lock().expect("no code panics while it holds this lock") = Some(upstream);
    }

    /// The host's own connection, for a client that would open the same: without capabilities, with the same version. Only
    /// the client's name differs.
    pub fn take_spare(&self, initialize: &Raw) -> Option<Arc<Upstream>> {
        let mut spare = self.spare.lock().expect("no code panics while it holds this lock");
        spare.take_if(|spare| spare.is_open() && is_like_host(initialize, &spare.handshake()))
    }

    /// Records what the first legacy connection to a modern server has shown: whether the server speaks that era, too.
    pub fn try_legacy(&self, host: &Host, tried: Result<Raw, &OpenError>) {
        let is_refused = |error: &OpenError| match error {
            OpenError::Refused(_) => true,
            OpenError::Server(error) => !matches!(error, ServerError::Start { .. }),
            OpenError::Host(_) => false,
        };
        let legacy = match tried {
            Ok(handshake) => Some(handshake),
            Err(error) if is_refused(error) => None,
            Err(_) => return,
        };
        let Some(eras) = self.known_eras().filter(|eras| eras.legacy_untried) else { return };
        let eras = Arc::new(Eras { modern: eras.modern.clone(), legacy, legacy_untried: false });
        self.availability.send_replace(Availability::Known(Arc::clone(&eras)));
        host.catalog.set_eras(self.index, eras);
    }
}

/// Whether a client with that `initialize` opens the same connection as the host, which was answered with `handshake`.
pub fn is_like_host(initialize: &Raw, handshake: &Raw) -> bool {
    let is_like = || {
        let initialize = Members::of(Some(initialize)).ok()?;
        let version = Members::of(Some(handshake)).ok()?.text("protocolVersion")?;
        let capabilities = Members::of(initialize.get("capabilities")).ok()?;
        let requested = initialize.text("protocolVersion")?;
        Some(capabilities.is_empty() && (requested == LATEST_LEGACY || requested == version))
    };
    is_like().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolbus_mcp::raw;

    #[test]
    fn only_a_client_without_capabilities_in_the_same_version_gets_the_spare() {
        let handshake = |version: &str| raw(&json!({"protocolVersion": version, "capabilities": {"tools": {}}}));
        let check_at = |negotiated: &str, version: &str, capabilities: serde_json::Value, expected: bool| {
            let info = json!({"name": "c", "version": "1"});
            let initialize = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": info});
            assert_eq!(is_like_host(&raw(&initialize), &handshake(negotiated)), expected, "{initialize}");
        };
        let check = |version, capabilities, expected| check_at("2025-11-25", version, capabilities, expected);
        check("2025-11-25", json!({}), true);
        check("2025-06-18", json!({}), false);
        // An older server answers both requests with its own version.
        check_at("2025-06-18", "2025-11-25", json!({}), true);
        check_at("2025-06-18", "2025-06-18", json!({}), true);
        check_at("2025-06-18", "2024-11-05", json!({}), false);
        check("2025-11-25", json!({"roots": {}}), false);
        check("2025-11-25", json!({"elicitation": {}}), false);
        check("2025-11-25", json!(null), false);
        assert!(!is_like_host(&raw(&json!(1)), &handshake("2025-11-25")));
    }
}
