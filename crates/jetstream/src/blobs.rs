//! Values of the bucket that may be larger than a message of NATS. A large one is in chunks under keys of their own, named by
//! its head; a reader that finds a chunk missing reads the head again, because it was replaced meanwhile.

use crate::ClusterError;
use crate::bucket::{Bucket, Swap, Value};
use async_nats::jetstream::kv::Entry;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use toolbus_base::hex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How often a value is read that is replaced again and again.
const READS: u32 = 8;
/// How often a value is written that other brokers write too.
const SWAPS: u32 = 8;
const BETWEEN_READS: Duration = Duration::from_millis(50);
/// Digits of the checksum, and the letter of the form.
const HEADER: usize = 17;
const INLINE: u8 = b'i';
const CHUNKED: u8 = b'c';

/// Values of any size in the bucket, with checksums.
#[derive(Clone)]
pub(crate) struct Blobs {
    bucket: Bucket,
    /// The cluster's secret, so that no host can choose a manifest whose checksum equals another one's.
    seed: u64,
}

/// The keys of the chunks of a value.
struct Chunks {
    id: String,
    count: usize,
}

impl Blobs {
    pub fn new(bucket: Bucket, seed: u64) -> Self {
        Self { bucket, seed }
    }

    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// The value whose head a watch has reported. `None` if it was replaced meanwhile, which the watch will report too. The
    /// head is not read again: a replica that is behind would answer with an earlier one.
    pub async fn value_of(&self, entry: &Entry) -> Result<Option<Value>, ClusterError> {
        for _ in 0..READS {
            if let Some(bytes) = self.assemble(&entry.key, &entry.value).await? {
                return Ok(Some(Value { revision: entry.revision, bytes }));
            }
            tokio::time::sleep(BETWEEN_READS).await;
        }
        tracing::debug!(key = entry.key, "a value of the cluster's bucket is damaged or was replaced");
        Ok(None)
    }

    /// Reads a value. The answer may come from a replica that is behind.
    pub async fn read(&self, key: &str) -> Result<Option<Value>, ClusterError> {
        for _ in 0..READS {
            let Some(head) = self.bucket.get(key).await? else { return Ok(None) };
            if let Some(bytes) = self.assemble(key, &head.bytes).await? {
                return Ok(Some(Value { revision: head.revision, bytes }));
            }
            tokio::time::sleep(BETWEEN_READS).await;
        }
        Err(damaged(key))
    }

    /// Writes a value if its revision is still `expected`, 0 for none.
    pub async fn swap(&self, key: &str, bytes: &[u8], expected: u64) -> Result<Swap, ClusterError> {
        let (head, chunks) = self.write_chunks(key, bytes).await?;
        let swapped = self.bucket.swap(key, head, expected).await?;
        self.erase(key, chunks.as_ref(), swapped).await;
        Ok(swapped)
    }

    /// Writes a value, whatever its revision. Returns the new one.
    pub async fn put(&self, key: &str, bytes: &[u8]) -> Result<u64, ClusterError> {
        for _ in 0..SWAPS {
            let expected = self.bucket.revision(key).await?;
            if let Swap::Written(revision) = self.swap(key, bytes, expected).await? {
                return Ok(revision);
            }
            tokio::time::sleep(BETWEEN_READS).await;
        }
        Err(ClusterError::Request {
            what: "write the cluster's bucket",
            reason: format!("{key} changes without pause"),
        })
    }

    /// Removes a value.
    pub async fn remove(&self, key: &str) -> Result<(), ClusterError> {
        self.bucket.remove(key).await?;
        let removed = self.bucket.revision(key).await?;
        self.bucket.erase(&format!("chunks.{key}.>"), Some(removed)).await
    }

    /// Writes the chunks of a large value. Returns its head.
    async fn write_chunks(&self, key: &str, bytes: &[u8]) -> Result<(Bytes, Option<(Chunks, u64)>), ClusterError> {
        let room = self.bucket.max_value() - HEADER;
        if bytes.len() <= room {
            return Ok((self.head(INLINE, bytes, bytes), None));
        }
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(ClusterError::request("get random bytes"))?;
        let chunks = Chunks { id: hex(&id), count: bytes.chunks(room).len() };
        let mut first = None;
        for (number, chunk) in bytes.chunks(room).enumerate() {
            let revision = self.bucket.put(&chunks.key(key, number), Bytes::copy_from_slice(chunk)).await?;
            first.get_or_insert(revision);
        }
        let Chunks { id, count } = &chunks;
        let head = self.head(CHUNKED, format!("{id} {count}").as_bytes(), bytes);
        Ok((head, Some((chunks, first.unwrap_or_default()))))
    }

    /// Erases the chunks that are not needed: those of a value that was not written, or all before the value that was. A writer
    /// that wrote chunks before that and has no head yet will be rejected, because it knows an earlier revision of the head.
    /// Chunks that were written later may belong to the next value.
    async fn erase(&self, key: &str, chunks: Option<&(Chunks, u64)>, swapped: Swap) {
        let erased = match (chunks, swapped) {
            (Some((_, first)), Swap::Written(_)) => self.bucket.erase(&format!("chunks.{key}.>"), Some(*first)).await,
            (Some((chunks, _)), Swap::Conflict) => {
                self.bucket.erase(&format!("chunks.{key}.{}.>", chunks.id), None).await
            }
            (None, Swap::Written(head)) => self.bucket.erase(&format!("chunks.{key}.>"), Some(head)).await,
            (None, Swap::Conflict) => Ok(()),
        };
        if let Err(error) = erased {
            tracing::debug!(%error, key, "old chunks stay in the bucket until the value is written again");
        }
    }

    fn head(&self, form: u8, content: &[u8], bytes: &[u8]) -> Bytes {
        let mut head = BytesMut::from(format!("{:016x}", self.checksum(bytes)).as_bytes());
        head.extend_from_slice(&[form]);
        head.extend_from_slice(content);
        head.freeze()
    }

    /// The value of a head, or `None` if a chunk is missing or the checksum is wrong.
    async fn assemble(&self, key: &str, head: &Bytes) -> Result<Option<Bytes>, ClusterError> {
        if head.len() < HEADER {
            return Ok(None);
        }
        let content = head.slice(HEADER..);
        let bytes = match head[HEADER - 1] {
            INLINE => content,
            CHUNKED => {
                let Some(chunks) = Chunks::parse(&content) else { return Ok(None) };
                let mut bytes = BytesMut::new();
                for number in 0..chunks.count {
                    let Some(chunk) = self.bucket.get(&chunks.key(key, number)).await? else { return Ok(None) };
                    bytes.extend_from_slice(&chunk.bytes);
                }
                bytes.freeze()
            }
            _ => return Ok(None),
        };
        let is_intact = format!("{:016x}", self.checksum(&bytes)).as_bytes() == &head[..HEADER - 1];
        Ok(is_intact.then_some(bytes))
    }

    fn checksum(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed)
    }
}

impl Chunks {
    fn parse(text: &[u8]) -> Option<Self> {
        let (id, count) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { id: id.to_owned(), count: count.parse().ok()? })
    }

    fn key(&self, key: &str, number: usize) -> String {
        format!("chunks.{key}.{}.{number}", self.id)
    }
}

pub(crate) fn damaged(key: &str) -> ClusterError {
    ClusterError::Request { what: "read the cluster's bucket", reason: format!("the value of {key} is damaged") }
}
