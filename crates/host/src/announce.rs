//! Announces the host's manifests to the broker, one per role, whenever they change.

use crate::host::Host;
use crate::unmatched::Unmatched;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{HostManifest, ListKind, SomeTools, raw};
use toolbus_protocol::{Body, ErrorCode};

/// Changes within this time share an announcement.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Delay after a transient failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

type Manifests = Vec<(Option<String>, Body)>;

pub async fn run(host: Arc<Host>) {
    let mut announced = None;
    let mut remembered = Vec::new();
    let mut policy = host.options.policy.watch();
    let mut unmatched = Unmatched::default();
    loop {
        unmatched.warn(&host, &policy.borrow_and_update());
        let draining = host.options.pool.is_some() && host.draining.is_cancelled();
        let manifests = manifests(&host, |manifest| manifest);
        let mut again = false;
        if announced.as_ref() != Some(&text_of(&manifests)) {
            let text = text_of(&manifests);
            again = !announce(&host, manifests).await;
            announced = (!again).then_some(text);
        }
        remember(&host, &mut remembered).await;
        let earliest = Instant::now() + host.options.limits.announce_interval;
        tokio::select! {
            () = host.catalog.changed() => {}
            // Never fails: the sender is in the host's options.
            _ = policy.changed() => {}
            () = tokio::time::sleep(RETRY_INTERVAL), if again => {}
            // Workers choose other members at once.
            () = host.draining.cancelled(), if host.options.pool.is_some() && !draining => continue,
            () = host.shutdown.cancelled() => return,
        }
        tokio::time::sleep_until(earliest.max(Instant::now() + DEBOUNCE)).await;
    }
}

/// Writes the lists to the file, if they have changed.
async fn remember(host: &Host, remembered: &mut Vec<u8>) {
    let Some(file) = host.options.catalog_file.clone() else { return };
    let lists = host.catalog.to_remember();
    if lists == *remembered {
        return;
    }
    remembered.clone_from(&lists);
    let written = tokio::task::spawn_blocking(move || toolbus_base::replace_file(&file, &lists)).await;
    if let Err(error) = written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        tracing::warn!(%error, "could not write the lists to remember");
    }
}

/// Returns false if the announcement should be retried.
async fn announce(host: &Host, manifests: Manifests) -> bool {
    let outcome = match host.outbox.client().announce(manifests).await {
        Err(BrokerError::Rejected {
            code: Some(ErrorCode::FrameTooLarge | ErrorCode::ManifestRefused),
            reason,
            ..
        }) => {
            tracing::warn!(reason, "the manifest exceeds the broker's limits, announcing servers without their items");
            let bare = self::manifests(host, |manifest| without_items(manifest, &reason));
            host.outbox.client().announce(bare).await
        }
        outcome => outcome,
    };
    match outcome {
        Ok(()) => true,
        // An original broker has no host directory; its workers request the manifest.
        Err(BrokerError::Protocol(_)) => true,
        Err(error @ BrokerError::Rejected { code: Some(ErrorCode::NotAHost), .. }) => {
            host.rejection.set(error);
            true
        }
        // The same manifests would be refused again.
        Err(error @ BrokerError::Rejected { .. }) => {
            tracing::error!(%error, "the broker refused the manifest");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "could not announce the manifest");
            false
        }
    }
}

fn manifests(host: &Host, change: impl Fn(HostManifest) -> HostManifest) -> Manifests {
    let policy = host.options.policy.current();
    let roles = policy.roles().map(|role| Some(role.to_owned())).chain([None]);
    let manifest = |role: Option<String>| {
        let mut manifest = change(host.catalog.manifest(role.as_deref(), &policy));
        manifest.pool.clone_from(&host.options.pool);
        match manifest.pool {
            Some(_) => manifest.draining = host.draining.is_cancelled(),
            // Only workers of a pool decide by these.
            None => manifest.servers.iter_mut().for_each(|server| {
                (server.shared, server.replay_safe) = (false, SomeTools::default());
            }),
        }
        let manifest = raw(&manifest);
        (role, Body::from_trusted(Bytes::from(manifest.get().to_owned())))
    };
    roles.map(manifest).collect()
}

fn without_items(mut manifest: HostManifest, reason: &str) -> HostManifest {
    for server in &mut manifest.servers {
        ListKind::ALL.into_iter().for_each(|kind| server.items_mut(kind).clear());
    }
    manifest.problems.push(format!("the lists exceed the broker's limits and were not announced: {reason}"));
    manifest
}

/// What was announced, with roles: the same manifest under another role is a different announcement.
fn text_of(manifests: &Manifests) -> Vec<(Option<String>, Bytes)> {
    manifests.iter().map(|(role, manifest)| (role.clone(), manifest.as_bytes().clone())).collect()
}
