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
use toolbus_wal::{ChecksumKey, MoveMark};
use xxhash_rust::xxh3::xxh3_64;

const KEY: &str = "identity";
/// The format of everything that the cluster stores. A broker refuses any other.
const FORMAT: u32 = 1;
/// The format while the data is moved from or to the cluster, and after it was moved away. Brokers of earlier versions refuse
/// it too.
const MOVED_FORMAT: u32 = 0;
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
    /// The data is being moved from or to the cluster, or was moved away.
    #[error("the cluster {0}")]
    Moved(MoveMark),
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
    /// The [`MoveMark`]. Only in [`MOVED_FORMAT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved: Option<String>,
}

impl ClusterIdentity {
    /// The key of the checksums of entries.
    pub fn checksum_key(&self) -> ChecksumKey {
        ChecksumKey(self.seed)
    }

    fn new(partitions: Partitions) -> Result<Self, ClusterError> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(ClusterError::request("get random bytes"))?;
        Self::with(uuid::Uuid::new_v4().to_string(), u64::from_be_bytes(seed), partitions)
    }

    /// The identity of a new cluster that continues data with this id and seed.
    pub fn with(id: String, seed: u64, partitions: Partitions) -> Result<Self, ClusterError> {
        let mut link_secret = [0; 32];
        getrandom::fill(&mut link_secret).map_err(ClusterError::request("get random bytes"))?;
        Ok(Self { id, partitions, seed, link_secret, created_ms: now_ms() })
    }

    fn encode(&self, mark: Option<&MoveMark>) -> Bytes {
        let stored = Stored {
            format: if mark.is_some() { MOVED_FORMAT } else { FORMAT },
            moved: mark.map(MoveMark::to_text),
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
        match Self::decode_marked(bytes)? {
            (identity, None) => Ok(identity),
            (_, Some(mark)) => Err(IdentityError::Moved(mark)),
        }
    }

    fn decode_marked(bytes: &[u8]) -> Result<(Self, Option<MoveMark>), IdentityError> {
        let damaged = IdentityError::Damaged;
        let (checksum, text) = bytes.split_at_checked(CHECKSUM).ok_or(damaged("too short"))?;
        let text = text.strip_suffix(b"\n").ok_or(damaged("cut off"))?;
        if checksum != format!("{:016x}\n", xxh3_64(text)).as_bytes() {
            return Err(damaged("checksum mismatch"));
        }
        // The rest of another format may be different.
        let Format { format: found } = serde_json::from_slice(text).map_err(|_| damaged("not JSON"))?;
        if found != FORMAT && found != MOVED_FORMAT {
            return Err(IdentityError::Format { found });
        }
        let stored: Stored = serde_json::from_slice(text).map_err(|_| damaged("a field is missing"))?;
        let partitions = Partitions::new(stored.partitions).ok_or(damaged("partitions"))?;
        let seed = from_hex(&stored.seed).map(u64::from_be_bytes).ok_or(damaged("seed"))?;
        let link_secret = from_hex(&stored.link_secret).ok_or(damaged("link_secret"))?;
        let mark = match (found, stored.moved) {
            (MOVED_FORMAT, Some(text)) => Some(MoveMark::parse(&text).ok_or(damaged("moved"))?),
            (FORMAT, None) => None,
            _ => return Err(damaged("moved")),
        };
        Ok((Self { id: stored.id, partitions, seed, link_secret, created_ms: stored.created_ms }, mark))
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
        if let Swap::Written(_) = bucket.swap(KEY, identity.encode(None), 0).await? {
            tracing::info!(id = identity.id, partitions = partitions.count(), "created the cluster");
            return Ok(identity);
        }
        // Another broker has created it; the replica that answered the read was behind.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// The identity of a cluster that may take part in a move, with its revision.
#[derive(Debug, Clone)]
pub struct MarkedIdentity {
    /// The identity.
    pub identity: ClusterIdentity,
    /// The part of the cluster in a move.
    pub mark: Option<MoveMark>,
    /// The revision of the record; 0 if there is none yet.
    pub revision: u64,
}

/// Reads the identity, also that of a cluster that takes part in a move.
pub(crate) async fn read(bucket: &Bucket) -> Result<Option<MarkedIdentity>, ClusterError> {
    let Some(found) = bucket.entry(KEY).await? else { return Ok(None) };
    if found.operation != Operation::Put {
        return Err(IdentityError::Damaged("it was removed").into());
    }
    let (identity, mark) = ClusterIdentity::decode_marked(&found.value)?;
    Ok(Some(MarkedIdentity { identity, mark, revision: found.revision }))
}

/// Replaces the identity if its revision is still the one of `marked`, which gets the new one. Returns false if it is not.
pub(crate) async fn swap(bucket: &Bucket, marked: &mut MarkedIdentity) -> Result<bool, ClusterError> {
    let MarkedIdentity { identity, mark, revision } = marked;
    match bucket.swap(KEY, identity.encode(mark.as_ref()), *revision).await? {
        Swap::Written(written) => *revision = written,
        Swap::Conflict => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use toolbus_wal::MoveState;

    fn identity() -> ClusterIdentity {
        ClusterIdentity::new(Partitions::DEFAULT).unwrap()
    }

    fn mark() -> MoveMark {
        MoveMark { id: "7f".into(), state: MoveState::Arriving, other: "the folder /data".into() }
    }

    #[test]
    fn a_cluster_that_takes_part_in_a_move_is_refused() {
        let identity = identity();
        let encoded = identity.encode(Some(&mark()));
        assert_eq!(ClusterIdentity::decode(&encoded), Err(IdentityError::Moved(mark())));
        assert_eq!(ClusterIdentity::decode_marked(&encoded), Ok((identity, Some(mark()))));
        assert!(encoded.windows(10).any(|part| part == b"\"format\":0"), "another format for earlier versions");
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_noticed() {
        assert_is_checked(&identity().encode(None));
        assert_is_checked(&identity().encode(Some(&mark())));
    }

    fn assert_is_checked(encoded: &[u8]) {
        assert!(ClusterIdentity::decode_marked(encoded).is_ok());
        for (at, bit) in (0..encoded.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut flipped = encoded.to_vec();
            flipped[at] ^= 1 << bit;
            let read = ClusterIdentity::decode_marked(&flipped);
            assert!(matches!(read, Err(IdentityError::Damaged(_))), "bit {bit} of byte {at}: {read:?}");
        }
        (0..encoded.len())
            .for_each(|end| assert!(ClusterIdentity::decode_marked(&encoded[..end]).is_err(), "cut at {end}"));
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
