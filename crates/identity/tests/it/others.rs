//! Certificates, the chain that chooses whom to ask, and the configuration of both.

use crate::issuer::{Key, claims, with};
use crate::support::{code_of, enter};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use std::path::Path;
use tempfile::TempDir;
use toolbus_identity::{
    AgentsFolder, AuthRefusal, Authenticator, CertificateAuthenticator, CertificateConfig, Chain, Credential, Identity,
    JwtAuthenticator, KeysFrom, NameField, NewAgent, Pattern, Registry, Rights, read_auth,
};
use toolbus_protocol::{AgentRef, ErrorCode};

fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    change(&mut params);
    params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate").der().to_vec()
}

fn named(name: &str, unit: &str) -> Vec<u8> {
    certificate(|params| {
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    })
}

fn show(known: &dyn Authenticator, der: &[u8]) -> Result<Identity, AuthRefusal> {
    known.authenticate(&Credential { token: "", certificate: Some(der), claimed: &AgentRef::new("~") })
}

fn settings(text: &str) -> CertificateConfig {
    let text = format!("[auth.certificates]\n{text}");
    read_auth(&text, Path::new(".")).expect("it is right").certificates.expect("it is there")
}

fn by(text: &str) -> CertificateAuthenticator {
    CertificateAuthenticator::new(settings(text))
}

#[test]
fn a_certificate_is_a_name_and_a_role_until_it_ends() {
    let identity = show(&by(""), &named("agent-7", "reader")).expect("in");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("agent-7", Some("reader")));
    assert_eq!(identity.rights, Rights::WORKER);
    assert!(identity.standing.expires().is_some());

    let table = by("roles = { \"agent-7\" = \"writer\", \"agent-*\" = \"guest\" }\nhosts = [\"agent-8\"]");
    let role = |name| show(&table, &named(name, "reader")).expect("in").agent.role;
    assert_eq!(role("agent-7").as_deref(), Some("writer"));
    assert_eq!(role("agent-9").as_deref(), Some("guest"));
    assert_eq!(role("other"), None, "the OU counts only where it is asked for");
    assert_eq!(show(&table, &named("agent-8", "x")).expect("in").rights, Rights::HOST);
    assert!(table.is_host("agent-8") && !table.is_host("agent-7"));
}

#[test]
fn names_may_come_from_the_alternative_names() {
    let der = certificate(|params| {
        let uri = SanType::URI("spiffe://corp.example/agent-7".try_into().expect("ASCII"));
        let dns = SanType::DnsName("agent-8.example".try_into().expect("ASCII"));
        params.subject_alt_names = vec![uri, dns, SanType::Rfc822Name("agent@example".try_into().expect("ASCII"))];
    });
    let name = |text| show(&by(text), &der).map(|identity| identity.agent.session_id.to_string());
    assert_eq!(name("name = \"uri\"\nprefix = \"spiffe://corp.example/\"").as_deref(), Ok("agent-7"));
    assert_eq!(name("name = \"dns\"").as_deref(), Ok("agent-8.example"));
    assert_eq!(name("name = \"email\"").as_deref(), Ok("agent@example"));
    for wrong in ["name = \"uri\"", "name = \"uri\"\nprefix = \"spiffe://other/\"", "name = \"cn\""] {
        assert_eq!(name(wrong).expect_err(wrong).code, ErrorCode::BadCredentials);
    }
}

#[test]
fn odd_ended_or_unreadable_certificates_are_refused() {
    let known = by("");
    for (name, unit) in [("a#b", "r"), ("~", "r"), ("a/b", "r"), ("a\u{202e}b", "r"), ("a", "r\u{200b}")] {
        assert_eq!(code_of(show(&known, &named(name, unit))), Some(ErrorCode::BadCredentials), "{name:?} {unit:?}");
    }
    let ended = certificate(|params| {
        params.distinguished_name.push(DnType::CommonName, "a");
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    assert_eq!(code_of(show(&known, &ended)), Some(ErrorCode::CredentialExpired));
    assert_eq!(code_of(show(&known, &ended[..ended.len() / 2])), Some(ErrorCode::BadCredentials));
    assert_eq!(code_of(show(&known, b"")), Some(ErrorCode::BadCredentials));
}

#[test]
fn what_is_shown_decides_who_is_asked_and_names_of_the_registry_stay_its_own() {
    let folder = TempDir::new().expect("a folder");
    let agents = AgentsFolder::new(folder.path());
    let ours = agents.add(&NewAgent { name: "ours", role: "r", ..NewAgent::default() }).expect("new").token;
    let key = Key::ed();
    let text = "[auth.jwt]\nissuer = \"https://id.example\"\naudience = \"toolbus\"\nkeys = \"EdDSA.pem\"";
    key.public_pem(folder.path());
    let jwt = read_auth(text, folder.path()).expect("right").jwt.expect("there");
    let chain = Chain {
        registry: Registry::open(folder.path()).expect("readable"),
        jwt: Some(JwtAuthenticator::new(jwt).expect("a key")),
        certificates: Some(by("hosts = \"gate\"")),
    };
    let name = |identity: Identity| identity.agent.session_id.to_string();
    assert_eq!(enter(&chain, ours.expose()).map(name).as_deref(), Ok("ours"));
    assert_eq!(enter(&chain, &key.token("k", &claims())).map(name).as_deref(), Ok("alice"));
    assert_eq!(show(&chain, &named("bob", "r")).map(name).as_deref(), Ok("bob"));
    assert!(chain.is_host("gate") && !chain.is_host("bob"));

    let taken = key.token("k", &with("sub", "ours"));
    assert_eq!(code_of(enter(&chain, &taken)), Some(ErrorCode::NotYourName));
    assert_eq!(code_of(show(&chain, &named("ours", "r"))), Some(ErrorCode::NotYourName));
    for token in ["", "x", "a.b", "a.b.c.d", "tb_", "tb_a.b.c"] {
        assert_eq!(code_of(enter(&chain, token)), Some(ErrorCode::BadCredentials), "{token}");
    }
    // A token that is wrong is not made good by a certificate.
    let both = Credential { token: "tb_x", certificate: Some(&named("bob", "r")), claimed: &AgentRef::new("~") };
    assert_eq!(code_of(chain.authenticate(&both)), Some(ErrorCode::BadCredentials));

    let alone = Chain { jwt: None, certificates: None, ..chain };
    assert!(enter(&alone, &key.token("k", &claims())).is_err() && show(&alone, &named("bob", "r")).is_err());
    assert!(enter(&alone, ours.expose()).is_ok());
}

#[test]
fn the_configuration_is_read_as_it_stands() {
    let text = "listen = \"x\"\n[auth.jwt]\nissuer = \"i\"\naudience = [\"a\", \"b\"]\njwks_url = \"https://id.example/k\"\n\
                refresh = \"10m\"\nname_claim = \"email\"\nroles = { \"z\" = \"first\", \"a\" = \"second\" }\nhosts = [\"h*\"]\n\
                [auth.certificates]\nname = \"dns\"\nrole = \"ou\"\nroles = { \"*\" = \"r\" }\n";
    let auth = read_auth(text, Path::new("/etc")).expect("it is right");
    let jwt = auth.jwt.expect("there");
    assert_eq!((&*jwt.issuer, &*jwt.name_claim, &*jwt.role_claim), ("i", "email", "role"));
    assert_eq!(jwt.audiences, ["a", "b"]);
    assert_eq!(jwt.roles[0], ("z".into(), "first".into()), "in the order of the file");
    let KeysFrom::JwksUrl { url, refresh } = jwt.keys else { panic!("{:?}", jwt.keys) };
    assert_eq!((url.to_string().as_str(), refresh.as_secs()), ("https://id.example/k", 600));
    let certificates = auth.certificates.expect("there");
    assert_eq!((certificates.name, certificates.role_from_unit), (NameField::Dns, true));
    assert_eq!(certificates.roles, [(Pattern::new("*").expect("a pattern"), "r".to_owned())]);
    let file = "[auth.jwt]\nissuer=\"i\"\naudience=\"a\"\njwks_file = \"k.json\"";
    let keys = read_auth(file, Path::new("/etc")).expect("right").jwt.expect("there").keys;
    assert_eq!(keys, KeysFrom::JwksFile("/etc/k.json".into()));
    assert_eq!(read_auth("[roles.r]", Path::new(".")).expect("nothing about it"), Default::default());
}

#[test]
fn mistakes_in_the_configuration_have_a_place_and_a_hint() {
    let check = |text: &str, expected: &str| {
        let error = read_auth(text, Path::new(".")).expect_err(text);
        assert_eq!(format!("{error} / {}", error.hint()), expected);
    };
    check("[auth\n", "line 1, column 6: unclosed table, expected `]` / correct the file at that place");
    check("auth = 1", "line 1, column 8: auth has to be a table / correct the value");
    check("[auth.jwd]\n", "line 1, column 7: unknown key \"jwd\" in [auth] / did you mean jwt?");
    check("[auth.jwt]\nisuer = \"x\"", "line 2, column 1: unknown key \"isuer\" in [auth.jwt] / did you mean issuer?");
    check("[auth.jwt]\naudience = \"a\"", "line 1, column 1: [auth.jwt] has no issuer / add it");
    check(
        "[auth.jwt]\nissuer = \"i\"\nkeys = []",
        "line 1, column 1: [auth.jwt] has no audience / name what tokens for this bus are issued for: tokens for others \
         must not be good here",
    );
    let jwt = "[auth.jwt]\nissuer = \"i\"\naudience = \"a\"\n";
    check(jwt, "line 1, column 1: [auth.jwt] has no keys, jwks_file or jwks_url / add it");
    check(
        &format!("{jwt}jwks_url = \"http://id.example\""),
        "line 4, column 12: auth.jwt.jwks_url has to be a URL that begins with https:// / correct the value",
    );
    check(
        &format!("{jwt}jwks_file = \"f\"\nkeys = [\"k\"]"),
        "line 4, column 13: auth.jwt.jwks_file has to be given alone: one of keys, jwks_file and jwks_url / correct the value",
    );
    check(
        &format!("{jwt}keys = [\"k\"]\nrefresh = \"5m\""),
        "line 5, column 11: auth.jwt.refresh has to be left out: it is about jwks_url / correct the value",
    );
    check(
        &format!("{jwt}keys = [\"k\"]\nhosts = [\"[\"]"),
        "line 5, column 9: auth.jwt.hosts can't be used: \"[\" is no pattern: unclosed character class; missing ']' / \
         correct the value",
    );
    check(
        "[auth.certificates]\nname = \"sn\"",
        "line 2, column 8: auth.certificates.name has to be \"cn\", \"dns\", \"uri\" or \"email\" / correct the value",
    );
    check(
        "[auth.certificates]\nroles = { \"*\" = \"a/b\" }",
        "line 2, column 9: auth.certificates.roles can't be used: the role \"a/b\": it contains a slash or is a dot path / correct the value",
    );
}
