//! What the two ends of a link agree on, and the proofs that they do.

use super::{Binding, LINK_PROTOCOL};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use ring::hmac;
use toolbus_cluster::Partition;

/// Length of a nonce, and of a proof.
pub const NONCE_BYTES: usize = 32;

/// What the front proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Name of the front.
    pub front: String,
    /// Name of the broker that the front expects.
    pub owner: String,
    pub partition: Partition,
    pub epoch: u64,
}

impl Terms {
    /// The first message of the front.
    pub fn proposal(&self, nonce: &[u8; NONCE_BYTES]) -> Bytes {
        let mut proposal = BytesMut::new();
        proposal.put_slice(nonce);
        proposal.put_u16(self.partition.0);
        proposal.put_u64(self.epoch);
        for name in [&self.front, &self.owner] {
            proposal.put_u16(name.len() as u16);
            proposal.put_slice(name.as_bytes());
        }
        proposal.freeze()
    }

    /// Reads the first message of a front. Returns `None` if it is malformed.
    pub fn read(mut proposal: Bytes) -> Option<Self> {
        fn name(input: &mut Bytes) -> Option<String> {
            let length = usize::from(input.try_get_u16().ok()?);
            let name = (input.len() >= length).then(|| input.split_to(length))?;
            String::from_utf8(name.into()).ok()
        }
        proposal = (proposal.len() >= NONCE_BYTES).then(|| proposal.split_off(NONCE_BYTES))?;
        let partition = Partition(proposal.try_get_u16().ok()?);
        let epoch = proposal.try_get_u64().ok()?;
        let (front, owner) = (name(&mut proposal)?, name(&mut proposal)?);
        proposal.is_empty().then_some(Self { front, owner, partition, epoch })
    }
}

/// Everything that was said in a handshake before a proof, and the connection on which it was said.
pub struct Transcript<'a> {
    pub key: &'a hmac::Key,
    /// The front's first message, with its nonce.
    pub proposal: &'a [u8],
    /// The owner's nonce.
    pub nonce: [u8; NONCE_BYTES],
    pub binding: &'a Binding,
}

/// Which end proves something. Each has a context of its own: a proof that is sent back to its author proves nothing.
#[derive(Clone, Copy)]
pub enum Prover {
    Front,
    /// The owner, with its answer.
    Owner(u8),
}

impl Transcript<'_> {
    pub fn prove(&self, prover: Prover) -> hmac::Tag {
        hmac::sign(self.key, &self.mac_input(prover))
    }

    /// Compares in constant time.
    pub fn verify(&self, prover: Prover, proof: &[u8]) -> bool {
        hmac::verify(self.key, &self.mac_input(prover), proof).is_ok()
    }

    /// Unambiguous: each part has a fixed length, or its length before it.
    fn mac_input(&self, prover: Prover) -> Vec<u8> {
        let context: &[u8] = match prover {
            Prover::Front => b" front\0",
            Prover::Owner(_) => b" owner\0",
        };
        let mut input = [LINK_PROTOCOL.as_bytes(), context].concat();
        input.put_u32(self.proposal.len() as u32);
        input.put_slice(self.proposal);
        input.put_slice(&self.nonce);
        self.binding.write(&mut input);
        if let Prover::Owner(answer) = prover {
            input.put_u8(answer);
        }
        input
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { front: "front".into(), owner: "owner".into(), partition: Partition(7), epoch: 1 << 40 }
    }

    #[test]
    fn a_proposal_is_read_only_as_a_whole() {
        let proposal = terms().proposal(&[1; NONCE_BYTES]);
        assert_eq!(Terms::read(proposal.clone()), Some(terms()));
        for end in 0..proposal.len() {
            assert_eq!(Terms::read(proposal.slice(..end)), None, "cut at {end}");
        }
        assert_eq!(Terms::read([&proposal[..], &[0]].concat().into()), None);
    }

    #[test]
    fn a_proof_holds_only_for_its_key_transcript_connection_and_prover() {
        let (key, other_key) =
            (hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]), hmac::Key::new(hmac::HMAC_SHA256, &[2; 32]));
        let (plain, bound) = (Binding::plain(), Binding::for_test([3; 32]));
        let proposal = terms().proposal(&[1; NONCE_BYTES]);
        let transcript = || Transcript { key: &key, proposal: &proposal, nonce: [2; NONCE_BYTES], binding: &bound };
        let proof = transcript().prove(Prover::Owner(1));
        let holds = |transcript: Transcript<'_>, prover| transcript.verify(prover, proof.as_ref());
        assert!(holds(transcript(), Prover::Owner(1)));
        assert!(!holds(transcript(), Prover::Owner(2)));
        assert!(!holds(transcript(), Prover::Front));
        assert!(!holds(Transcript { key: &other_key, ..transcript() }, Prover::Owner(1)));
        assert!(!holds(Transcript { nonce: [3; NONCE_BYTES], ..transcript() }, Prover::Owner(1)));
        assert!(!holds(Transcript { binding: &plain, ..transcript() }, Prover::Owner(1)));
        assert!(!holds(Transcript { binding: &Binding::for_test([4; 32]), ..transcript() }, Prover::Owner(1)));
        let changes: [Terms; 4] = [
            Terms { front: "other".into(), ..terms() },
            Terms { owner: "other".into(), ..terms() },
            Terms { partition: Partition(8), ..terms() },
            Terms { epoch: 1, ..terms() },
        ];
        for changed in changes {
            let proposal = changed.proposal(&[1; NONCE_BYTES]);
            assert!(!holds(Transcript { proposal: &proposal, ..transcript() }, Prover::Owner(1)), "{changed:?}");
        }
    }
}
