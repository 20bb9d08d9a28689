//! The handshake of a link: both brokers prove that they know the cluster's secret and mean the same link.
//!
//! 1. The front proposes its [`Terms`], with a nonce.
//! 2. The owner answers with a nonce of its own, if it has the name that the front expects.
//! 3. The front proves.
//! 4. The owner says whether it owns the partition, and proves that with its answer.
//!
//! The front proves first, so a peer that does not know the secret learns nothing about the owner's partitions. A message is
//! prefixed with its length, like the frames that follow.

use super::local::LocalPartition;
use super::terms::{NONCE_BYTES, Prover, Terms, Transcript};
use super::{Binding, LinkError};
use bytes::{Bytes, BytesMut};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a message of the handshake.
const MAX_MESSAGE_BYTES: usize = 1024;

// First bytes of the owner's messages. `REFUSED` is followed by a reason instead of a proof, so it is not authenticated.
const REFUSED: u8 = 0;
const NONCE: u8 = 1;
const ACCEPTED: u8 = 2;
const NOT_OWNER: u8 = 3;

// Reasons.
const ANOTHER_BROKER: u8 = 1;
const NO_PROOF: u8 = 2;

/// Why a broker refuses to serve a link.
#[derive(Debug, thiserror::Error)]
pub enum RefusedLink {
    /// The connection was lost, or a message is malformed.
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// The peer expects another broker at this address.
    #[error("the peer expects another broker")]
    AnotherBroker,
    /// The peer does not know the secret, or something in between terminates TLS.
    #[error("the peer's proof is not valid")]
    Authentication,
}

/// The front's part.
pub async fn propose(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    key: &hmac::Key,
    terms: &Terms,
    binding: &Binding,
) -> Result<(), LinkError> {
    let proposal = terms.proposal(&fresh_nonce()?);
    write(stream, &proposal).await?;
    let nonce = expect(&read(stream).await?, NONCE, terms)?;
    let transcript = Transcript { key, proposal: &proposal, nonce, binding };
    write(stream, transcript.prove(Prover::Front).as_ref()).await?;
    let answer = read(stream).await?;
    let decision = answer.first().copied().unwrap_or(REFUSED);
    let proof: [u8; NONCE_BYTES] = expect(&answer, decision, terms)?;
    if !transcript.verify(Prover::Owner(decision), &proof) {
        return Err(LinkError::Authentication);
    }
    match decision {
        ACCEPTED => Ok(()),
        NOT_OWNER => Err(LinkError::NotOwner { partition: terms.partition, epoch: terms.epoch }),
        _ => Err(malformed().into()),
    }
}

/// The rest of a message of the owner that has to begin with that byte.
fn expect(message: &[u8], first: u8, terms: &Terms) -> Result<[u8; NONCE_BYTES], LinkError> {
    match message {
        [REFUSED, ANOTHER_BROKER] => Err(LinkError::AnotherBroker { owner: terms.owner.clone() }),
        [REFUSED, NO_PROOF] => Err(LinkError::Authentication),
        [found, rest @ ..] if *found == first => rest.try_into().map_err(|_| malformed().into()),
        _ => Err(malformed().into()),
    }
}

/// The owner's part. `find` looks up the partition, once the front is authenticated.
pub async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    key: &hmac::Key,
    name: &str,
    binding: &Binding,
    find: impl FnOnce(&Terms) -> Option<LocalPartition>,
) -> Result<(Terms, Option<LocalPartition>), RefusedLink> {
    let proposal = read(stream).await?;
    let terms = Terms::read(proposal.clone()).ok_or_else(malformed)?;
    if terms.owner != name {
        write(stream, &[REFUSED, ANOTHER_BROKER]).await?;
        return Err(RefusedLink::AnotherBroker);
    }
    let transcript = Transcript { key, proposal: &proposal, nonce: fresh_nonce()?, binding };
    write(stream, &[&[NONCE], &transcript.nonce[..]].concat()).await?;
    let proof = read(stream).await?;
    if !transcript.verify(Prover::Front, &proof) {
        write(stream, &[REFUSED, NO_PROOF]).await?;
        return Err(RefusedLink::Authentication);
    }
    let local = find(&terms);
    let decision = if local.is_some() { ACCEPTED } else { NOT_OWNER };
    let proof = transcript.prove(Prover::Owner(decision));
    write(stream, &[&[decision], proof.as_ref()].concat()).await?;
    Ok((terms, local))
}

fn fresh_nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    SystemRandom::new().fill(&mut nonce).map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(nonce)
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let length = message.len() as u32;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await?;
    stream.flush().await
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let length = stream.read_u32().await? as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(malformed());
    }
    let mut message = BytesMut::zeroed(length);
    stream.read_exact(&mut message).await?;
    Ok(message.freeze())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of the handshake is malformed")
}
