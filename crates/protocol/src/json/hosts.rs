//! JSON encoding of frames to and from hosts: `announce`, `announced`, `hosts` and `agents_ended`.

use super::fields::{name, required, some_raw};
use super::object::Object;
use super::read::body;
use super::write::{push_json, push_number};
use crate::frames::*;
use crate::{AgentEnd, Body, DecodeError};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub struct FlatManifest<'a> {
    role: Option<String>,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

#[derive(Deserialize)]
pub struct FlatHost<'a> {
    id: String,
    online: bool,
    since_ms: u64,
    version: u64,
    #[serde(borrow, default, deserialize_with = "some_raw")]
    manifest: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub struct FlatAgentEnd {
    name: String,
    generation: u64,
    expired: Option<bool>,
}

pub fn manifests(flat: Vec<Object<FlatManifest<'_>>>) -> Result<Vec<RoleManifest>, DecodeError> {
    let manifest = |Object(flat): Object<FlatManifest<'_>>| {
        let role = flat.role.map(|role| name(role.into())).transpose()?;
        Ok(RoleManifest { role, manifest: body(flat.manifest)? })
    };
    flat.into_iter().map(manifest).collect()
}

pub fn hosts(request_id: Option<String>, hosts: Option<Vec<Object<FlatHost<'_>>>>) -> Result<BrokerFrame, DecodeError> {
    let host = |Object(flat): Object<FlatHost<'_>>| {
        Ok(HostEntry {
            id: name(flat.id.into())?,
            online: flat.online,
            since_ms: flat.since_ms,
            version: flat.version,
            manifest: flat.manifest.map(body).transpose()?,
        })
    };
    let hosts = hosts.ok_or(DecodeError::Missing("hosts", "hosts"))?;
    let hosts = hosts.into_iter().map(host).collect::<Result<_, DecodeError>>()?;
    Ok(BrokerFrame::Hosts(Hosts { request_id: required(request_id, "hosts", "request_id")?, hosts }))
}

pub fn agents_ended(agents: Option<Vec<Object<FlatAgentEnd>>>) -> Result<BrokerFrame, DecodeError> {
    let end = |Object(FlatAgentEnd { name: agent, generation, expired }): Object<FlatAgentEnd>| {
        Ok(AgentEnd { name: name(agent.into())?, generation, expired: expired.unwrap_or(false) })
    };
    let agents = agents.ok_or(DecodeError::Missing("agents_ended", "agents"))?;
    Ok(BrokerFrame::AgentsEnded { agents: agents.into_iter().map(end).collect::<Result<_, DecodeError>>()? })
}

pub fn agents_ended_text(agents: &[AgentEnd]) -> String {
    let end = |AgentEnd { name, generation, expired }: &AgentEnd| {
        let mut value = json!({"name": &**name, "generation": generation});
        if *expired {
            value["expired"] = true.into();
        }
        value
    };
    json!({"kind": "agents_ended", "agents": agents.iter().map(end).collect::<Vec<_>>()}).to_string()
}

/// Manifests are not checked here: the host's client validates them, and the broker's were parsed from JSON.
pub fn announce_text(announce: &Announce) -> String {
    let mut out = String::from(r#"{"kind":"announce","request_id":"#);
    push_json(&mut out, &*announce.request_id);
    out.push_str(r#","manifests":["#);
    for (index, RoleManifest { role, manifest }) in announce.manifests.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { ",{" });
        if let Some(role) = role {
            out.push_str(r#""role":"#);
            push_json(&mut out, &**role);
            out.push(',');
        }
        push_manifest(&mut out, manifest);
        out.push('}');
    }
    out.push_str("]}");
    out
}

pub fn announced_text(announced: &Announced) -> String {
    let mut value = json!({"kind": "announced", "request_id": &*announced.request_id});
    if let Some(reason) = &announced.reason {
        value["reason"] = reason.as_str().into();
    }
    if let Some(code) = announced.code {
        value["code"] = code.code().into();
    }
    value.to_string()
}

pub fn hosts_text(hosts: &Hosts) -> String {
    let mut out = String::from(r#"{"kind":"hosts","request_id":"#);
    push_json(&mut out, &*hosts.request_id);
    out.push_str(r#","hosts":["#);
    for (index, host) in hosts.hosts.iter().enumerate() {
        out.push_str(if index == 0 { r#"{"id":"# } else { r#",{"id":"# });
        push_json(&mut out, &*host.id);
        out.push_str(&format!(",\"online\":{}", host.online));
        push_number(&mut out, "since_ms", Some(host.since_ms));
        push_number(&mut out, "version", Some(host.version));
        if let Some(manifest) = &host.manifest {
            out.push(',');
            push_manifest(&mut out, manifest);
        }
        out.push('}');
    }
    out.push_str("]}");
    out
}

fn push_manifest(out: &mut String, manifest: &Body) {
    out.push_str(r#""manifest":"#);
    out.push_str(&String::from_utf8_lossy(manifest.as_bytes()));
}
