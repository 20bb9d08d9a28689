//! The same name from a JWT, from a certificate and from the registry is three agents, unless the operator maps them.

use crate::certificates_and_chain::{authenticate_certificate, certificate_for, read_auth};
use crate::issuer::{Key, with};
use crate::support::{authenticate, code_of};
use tempfile::TempDir;
use toolbus_identity::{
    AgentsFolder, Authenticator, CertificateAuthenticator, Chain, Identity, JwtAuthenticator, NewAgent, Registry,
};
use toolbus_protocol::ErrorCode;

struct Issuers {
    _folder: TempDir,
    chain: Chain,
    key: Key,
    token: String,
}

impl Issuers {
    /// A registry with the agent `alice`, and both issuers with these settings.
    fn new(jwt: &str, certificates: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let new = NewAgent { name: "alice", role: "r", ..NewAgent::default() };
        let token = AgentsFolder::new(folder.path()).add(&new).expect("a new agent").token.expose().to_owned();
        let key = Key::ed();
        key.public_pem(folder.path());
        let text = format!(
            "[auth.jwt]\nissuer = \"https://id.example\"\naudience = \"toolbus\"\nkeys = \"EdDSA.pem\"\n{jwt}\n\
             [auth.certificates]\n{certificates}\n"
        );
        let auth = read_auth(&text, folder.path()).expect("valid");
        let chain = Chain {
            registry: Registry::open(folder.path()).expect("readable"),
            jwt: auth.jwt.map(|jwt| JwtAuthenticator::new(jwt).expect("a key")),
            certificates: auth.certificates.map(CertificateAuthenticator::new),
        };
        Self { _folder: folder, chain, key, token }
    }

    fn by_jwt(&self, name: &str) -> Result<String, Option<ErrorCode>> {
        agent(authenticate(&self.chain, &self.key.token("k", &with("sub", name))))
    }

    fn by_certificate(&self, name: &str) -> Result<String, Option<ErrorCode>> {
        agent(authenticate_certificate(&self.chain, &certificate_for(name, "r")))
    }
}

fn agent(outcome: Result<Identity, toolbus_identity::AuthRefusal>) -> Result<String, Option<ErrorCode>> {
    match outcome {
        Ok(identity) => Ok(identity.agent.session_id.to_string()),
        refused => Err(code_of(refused)),
    }
}

#[test]
fn one_name_of_three_issuers_is_three_agents() {
    let issuers = Issuers::new("hosts = \"gate\"", "");
    let by_token = agent(authenticate(&issuers.chain, &issuers.token));
    assert_eq!(by_token.as_deref(), Ok("alice"), "names of the registry are not qualified");
    assert_eq!(issuers.by_jwt("alice").as_deref(), Ok("jwt:alice"));
    assert_eq!(issuers.by_certificate("alice").as_deref(), Ok("cert:alice"));
    assert!(issuers.chain.is_host("jwt:gate"), "patterns are about the issuer's own names");
    assert!(!issuers.chain.is_host("gate") && !issuers.chain.is_host("cert:gate"));
}

#[test]
fn an_issuer_cannot_choose_a_name_of_another_one() {
    let issuers = Issuers::new("qualifier = \"\"", "");
    assert_eq!(issuers.by_jwt("bob").as_deref(), Ok("bob"));
    assert_eq!(issuers.by_jwt("cert:bob"), Err(Some(ErrorCode::NotYourName)));
    assert_eq!(issuers.by_jwt("alice"), Err(Some(ErrorCode::NotYourName)), "a name of the registry");
    let qualified = Issuers::new("", "");
    assert_eq!(qualified.by_jwt("cert:bob").as_deref(), Ok("jwt:cert:bob"));
}

#[test]
fn the_operator_may_map_two_issuers_to_the_same_names() {
    let issuers = Issuers::new("qualifier = \"corp:\"", "qualifier = \"corp:\"");
    assert_eq!(issuers.by_jwt("bob").as_deref(), Ok("corp:bob"));
    assert_eq!(issuers.by_certificate("bob").as_deref(), Ok("corp:bob"));
}

#[test]
fn a_qualifier_has_to_be_the_beginning_of_a_name() {
    let text = "[auth.certificates]\nqualifier = \"a#\"";
    let error = read_auth(text, std::path::Path::new(".")).expect_err("invalid").to_string();
    assert!(error.contains("line 2") && error.contains("auth.certificates.qualifier"), "{error}");
}
