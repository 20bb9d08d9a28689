//! Our own tokens: added, listed, rotated, revoked, expired and forged.

use crate::support::{authenticate, authenticate_as, code_of, eventually, resident_bytes};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use toolbus_identity::{AgentsFolder, Authenticator, EndReason, NewAgent, Registry, RegistryError, Rights};
use toolbus_protocol::{AgentRef, ErrorCode};

const HOUR: Duration = Duration::from_secs(3600);

struct Agents {
    dir: TempDir,
    folder: AgentsFolder,
}

impl Agents {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder");
        let folder = AgentsFolder::new(dir.path());
        Self { dir, folder }
    }

    fn add(&self, name: &str, role: &str) -> String {
        let new = NewAgent { name, role, ..NewAgent::default() };
        self.folder.add(&new).expect("a new agent").token.expose().to_owned()
    }

    fn registry(&self) -> Registry {
        Registry::open(self.dir.path()).expect("readable")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.folder.file()).expect("present")
    }
}

#[test]
fn a_token_authenticates_only_its_own_agent_with_its_role_and_rights() {
    let agents = Agents::new();
    let worker = agents.add("w", "reader");
    let host = NewAgent { name: "h", role: "host", host: true, ..NewAgent::default() };
    let host = agents.folder.add(&host).expect("a new agent");
    let registry = agents.registry();

    let identity = authenticate_as(&registry, &worker, AgentRef::new("w#x")).expect("accepted");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("w#x", Some("reader")));
    assert_eq!(identity.rights, Rights::WORKER);
    let identity = authenticate(&registry, host.token.expose()).expect("accepted");
    assert_eq!((&*identity.agent.session_id, identity.rights), ("h", Rights::HOST));
    assert!(registry.is_host("h") && !registry.is_host("w") && !registry.is_host("unknown"));

    assert_eq!(code_of(authenticate_as(&registry, &worker, AgentRef::new("h"))), Some(ErrorCode::NotYourName));
    let promoted = AgentRef::new("w").with_role("host");
    assert_eq!(code_of(authenticate_as(&registry, &worker, promoted)), Some(ErrorCode::NotYourRole));

    agents.folder.revoke("h").expect("a known agent");
    registry.refresh();
    assert!(!registry.is_host("h") && registry.knows("h"), "the name of a revoked host stays reserved");
}

#[test]
fn only_operators_may_claim_the_dead_letters_of_another_agent() {
    let agents = Agents::new();
    let worker = agents.add("w", "reader");
    agents.add("other", "reader");
    let add = |new: NewAgent<'_>| agents.folder.add(&new).expect("a new agent").token.expose().to_owned();
    let host = add(NewAgent { name: "h", role: "host", host: true, ..NewAgent::default() });
    let operator = add(NewAgent { name: "op", role: "operator", operator: true, ..NewAgent::default() });
    let registry = agents.registry();
    for token in [&worker, &host] {
        let refused = authenticate_as(&registry, token, AgentRef::new("other#dead"));
        assert_eq!(code_of(refused), Some(ErrorCode::NotYourName));
    }
    let reader = authenticate_as(&registry, &operator, AgentRef::new("other#dead")).expect("accepted");
    assert_eq!((&*reader.agent.session_id, reader.agent.role, reader.rights), ("other#dead", None, Rights::WORKER));
    for foreign in ["other", "other#mcp", "other#dead#x", "other-dead"] {
        let refused = authenticate_as(&registry, &operator, AgentRef::new(foreign));
        assert_eq!(code_of(refused), Some(ErrorCode::NotYourName), "{foreign}");
    }
    let own = authenticate_as(&registry, &operator, AgentRef::new("op#dead")).expect("accepted");
    assert_eq!((own.agent.role.as_deref(), own.rights), (Some("operator"), Rights::OPERATOR));
    let own = authenticate_as(&registry, &worker, AgentRef::new("~#dead")).expect("accepted");
    assert_eq!(&*own.agent.session_id, "w#dead");
}

#[test]
fn all_invalid_tokens_are_refused_with_the_same_message() {
    let agents = Agents::new();
    let (one, other) = (agents.add("one", "r"), agents.add("other", "r"));
    let registry = agents.registry();
    let (key, other_secret) = (&one[..14], &other[14..]);
    let wrong_last = format!("{}{}", &one[..one.len() - 1], if one.ends_with('0') { '1' } else { '0' });
    let bad = [
        String::new(),
        "tb_".into(),
        one[..one.len() - 1].to_owned(),
        format!("{one}0"),
        format!("{one} "),
        format!(" {one}"),
        one.replacen('_', " ", 1),
        one.to_uppercase(),
        format!("{key}{other_secret}"),
        format!("tb_aaaaaaaaaa_{other_secret}"),
        wrong_last,
        one.repeat(50_000),
        "ä".repeat(39),
        "a.b.c".into(),
    ];
    let message = authenticate(&registry, "x").expect_err("refused").reason;
    for token in &bad {
        let refusal = authenticate(&registry, token).expect_err("refused");
        assert_eq!((refusal.code, &refusal.reason), (ErrorCode::BadCredentials, &message));
    }
    assert!(authenticate(&registry, &one).is_ok());
}

#[test]
fn only_hashes_are_stored_in_a_private_file() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let text = agents.text();
    assert!(!text.contains(&token[14..]) && !text.contains(&token), "{text}");
    let mode = fs::metadata(agents.folder.file()).expect("present").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn revoking_ends_connections_within_a_second_and_refuses_the_agent() {
    let agents = Agents::new();
    let (token, other) = (agents.add("w", "reader"), agents.add("v", "reader"));
    let registry = agents.registry();
    let (first, second) =
        (authenticate(&registry, &token).expect("accepted"), authenticate(&registry, &token).expect("accepted"));
    let unaffected = authenticate(&registry, &other).expect("accepted");

    assert!(agents.folder.revoke("w").expect("a known agent"));
    let since = Instant::now();
    eventually("both standings to end", || first.standing.ended().is_some() && second.standing.ended().is_some());
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    assert_eq!(first.standing.ended(), Some(EndReason::Revoked));
    assert_eq!(code_of(authenticate(&registry, &token)), Some(ErrorCode::CredentialRevoked));
    assert_eq!(unaffected.standing.ended(), None);

    assert!(!agents.folder.revoke("w").expect("a known agent"), "it was already revoked");
    assert!(matches!(agents.folder.rotate("w", HOUR, None), Err(RegistryError::Revoked { .. })));
    let again = agents.add("w", "writer");
    registry.refresh();
    assert!(authenticate(&registry, &again).is_ok());
    assert_eq!(code_of(authenticate(&registry, &token)), Some(ErrorCode::BadCredentials));
}

#[test]
fn a_rotated_token_works_until_the_overlap_ends() {
    let agents = Agents::new();
    let old = agents.add("w", "reader");
    let registry = agents.registry();
    let live = authenticate(&registry, &old).expect("accepted");
    let overlap = Duration::from_millis(600);
    let new = agents.folder.rotate("w", overlap, None).expect("a known agent");
    registry.refresh();
    assert!(authenticate(&registry, &old).is_ok() && authenticate(&registry, new.token.expose()).is_ok());
    assert_eq!(live.standing.ended(), None);

    eventually("the overlap to end", || live.standing.ended().is_some());
    assert_eq!(live.standing.ended(), Some(EndReason::Revoked));
    assert_eq!(code_of(authenticate(&registry, &old)), Some(ErrorCode::CredentialRevoked));
    let current = authenticate(&registry, new.token.expose()).expect("the new token works");
    assert_eq!(current.standing.ended(), None);
}

#[test]
fn a_token_expires_after_its_lifetime_and_a_rotated_one_inherits_it() {
    let agents = Agents::new();
    let lifetime = Some(Duration::from_millis(300));
    let short =
        agents.folder.add(&NewAgent { name: "w", role: "r", lifetime, ..NewAgent::default() }).expect("a new agent");
    let registry = agents.registry();
    let live = authenticate(&registry, short.token.expose()).expect("accepted");
    eventually("the token to expire", || live.standing.ended() == Some(EndReason::Expired));
    assert_eq!(code_of(authenticate(&registry, short.token.expose())), Some(ErrorCode::CredentialExpired));

    let next = agents.folder.rotate("w", Duration::ZERO, None).expect("a known agent");
    let (expires, key) = (next.expires.expect("an expiry time"), agents.folder.list().expect("readable"));
    let created = key[0].keys.last().expect("the new key").created;
    assert_eq!(expires.duration_since(created).as_millis(), 300);
    let far = agents.folder.rotate("w", Duration::MAX, None);
    assert!(matches!(far, Err(RegistryError::TooFarAhead)), "{far:?}");
}

#[test]
fn the_list_shows_agents_and_keys_without_secrets() {
    let agents = Agents::new();
    agents.add("w", "reader");
    agents.folder.rotate("w", HOUR, Some(2 * HOUR)).expect("a known agent");
    let list = agents.folder.list().expect("readable");
    let [agent] = &list[..] else { panic!("{list:?}") };
    assert_eq!((&*agent.name, &*agent.role, agent.host, agent.revoked), ("w", "reader", false, None));
    let [old, new] = &agent.keys[..] else { panic!("{agent:?}") };
    assert!(old.is_valid && old.valid_until.is_some() && old.expires.is_none());
    assert!(new.is_valid && new.valid_until.is_none() && new.expires.is_some());
    for _ in 0..20 {
        agents.folder.rotate("w", Duration::ZERO, None).expect("a known agent");
    }
    assert!(agents.folder.list().expect("readable")[0].keys.len() <= 8, "old keys are removed");
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported_with_its_position() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let registry = agents.registry();
    let live = authenticate(&registry, &token).expect("accepted");
    let good = agents.text();
    let truncated = format!("{}{}", &good[..good.len() / 2], "\u{0}");
    let duplicate_name = good.replace(
        "\"agents\": [",
        "\"agents\": [{\"name\":\"w\",\"role\":\"r\",\"created\":\"2026-01-01T00:00:00Z\",\"keys\":[]},",
    );
    for bad in [
        "",
        "{",
        "{\"version\":1,\"agents\":[],\"more\":1}",
        "{\"version\":2,\"agents\":[]}",
        &truncated,
        &duplicate_name,
    ] {
        fs::write(agents.folder.file(), bad).expect("written");
        registry.refresh();
        assert!(authenticate(&registry, &token).is_ok() && live.standing.ended().is_none(), "{bad}");
        let error = agents.folder.list().expect_err("an invalid file").to_string();
        assert!(["line ", "version 2", "agent 2"].iter().any(|position| error.contains(position)), "{error}");
        assert!(
            matches!(agents.folder.revoke("w"), Err(RegistryError::Bad { .. })),
            "an invalid file is not overwritten"
        );
    }
    fs::remove_file(agents.folder.file()).expect("removed");
    registry.refresh();
    assert!(authenticate(&registry, &token).is_ok());
    fs::write(agents.folder.file(), good.replace("\"reader\"", "\"writer\"")).expect("written");
    registry.refresh();
    assert_eq!(live.standing.ended(), Some(EndReason::Revoked), "another role is a different identity");
    assert_eq!(authenticate(&registry, &token).expect("accepted").agent.role.as_deref(), Some("writer"));
}

/// Replaces a part of agents.json that `live` was authenticated with, and expects that its connections end.
fn ends_connections(change: (&str, &str), rights: Rights) {
    let agents = Agents::new();
    let new = NewAgent { name: "w", role: "reader", host: true, operator: true, ..NewAgent::default() };
    let token = agents.folder.add(&new).expect("a new agent").token;
    let registry = agents.registry();
    let live = authenticate(&registry, token.expose()).expect("accepted");
    let changed = agents.text().replace(change.0, change.1);
    assert_ne!(changed, agents.text());
    fs::write(agents.folder.file(), changed).expect("written");
    registry.refresh();
    assert_eq!(live.standing.ended(), Some(EndReason::Revoked), "{change:?}");
    let again = authenticate(&registry, token.expose()).expect("accepted");
    assert_eq!((again.standing.ended(), again.rights), (None, rights), "{change:?}");
}

#[test]
fn connections_end_when_a_right_of_their_agent_changes() {
    ends_connections(("\"host\": true", "\"host\": false"), Rights::OPERATOR);
    ends_connections(("\"operator\": true", "\"operator\": false"), Rights::HOST);
}

#[test]
fn a_changed_expiry_time_counts_for_the_next_connection() {
    let agents = Agents::new();
    let lifetime = Some(HOUR);
    let new = NewAgent { name: "w", role: "r", lifetime, ..NewAgent::default() };
    let token = agents.folder.add(&new).expect("a new agent").token;
    let registry = agents.registry();
    let live = authenticate(&registry, token.expose()).expect("accepted");
    let text = agents.text();
    let (head, tail) = text.split_once("\"expires\": \"").expect("an expiry time");
    let (_, tail) = tail.split_once('"').expect("the end of the value");
    fs::write(agents.folder.file(), format!("{head}\"expires\": \"2999-01-01T00:00:00Z\"{tail}")).expect("written");
    registry.refresh();
    let renewed = authenticate(&registry, token.expose()).expect("accepted");
    assert!(renewed.standing.expires() > live.standing.expires(), "{renewed:?}");
    agents.folder.revoke("w").expect("a known agent");
    registry.refresh();
    assert_eq!((live.standing.ended(), renewed.standing.ended()), (Some(EndReason::Revoked), Some(EndReason::Revoked)));
}

#[test]
fn invalid_names_and_roles_can_not_be_added() {
    let agents = Agents::new();
    let add = |name, role| agents.folder.add(&NewAgent { name, role, ..NewAgent::default() });
    for name in ["", "a#b", "~", "a\u{202e}b", "../w", "a\nb", "\u{feff}w"] {
        assert!(matches!(add(name, "r"), Err(RegistryError::BadName { .. })), "{name:?}");
    }
    for name in ["bob smith", " bob", "bob\u{a0}smith"] {
        let error = add(name, "r").expect_err("a blank");
        assert!(matches!(error, RegistryError::BlankInName { .. }), "{name:?}: {error}");
    }
    for role in ["", "r\u{200b}", "a/b", "r\u{7}"] {
        assert!(matches!(add("w", role), Err(RegistryError::BadRole { .. })), "{role:?}");
    }
    assert!(add("wörker", "rôle").is_ok());
    assert!(matches!(add("wörker", "rôle"), Err(RegistryError::Exists { .. })));
    assert!(matches!(agents.folder.revoke("worker"), Err(RegistryError::Unknown { .. })));
}

#[test]
fn a_new_agent_gets_no_name_of_an_issuer_and_none_that_looks_like_one_of_the_machine() {
    let folder = TempDir::new().expect("a folder");
    let agents = AgentsFolder::new(folder.path());
    let add = |name| agents.add(&NewAgent { name, role: "r", ..NewAgent::default() });
    for name in ["jwt:alice", "JWT:alice", "Jwt:", "cert:alice", "CERT:x", "Operator", "LOCAL", "hoſt"] {
        let error = add(name).expect_err(name);
        assert!(matches!(error, RegistryError::ReservedName { .. }), "{name:?}: {error}");
    }
    for name in ["jwt", "certain", "x:jwt:y", "operators", "local"] {
        assert!(add(name).is_ok(), "{name}");
    }
}

#[test]
fn concurrent_writers_are_serialised() {
    let agents = Agents::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let folder = &agents.folder;
            scope.spawn(move || {
                for n in 0..10 {
                    let name = format!("w{writer}-{n}");
                    folder.add(&NewAgent { name: &name, role: "r", ..NewAgent::default() }).expect("added");
                }
            });
        }
    });
    assert_eq!(agents.folder.list().expect("readable").len(), 40);
}

#[test]
fn a_hundred_thousand_invalid_tokens_use_no_memory() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let registry = agents.registry();
    let attack = |from: u32| {
        for n in from..from + 50_000 {
            let forged = format!("tb_{n:0>10}_{n:0>64}");
            assert_eq!(code_of(authenticate(&registry, &forged)), Some(ErrorCode::BadCredentials));
        }
    };
    attack(0);
    let before = resident_bytes();
    attack(50_000);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 2 << 20, "{grown} bytes more");
    assert!(authenticate(&registry, &token).is_ok());
}

/// The mailboxes of a cluster write to a remote log, which must not be awaited in a task.
#[test]
fn a_new_token_is_accepted_in_a_task_while_the_follower_waits_for_a_runtime() {
    let agents = Agents::new();
    let registry = agents.registry();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let handle = other.handle().clone();
    registry.follow_agents(Arc::new(move |_| {
        handle.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
        true
    }));
    let tasks = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for name in ["ana", "bo"] {
        let token = agents.add(name, "reader");
        tasks.block_on(async { assert!(authenticate(&registry, &token).is_ok(), "{name}") });
    }
}
