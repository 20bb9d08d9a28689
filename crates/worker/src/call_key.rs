//! The key of a call's content in its id. Brokers and hosts list requests by their ids: so a worker finds out, without their
//! bodies, that an earlier worker of its agent made an equal call.

use toolbus_mcp::{Members, Rpc, meta};
use toolbus_protocol::MsgId;
use uuid::{Builder, Uuid};
use xxhash_rust::xxh3::Xxh3;

/// The bits of a UUID of version 8 that are free behind the variant.
const KEY_BITS: u64 = (1 << 62) - 1;

/// The key of a call: equal for equal calls, whatever their metadata. A repeated call has the same text, so nested members are
/// compared in their order.
pub fn content_key(rpc: &Rpc) -> u64 {
    let mut hash = Xxh3::new();
    let mut add = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    add(&rpc.server);
    add(&rpc.method);
    match Members::of(rpc.params.as_ref()) {
        Ok(params) => {
            let mut members: Vec<_> = params.iter().filter(|(name, _)| *name != meta::META).collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in members {
                add(name);
                add(value.get());
            }
        }
        Err(_) => add(rpc.params.as_ref().map_or("", |params| params.get())),
    }
    hash.digest() & KEY_BITS
}

/// A new id with the key in its last 62 bits, and 60 random bits.
pub fn keyed_id(key: u64) -> MsgId {
    let mut bytes = *Uuid::new_v4().as_bytes();
    bytes[8..].copy_from_slice(&(key & KEY_BITS).to_be_bytes());
    MsgId::from(Builder::from_custom_bytes(bytes).into_uuid().to_string())
}

/// The key in such an id.
pub fn key_of(id: &str) -> Option<u64> {
    let id = Uuid::try_parse(id).ok().filter(|id| id.get_version_num() == 8)?;
    Some(id.as_u64_pair().1 & KEY_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use toolbus_mcp::{ClientHello, raw};

    fn key(server: &str, params: &Value) -> u64 {
        let (server, method) = (server.to_owned(), "tools/call".to_owned());
        let (client, params) = (ClientHello::modern(), Some(raw(params)));
        content_key(&Rpc { server, session: "s".into(), client, method, params, task: None, hand_back: true })
    }

    #[test]
    fn an_id_keeps_the_key_of_its_call_and_differs_from_others() {
        let key = key("one", &json!({"name": "a", "arguments": {"x": 1}}));
        let ids = [keyed_id(key), keyed_id(key)];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| key_of(id.as_str()) == Some(key)));
        assert_eq!((key_of(MsgId::new().as_str()), key_of("bus-1")), (None, None));
    }

    #[test]
    fn the_key_depends_on_the_request_but_not_on_its_metadata() {
        let usual = key("one", &json!({"name": "a", "arguments": {"x": 1}}));
        assert_eq!(usual, key("one", &json!({"arguments": {"x": 1}, "name": "a", "_meta": {"progressToken": 1}})));
        for other in [json!({"name": "a", "arguments": {"x": 2}}), json!({"name": "b", "arguments": {"x": 1}})] {
            assert_ne!(usual, key("one", &other));
        }
        assert_ne!(usual, key("two", &json!({"name": "a", "arguments": {"x": 1}})));
    }
}
