//! What makes a cluster this cluster: its id, its secrets and the number of its partitions. Created once, by the broker that
//! starts first, and the same for all brokers from then on.

use crate::ClusterError;
use crate::bucket::{Bucket, Swap};
use async_nats::jetstream::kv::Operation;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Formatter};
use toolbus_base::{from_hex, hex, now_ms};
use toolbus_cluster::Partitions;
use toolbus_wal::ChecksumKey;
use xxhash_rust::xxh3::xxh3_64;

const KEY: &str = "identity";
/// The format of everything that the cluster stores. A broker refuses any other.
const FORMAT: u32 = 1;
/// Digits of the checksum, and a line break.
const CHECKSUM: usize = 17;

/// The identity of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// A random id.
    pub id: String,
    /// The number of partitions, fixed when the cluster was created.
    pub partitions: Partitions,
    /// Seed of checksums and fingerprints. A secret: an agent that knew it could choose colliding ids.
    pub seed: u64,
    /// The secret with which brokers authenticate each other.
    pub link_secret: [u8; 32],
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
}

/// Why the identity of a cluster can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Its content is not what was written.
    #[error("the identity of the cluster is damaged ({0}); restore the key `identity` of its bucket from a backup")]
    Damaged(&'static str),
    /// A broker of another version created it.
    #[error("the cluster has format {found}, this broker uses format {FORMAT}; start brokers of one version")]
    Format {
        /// The format of the cluster.
        found: u32,
    },
    /// Another number of partitions was wanted.
    #[error(
        "the cluster was created with {found} partitions, {wanted} are wanted; the number can't be changed, because the \
         mailboxes of a partition are in its stream"
    )]
    Partitions {
        /// The number of the cluster.
        found: u16,
        /// The number that was asked for.
        wanted: u16,
    },
}

#[derive(Serialize, Deserialize)]
struct Format {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    id: String,
    partitions: u16,
    seed: String,
    link_secret: String,
    created_ms: u64,
}

impl ClusterIdentity {
    /// The key of the checksums of entries.
    pub fn checksum_key(&self) -> ChecksumKey {
        ChecksumKey(self.seed)
    }

    fn new(partitions: Partitions) -> Result<Self, ClusterError> {
        let (mut seed, mut link_secret) = ([0; 8], [0; 32]);
        let filled = getrandom::fill(&mut seed).and_then(|()| getrandom::fill(&mut link_secret));
        filled.map_err(ClusterError::request("get random bytes"))?;
        let id = uuid::Uuid::new_v4().to_string();
        Ok(Self { id, partitions, seed: u64::from_be_bytes(seed), link_secret, created_ms: now_ms() })
    }

    fn encode(&self) -> Bytes {
        let stored = Stored {
            format: FORMAT,
            id: self.id.clone(),
            partitions: self.partitions.count(),
            seed: hex(&self.seed.to_be_bytes()),
            link_secret: hex(&self.link_secret),
            created_ms: self.created_ms,
        };
        let text = serde_json::to_string(&stored).expect("the record is plain JSON");
        Bytes::from(format!("{:016x}\n{text}\n", xxh3_64(text.as_bytes())))
    }

    fn decode(bytes: &[u8]) -> Result<Self, IdentityError> {
        let damaged = IdentityError::Damaged;
        let (checksum, text) = bytes.split_at_checked(CHECKSUM).ok_or(damaged("too short"))?;
        let text = text.strip_suffix(b"\n").ok_or(damaged("cut off"))?;
        if checksum != format!("{:016x}\n", xxh3_64(text)).as_bytes() {
            return Err(damaged("checksum mismatch"));
        }
        // The rest of another format may be different.
        let Format { format: found } = serde_json::from_slice(text).map_err(|_| damaged("not JSON"))?;
        if found != FORMAT {
            return Err(IdentityError::Format { found });
        }
        let stored: Stored = serde_json::from_slice(text).map_err(|_| damaged("a field is missing"))?;
        let partitions = Partitions::new(stored.partitions).ok_or(damaged("partitions"))?;
        let seed = from_hex(&stored.seed).map(u64::from_be_bytes).ok_or(damaged("seed"))?;
        let link_secret = from_hex(&stored.link_secret).ok_or(damaged("link_secret"))?;
        Ok(Self { id: stored.id, partitions, seed, link_secret, created_ms: stored.created_ms })
    }
}

impl Debug for ClusterIdentity {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterIdentity")
            .field("id", &self.id)
            .field("partitions", &self.partitions.count())
            .finish_non_exhaustive()
    }
}

/// Reads the identity, or creates it. Of several brokers that create it at the same time, one succeeds and the others read.
pub(crate) async fn open(bucket: &Bucket, partitions: Partitions) -> Result<ClusterIdentity, ClusterError> {
    loop {
        if let Some(found) = bucket.entry(KEY).await? {
            if found.operation != Operation::Put {
                return Err(IdentityError::Damaged("it was removed").into());
            }
            let identity = ClusterIdentity::decode(&found.value)?;
            let (found, wanted) = (identity.partitions.count(), partitions.count());
            return if found == wanted {
                Ok(identity)
            } else {
                Err(IdentityError::Partitions { found, wanted }.into())
            };
        }
        let identity = ClusterIdentity::new(partitions)?;
        if let Swap::Written(_) = bucket.swap(KEY, identity.encode(), 0).await? {
            tracing::info!(id = identity.id, partitions = partitions.count(), "created the cluster");
            return Ok(identity);
        }
        // Another broker has created it; the replica that answered the read was behind.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn identity() -> ClusterIdentity {
        ClusterIdentity::new(Partitions::DEFAULT).unwrap()
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_noticed() {
        let encoded = identity().encode();
        assert!(ClusterIdentity::decode(&encoded).is_ok());
        for (at, bit) in (0..encoded.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut flipped = encoded.to_vec();
            flipped[at] ^= 1 << bit;
            let read = ClusterIdentity::decode(&flipped);
            assert!(matches!(read, Err(IdentityError::Damaged(_))), "bit {bit} of byte {at}: {read:?}");
        }
        (0..encoded.len()).for_each(|end| assert!(ClusterIdentity::decode(&encoded[..end]).is_err(), "cut at {end}"));
    }

    #[test]
    fn another_format_is_named() {
        let text = r#"{"format":2,"other":true}"#;
        let encoded = format!("{:016x}\n{text}\n", xxh3_64(text.as_bytes()));
        assert_eq!(ClusterIdentity::decode(encoded.as_bytes()), Err(IdentityError::Format { found: 2 }));
    }

    #[test]
    fn secrets_are_not_printed() {
        let identity = identity();
        let printed = format!("{identity:?}");
        assert_eq!(printed, format!("ClusterIdentity {{ id: {:?}, partitions: 16, .. }}", identity.id));
    }
}
