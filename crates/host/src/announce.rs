//! Tells the bus what the host offers, role by role, whenever that changes.

use crate::host::Host;
use crate::unmatched::Unmatched;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{HostManifest, ListKind, raw};
use toolbus_protocol::{Body, ErrorCode};

/// Changes that come together are told together.
const GATHER: Duration = Duration::from_millis(20);
/// After a failure that may pass.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

type Manifests = Vec<(Option<String>, Body)>;

pub async fn run(host: Arc<Host>) {
    // Until then workers see the last manifest, with the tools that are about to come back.
    tokio::select! {
        () = host.catalog.settled() => {}
        () = tokio::time::sleep(host.options.limits.start_quiet) => {}
        () = host.shutdown.cancelled() => return,
    }
    let mut told = None;
    let mut policy = host.options.policy.watch();
    let mut unmatched = Unmatched::default();
    loop {
        unmatched.warn(&host, &policy.borrow_and_update());
        let manifests = manifests(&host, |manifest| manifest);
        let mut again = false;
        if told.as_ref() != Some(&text_of(&manifests)) {
            let text = text_of(&manifests);
            again = !announce(&host, manifests).await;
            told = (!again).then_some(text);
        }
        let earliest = Instant::now() + host.options.limits.announce_interval;
        tokio::select! {
            () = host.catalog.changed() => {}
            // Its sender is in the options, and so as old as the host.
            _ = policy.changed() => {}
            () = tokio::time::sleep(AGAIN_AFTER), if again => {}
            () = host.shutdown.cancelled() => return,
        }
        tokio::time::sleep_until(earliest.max(Instant::now() + GATHER)).await;
    }
}

/// False if it should be tried again.
async fn announce(host: &Host, manifests: Manifests) -> bool {
    let outcome = match host.outbox.client().announce(manifests).await {
        Err(BrokerError::Rejected {
            code: Some(ErrorCode::FrameTooLarge | ErrorCode::ManifestRefused),
            reason,
            ..
        }) => {
            tracing::warn!(
                reason,
                "the host offers more than the broker takes; its items are announced without details"
            );
            let bare = self::manifests(host, |manifest| without_items(manifest, &reason));
            host.outbox.client().announce(bare).await
        }
        outcome => outcome,
    };
    match outcome {
        Ok(()) => true,
        // An original broker has no directory; its workers ask for the manifest.
        Err(BrokerError::Protocol(_)) => true,
        Err(error @ BrokerError::Rejected { code: Some(ErrorCode::NotAHost), .. }) => {
            host.unwelcome.set(error);
            true
        }
        // It stays refused until something changes.
        Err(error @ BrokerError::Rejected { .. }) => {
            tracing::error!(%error, "the broker does not take what the host offers");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "what the host offers could not be announced");
            false
        }
    }
}

fn manifests(host: &Host, change: impl Fn(HostManifest) -> HostManifest) -> Manifests {
    let policy = host.options.policy.current();
    let roles = policy.roles().map(|role| Some(role.to_owned())).chain([None]);
    let manifest = |role: Option<String>| {
        let manifest = raw(&change(host.catalog.manifest(role.as_deref(), &policy)));
        (role, Body::from_trusted(Bytes::from(manifest.get().to_owned())))
    };
    roles.map(manifest).collect()
}

fn without_items(mut manifest: HostManifest, reason: &str) -> HostManifest {
    for server in &mut manifest.servers {
        ListKind::ALL.into_iter().for_each(|kind| server.items_mut(kind).clear());
    }
    manifest.problems.push(format!("the lists are too long to be announced: {reason}"));
    manifest
}

/// The same manifest for another role is another announcement.
fn text_of(manifests: &Manifests) -> Vec<(Option<String>, Bytes)> {
    manifests.iter().map(|(role, manifest)| (role.clone(), manifest.as_bytes().clone())).collect()
}
