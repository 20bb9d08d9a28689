//! Tokens of our own: added, listed, rotated, revoked, expired, forged.

use crate::support::{ask, code_of, enter, eventually, resident_bytes};
use std::fs;
use std::os::unix::fs::PermissionsExt;
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
        self.folder.add(&new).expect("it is new").token.expose().to_owned()
    }

    fn registry(&self) -> Registry {
        Registry::open(self.dir.path()).expect("it can be read")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.folder.file()).expect("it is there")
    }
}

#[test]
fn a_token_lets_in_its_agent_with_its_role_and_rights_and_nobody_else() {
    let agents = Agents::new();
    let worker = agents.add("w", "reader");
    let host = NewAgent { name: "h", role: "host", host: true, ..NewAgent::default() };
    let host = agents.folder.add(&host).expect("it is new");
    let registry = agents.registry();

    let identity = ask(&registry, &worker, AgentRef::new("w#x")).expect("it may");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("w#x", Some("reader")));
    assert_eq!(identity.rights, Rights::WORKER);
    let identity = enter(&registry, host.token.expose()).expect("it may");
    assert_eq!((&*identity.agent.session_id, identity.rights), ("h", Rights::HOST));
    assert!(registry.is_host("h") && !registry.is_host("w") && !registry.is_host("nobody"));

    assert_eq!(code_of(ask(&registry, &worker, AgentRef::new("h"))), Some(ErrorCode::NotYourName));
    let promoted = AgentRef::new("w").with_role("host");
    assert_eq!(code_of(ask(&registry, &worker, promoted)), Some(ErrorCode::NotYourRole));
}

#[test]
fn whatever_is_not_the_whole_token_is_refused_in_the_same_words() {
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
    let words = enter(&registry, "x").expect_err("no token").reason;
    for token in &bad {
        let refusal = enter(&registry, token).expect_err("it is not the token");
        assert_eq!((refusal.code, &refusal.reason), (ErrorCode::BadCredentials, &words));
    }
    assert!(enter(&registry, &one).is_ok());
}

#[test]
fn only_hashes_are_kept_and_only_for_the_owner() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let text = agents.text();
    assert!(!text.contains(&token[14..]) && !text.contains(&token), "{text}");
    let mode = fs::metadata(agents.folder.file()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn revoking_ends_live_connections_within_a_second_and_shuts_the_agent_out() {
    let agents = Agents::new();
    let (token, other) = (agents.add("w", "reader"), agents.add("v", "reader"));
    let registry = agents.registry();
    let (first, second) = (enter(&registry, &token).expect("in"), enter(&registry, &token).expect("in"));
    let unconcerned = enter(&registry, &other).expect("in");

    assert!(agents.folder.revoke("w").expect("it is known"));
    let since = Instant::now();
    eventually("both to be ended", || first.standing.ended().is_some() && second.standing.ended().is_some());
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    assert_eq!(first.standing.ended(), Some(EndReason::Revoked));
    assert_eq!(code_of(enter(&registry, &token)), Some(ErrorCode::CredentialRevoked));
    assert_eq!(unconcerned.standing.ended(), None);

    assert!(!agents.folder.revoke("w").expect("it is known"), "it was revoked before");
    assert!(matches!(agents.folder.rotate("w", HOUR, None), Err(RegistryError::Revoked { .. })));
    let again = agents.add("w", "writer");
    registry.refresh();
    assert!(enter(&registry, &again).is_ok());
    assert_eq!(code_of(enter(&registry, &token)), Some(ErrorCode::BadCredentials));
}

#[test]
fn a_rotated_token_works_for_the_overlap_and_is_ended_after_it() {
    let agents = Agents::new();
    let old = agents.add("w", "reader");
    let registry = agents.registry();
    let live = enter(&registry, &old).expect("in");
    let overlap = Duration::from_millis(600);
    let new = agents.folder.rotate("w", overlap, None).expect("it is known");
    registry.refresh();
    assert!(enter(&registry, &old).is_ok() && enter(&registry, new.token.expose()).is_ok());
    assert_eq!(live.standing.ended(), None);

    eventually("the overlap to end", || live.standing.ended().is_some());
    assert_eq!(live.standing.ended(), Some(EndReason::Revoked));
    assert_eq!(code_of(enter(&registry, &old)), Some(ErrorCode::CredentialRevoked));
    let stays = enter(&registry, new.token.expose()).expect("the new one works on");
    assert_eq!(stays.standing.ended(), None);
}

#[test]
fn a_token_ends_with_its_lifetime_and_a_rotated_one_gets_the_same() {
    let agents = Agents::new();
    let lifetime = Some(Duration::from_millis(300));
    let short = agents.folder.add(&NewAgent { name: "w", role: "r", lifetime, ..NewAgent::default() }).expect("new");
    let registry = agents.registry();
    let live = enter(&registry, short.token.expose()).expect("in");
    eventually("its end", || live.standing.ended() == Some(EndReason::Expired));
    assert_eq!(code_of(enter(&registry, short.token.expose())), Some(ErrorCode::CredentialExpired));

    let next = agents.folder.rotate("w", Duration::ZERO, None).expect("it is known");
    let (expires, key) = (next.expires.expect("as before"), agents.folder.list().expect("readable"));
    let created = key[0].keys.last().expect("the new key").created;
    assert_eq!(expires.duration_since(created).as_millis(), 300);
    let far = agents.folder.rotate("w", Duration::MAX, None);
    assert!(matches!(far, Err(RegistryError::TooFarAhead)), "{far:?}");
}

#[test]
fn what_is_listed_says_everything_but_secrets() {
    let agents = Agents::new();
    agents.add("w", "reader");
    agents.folder.rotate("w", HOUR, Some(2 * HOUR)).expect("known");
    let list = agents.folder.list().expect("readable");
    let [agent] = &list[..] else { panic!("{list:?}") };
    assert_eq!((&*agent.name, &*agent.role, agent.host, agent.revoked), ("w", "reader", false, None));
    let [old, new] = &agent.keys[..] else { panic!("{agent:?}") };
    assert!(old.is_valid && old.valid_until.is_some() && old.expires.is_none());
    assert!(new.is_valid && new.valid_until.is_none() && new.expires.is_some());
    for _ in 0..20 {
        agents.folder.rotate("w", Duration::ZERO, None).expect("known");
    }
    assert!(agents.folder.list().expect("readable")[0].keys.len() <= 8, "old keys go");
}

#[test]
fn a_file_that_cannot_be_read_changes_nothing_and_is_told_with_its_place() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let registry = agents.registry();
    let live = enter(&registry, &token).expect("in");
    let good = agents.text();
    let twice = format!("{}{}", &good[..good.len() / 2], "\u{0}");
    let named_twice = good.replace(
        "\"agents\": [",
        "\"agents\": [{\"name\":\"w\",\"role\":\"r\",\"created\":\"2026-01-01T00:00:00Z\",\"keys\":[]},",
    );
    for bad in
        ["", "{", "{\"version\":1,\"agents\":[],\"more\":1}", "{\"version\":2,\"agents\":[]}", &twice, &named_twice]
    {
        fs::write(agents.folder.file(), bad).expect("written");
        registry.refresh();
        assert!(enter(&registry, &token).is_ok() && live.standing.ended().is_none(), "{bad}");
        let error = agents.folder.list().expect_err("it is bad").to_string();
        assert!(["line ", "version 2", "agent 2"].iter().any(|place| error.contains(place)), "{error}");
        assert!(matches!(agents.folder.revoke("w"), Err(RegistryError::Bad { .. })), "a bad file is not written over");
    }
    fs::remove_file(agents.folder.file()).expect("removed");
    registry.refresh();
    assert!(enter(&registry, &token).is_ok());
    fs::write(agents.folder.file(), good.replace("\"reader\"", "\"writer\"")).expect("written");
    registry.refresh();
    assert_eq!(live.standing.ended(), Some(EndReason::Revoked), "another role is another identity");
    assert_eq!(enter(&registry, &token).expect("in").agent.role.as_deref(), Some("writer"));
}

#[test]
fn odd_names_and_roles_are_refused_when_they_are_added() {
    let agents = Agents::new();
    let add = |name, role| agents.folder.add(&NewAgent { name, role, ..NewAgent::default() });
    for name in ["", "a#b", "~", "a\u{202e}b", "../w", "a\nb", "\u{feff}w"] {
        assert!(matches!(add(name, "r"), Err(RegistryError::BadName { .. })), "{name:?}");
    }
    for role in ["", "r\u{200b}", "a/b", "r\u{7}"] {
        assert!(matches!(add("w", role), Err(RegistryError::BadRole { .. })), "{role:?}");
    }
    assert!(add("wörker", "rôle").is_ok());
    assert!(matches!(add("wörker", "rôle"), Err(RegistryError::Exists { .. })));
    assert!(matches!(agents.folder.revoke("worker"), Err(RegistryError::Unknown { .. })));
}

#[test]
fn writers_take_turns() {
    let agents = Agents::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let folder = &agents.folder;
            scope.spawn(move || {
                for n in 0..10 {
                    let name = format!("w{writer}-{n}");
                    folder.add(&NewAgent { name: &name, role: "r", ..NewAgent::default() }).expect("its turn comes");
                }
            });
        }
    });
    assert_eq!(agents.folder.list().expect("readable").len(), 40);
}

#[test]
fn a_hundred_thousand_bad_tokens_leave_nothing_behind() {
    let agents = Agents::new();
    let token = agents.add("w", "reader");
    let registry = agents.registry();
    let attack = |from: u32| {
        for n in from..from + 50_000 {
            let forged = format!("tb_{n:0>10}_{n:0>64}");
            assert_eq!(code_of(enter(&registry, &forged)), Some(ErrorCode::BadCredentials));
        }
    };
    attack(0);
    let before = resident_bytes();
    attack(50_000);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 2 << 20, "{grown} bytes more");
    assert!(enter(&registry, &token).is_ok());
}
