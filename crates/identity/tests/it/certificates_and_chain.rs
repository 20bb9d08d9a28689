//! Certificates, the chain of authenticators, and the configuration of both.

use crate::issuer::{Key, claims, with};
use crate::support::{authenticate, code_of};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use std::path::Path;
use tempfile::TempDir;
use toolbus_config::{ConfigError, Document};
use toolbus_identity::{
    AgentsFolder, AuthConfig, AuthRefusal, Authenticator, CertificateAuthenticator, CertificateConfig, Chain,
    Credential, Identity, JwtAuthenticator, KeysFrom, NameField, NewAgent, Pattern, Registry, Rights,
};
use toolbus_protocol::{AgentRef, ErrorCode};

fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    change(&mut params);
    params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate").der().to_vec()
}

pub fn certificate_for(name: &str, unit: &str) -> Vec<u8> {
    certificate(|params| {
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    })
}

pub fn authenticate_certificate(authenticator: &dyn Authenticator, der: &[u8]) -> Result<Identity, AuthRefusal> {
    authenticator.authenticate(&Credential { token: "", certificate: Some(der), claimed: &AgentRef::new("~") })
}

fn settings(text: &str) -> CertificateConfig {
    let text = format!("[auth.certificates]\nqualifier = \"\"\n{text}");
    read_auth(&text, Path::new(".")).expect("valid").certificates.expect("present")
}

fn authenticator(text: &str) -> CertificateAuthenticator {
    CertificateAuthenticator::new(settings(text))
}

#[test]
fn a_certificate_yields_a_name_and_a_role_until_it_expires() {
    let identity =
        authenticate_certificate(&authenticator(""), &certificate_for("agent-7", "reader")).expect("accepted");
    assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("agent-7", Some("reader")));
    assert_eq!(identity.rights, Rights::WORKER);
    assert!(identity.standing.expires().is_some());

    let table = authenticator("roles = { \"agent-7\" = \"writer\", \"agent-*\" = \"guest\" }\nhosts = [\"agent-8\"]");
    let role = |name| authenticate_certificate(&table, &certificate_for(name, "reader")).expect("accepted").agent.role;
    assert_eq!(role("agent-7").as_deref(), Some("writer"));
    assert_eq!(role("agent-9").as_deref(), Some("guest"));
    assert_eq!(role("other"), None, "the OU is used only if configured");
    assert_eq!(
        authenticate_certificate(&table, &certificate_for("agent-8", "x")).expect("accepted").rights,
        Rights::HOST
    );
    assert!(table.is_host("agent-8") && !table.is_host("agent-7"));
}

#[test]
fn the_roles_of_the_brokers_own_agents_can_only_be_mapped_explicitly() {
    let by_unit = authenticator("");
    let mapped = authenticator("roles = { \"agent-7\" = \"operator\" }");
    for unit in ["operator", "local", "host"] {
        let identity = authenticate_certificate(&by_unit, &certificate_for("agent-7", unit)).expect("accepted");
        assert_eq!((identity.agent.role, identity.rights), (None, Rights::WORKER), "{unit}");
    }
    let identity = authenticate_certificate(&mapped, &certificate_for("agent-7", "reader")).expect("accepted");
    assert_eq!((identity.agent.role.as_deref(), identity.rights), (Some("operator"), Rights::WORKER));
}

#[test]
fn a_certificate_with_several_units_has_no_role() {
    let der = certificate(|params| {
        params.distinguished_name.push(DnType::CommonName, "agent-7");
        params.distinguished_name.push(DnType::OrganizationalUnitName, "reader");
        // By its number, since a type replaces an earlier entry of the same type.
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 11]), "writer");
    });
    assert_eq!(authenticate_certificate(&authenticator(""), &der).expect("accepted").agent.role, None);
}

#[test]
fn names_may_come_from_subject_alternative_names() {
    let der = certificate(|params| {
        let uri = SanType::URI("spiffe://corp.example/agent-7".try_into().expect("ASCII"));
        let dns = SanType::DnsName("agent-8.example".try_into().expect("ASCII"));
        params.subject_alt_names = vec![uri, dns, SanType::Rfc822Name("agent@example".try_into().expect("ASCII"))];
    });
    let name = |text| {
        authenticate_certificate(&authenticator(text), &der).map(|identity| identity.agent.session_id.to_string())
    };
    assert_eq!(name("name = \"uri\"\nprefix = \"spiffe://corp.example/\"").as_deref(), Ok("agent-7"));
    assert_eq!(name("name = \"dns\"").as_deref(), Ok("agent-8.example"));
    assert_eq!(name("name = \"email\"").as_deref(), Ok("agent@example"));
    for wrong in ["name = \"uri\"", "name = \"uri\"\nprefix = \"spiffe://other/\"", "name = \"cn\""] {
        assert_eq!(name(wrong).expect_err(wrong).code, ErrorCode::BadCredentials);
    }
}

#[test]
fn certificates_with_bad_names_expired_or_malformed_are_refused() {
    let strict = authenticator("");
    for (name, unit) in [("a#b", "r"), ("~", "r"), ("a/b", "r"), ("a\u{202e}b", "r"), ("a", "r\u{200b}")] {
        assert_eq!(
            code_of(authenticate_certificate(&strict, &certificate_for(name, unit))),
            Some(ErrorCode::BadCredentials),
            "{name:?} {unit:?}"
        );
    }
    let expired = certificate(|params| {
        params.distinguished_name.push(DnType::CommonName, "a");
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    assert_eq!(code_of(authenticate_certificate(&strict, &expired)), Some(ErrorCode::CredentialExpired));
    assert_eq!(
        code_of(authenticate_certificate(&strict, &expired[..expired.len() / 2])),
        Some(ErrorCode::BadCredentials)
    );
    assert_eq!(code_of(authenticate_certificate(&strict, b"")), Some(ErrorCode::BadCredentials));
}

#[test]
fn the_credential_selects_the_authenticator_and_registered_names_are_reserved() {
    let folder = TempDir::new().expect("a folder");
    let agents = AgentsFolder::new(folder.path());
    let ours = agents.add(&NewAgent { name: "ours", role: "r", ..NewAgent::default() }).expect("a new agent").token;
    let key = Key::ed();
    let text =
        "[auth.jwt]\nissuer = \"https://id.example\"\naudience = \"toolbus\"\nkeys = \"EdDSA.pem\"\nqualifier = \"\"";
    key.public_pem(folder.path());
    let jwt = read_auth(text, folder.path()).expect("valid").jwt.expect("present");
    let chain = Chain {
        registry: Registry::open(folder.path()).expect("readable"),
        jwt: Some(JwtAuthenticator::new(jwt).expect("a key")),
        certificates: Some(authenticator("hosts = \"gate\"")),
    };
    let name = |identity: Identity| identity.agent.session_id.to_string();
    assert_eq!(authenticate(&chain, ours.expose()).map(name).as_deref(), Ok("ours"));
    assert_eq!(authenticate(&chain, &key.token("k", &claims())).map(name).as_deref(), Ok("alice"));
    assert_eq!(authenticate_certificate(&chain, &certificate_for("bob", "r")).map(name).as_deref(), Ok("bob"));
    assert!(chain.is_host("gate") && !chain.is_host("bob"));

    let reserved = key.token("k", &with("sub", "ours"));
    assert_eq!(code_of(authenticate(&chain, &reserved)), Some(ErrorCode::NotYourName));
    assert_eq!(code_of(authenticate_certificate(&chain, &certificate_for("ours", "r"))), Some(ErrorCode::NotYourName));
    for token in ["", "x", "a.b", "a.b.c.d", "tb_", "tb_a.b.c"] {
        assert_eq!(code_of(authenticate(&chain, token)), Some(ErrorCode::BadCredentials), "{token}");
    }
    // A valid certificate does not make up for an invalid token.
    let both =
        Credential { token: "tb_x", certificate: Some(&certificate_for("bob", "r")), claimed: &AgentRef::new("~") };
    assert_eq!(code_of(chain.authenticate(&both)), Some(ErrorCode::BadCredentials));

    let registry_only = Chain { jwt: None, certificates: None, ..chain };
    assert!(
        authenticate(&registry_only, &key.token("k", &claims())).is_err()
            && authenticate_certificate(&registry_only, &certificate_for("bob", "r")).is_err()
    );
    assert!(authenticate(&registry_only, ours.expose()).is_ok());
}

pub fn read_auth(text: &str, folder: &Path) -> Result<AuthConfig, ConfigError> {
    toolbus_identity::read_auth(&Document::parse_toml(text)?, folder)
}

#[test]
fn all_keys_of_the_configuration_are_read() {
    let text = "listen = \"x\"\n[auth.jwt]\nissuer = \"i\"\naudience = [\"a\", \"b\"]\njwks_url = \"https://id.example/k\"\n\
                refresh = \"10m\"\nname_claim = \"email\"\nroles = { \"z\" = \"first\", \"a\" = \"second\" }\nhosts = [\"h*\"]\n\
                [auth.certificates]\nname = \"dns\"\nrole = \"ou\"\nroles = { \"*\" = \"r\" }\n";
    let auth = read_auth(text, Path::new("/etc")).expect("valid");
    let jwt = auth.jwt.expect("present");
    assert_eq!((&*jwt.issuer, &*jwt.name_claim, &*jwt.role_claim), ("i", "email", "role"));
    assert_eq!(jwt.audiences, ["a", "b"]);
    assert_eq!(jwt.roles[0], ("z".into(), "first".into()), "in file order");
    let KeysFrom::JwksUrl { url, refresh } = jwt.keys else { panic!("{:?}", jwt.keys) };
    assert_eq!((url.to_string().as_str(), refresh.as_secs()), ("https://id.example/k", 600));
    let certificates = auth.certificates.expect("present");
    assert_eq!((certificates.name, certificates.role_from_unit), (NameField::Dns, true));
    assert_eq!(certificates.roles, [(Pattern::new("*").expect("a pattern"), "r".to_owned())]);
    let file = "[auth.jwt]\nissuer=\"i\"\naudience=\"a\"\njwks_file = \"k.json\"";
    let keys = read_auth(file, Path::new("/etc")).expect("valid").jwt.expect("present").keys;
    assert_eq!(keys, KeysFrom::JwksFile("/etc/k.json".into()));
    assert_eq!(read_auth("[roles.r]", Path::new(".")).expect("no [auth]"), Default::default());
}

#[test]
fn configuration_errors_have_a_position_and_a_hint() {
    let check = |text: &str, expected: &str| {
        let error = read_auth(text, Path::new(".")).expect_err(text);
        assert_eq!(format!("{error} / {}", error.hint()), expected);
    };
    check("[auth\n", "line 1, column 6: unclosed table, expected `]` / correct the file at that position");
    check("auth = 1", "line 1, column 8: auth has to be a table / correct the value");
    check("[auth.jwd]\n", "line 1, column 7: unknown key auth.jwd / did you mean jwt?");
    check("[auth.jwt]\nisuer = \"x\"", "line 2, column 1: unknown key auth.jwt.isuer / did you mean issuer?");
    check("[auth.jwt]\naudience = \"a\"", "line 1, column 1: auth.jwt.issuer is missing / add it");
    check(
        "[auth.jwt]\nissuer = \"i\"\nkeys = []",
        "line 1, column 1: auth.jwt.audience is missing / set the audience of tokens for this bus, so that tokens for \
         other services are refused",
    );
    let jwt = "[auth.jwt]\nissuer = \"i\"\naudience = \"a\"\n";
    check(
        jwt,
        "line 1, column 1: auth.jwt.keys is missing / add keys, jwks_file or jwks_url, with the issuer's public keys",
    );
    check(
        &format!("{jwt}jwks_url = \"http://id.example\""),
        "line 4, column 12: auth.jwt.jwks_url has to be a URL that starts with https:// / correct the value",
    );
    check(
        &format!("{jwt}jwks_file = \"f\"\nkeys = [\"k\"]"),
        "line 4, column 13: auth.jwt.jwks_file has to be the only one of keys, jwks_file and jwks_url / correct the value",
    );
    check(
        &format!("{jwt}keys = [\"k\"]\nrefresh = \"5m\""),
        "line 5, column 11: auth.jwt.refresh has to be omitted: it applies to jwks_url only / correct the value",
    );
    check(
        &format!("{jwt}keys = [\"k\"]\nhosts = [\"[\"]"),
        "line 5, column 9: auth.jwt.hosts: \"[\" is not a valid pattern: unclosed character class; missing ']' / \
         correct the value",
    );
    check(
        "[auth.certificates]\nname = \"sn\"",
        "line 2, column 8: auth.certificates.name has to be \"cn\", \"dns\", \"uri\" or \"email\" / correct the value",
    );
    check(
        "[auth.certificates]\nroles = { \"*\" = \"a/b\" }",
        "line 2, column 17: auth.certificates.roles.\"*\": the role \"a/b\": it contains a slash or is a dot path / correct the value",
    );
}
