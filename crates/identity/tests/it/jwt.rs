//! Tokens of an identity provider: good ones of three kinds, and every way to be a bad one.

use crate::issuer::{AUDIENCE, ISSUER, Key, claims, encode, in_seconds, message, with, without};
use crate::support::{ask, code_of, enter, eventually};
use ring::hmac;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use toolbus_identity::{Authenticator, JwtAuthenticator, JwtConfig, JwtError, KeysFrom, Pattern, Rights};
use toolbus_protocol::{AgentRef, ErrorCode};

fn config(keys: KeysFrom) -> JwtConfig {
    JwtConfig {
        issuer: ISSUER.into(),
        audiences: vec!["another".into(), AUDIENCE.into()],
        keys,
        name_claim: "sub".into(),
        role_claim: "role".into(),
        roles: Vec::new(),
        host_claim: Some("host".into()),
        hosts: vec![Pattern::new("build-*").expect("a pattern")],
    }
}

fn with_pem(key: &Key) -> (TempDir, JwtAuthenticator) {
    let folder = TempDir::new().expect("a folder");
    let keys = KeysFrom::Pem(vec![key.public_pem(folder.path())]);
    let known = JwtAuthenticator::new(config(keys)).expect("a good key");
    (folder, known)
}

fn jwks(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

#[test]
fn tokens_of_all_three_kinds_let_their_holder_in_until_they_expire() {
    for key in [Key::ed(), Key::ec(), Key::rsa()] {
        let (_folder, known) = with_pem(&key);
        let identity = ask(&known, &key.token("k", &claims()), AgentRef::new("~#x"));
        let identity = identity.unwrap_or_else(|refusal| panic!("{}: {refusal:?}", key.algorithm()));
        assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("alice#x", Some("reader")));
        assert_eq!(identity.rights, Rights::WORKER);
        let left = identity.standing.expires().expect("it expires").duration_since(SystemTime::now());
        assert!(left.expect("in the future") <= Duration::from_secs(600));
    }
}

#[test]
fn claims_say_who_is_a_host_and_names_may_too() {
    let key = Key::ed();
    let (_folder, known) = with_pem(&key);
    let rights = |claims: &Value| enter(&known, &key.token("k", claims)).expect("in").rights;
    assert_eq!(rights(&with("host", true)), Rights::HOST);
    assert_eq!(rights(&with("host", "true")), Rights::WORKER);
    assert_eq!(rights(&with("sub", "build-7")), Rights::HOST);
    assert!(known.is_host("build-7") && !known.is_host("alice"));
}

#[test]
fn the_name_and_role_are_the_tokens() {
    let key = Key::ed();
    let (_folder, known) = with_pem(&key);
    let token = key.token("k", &claims());
    assert_eq!(code_of(ask(&known, &token, AgentRef::new("bob"))), Some(ErrorCode::NotYourName));
    let claimed = AgentRef::new("alice").with_role("writer");
    assert_eq!(code_of(ask(&known, &token, claimed)), Some(ErrorCode::NotYourRole));
    let roleless = enter(&known, &key.token("k", &without("role"))).expect("in");
    assert_eq!(roleless.agent.role, None);
}

#[test]
fn a_token_for_others_of_another_time_or_with_odd_claims_is_refused() {
    let key = Key::ec();
    let (_folder, known) = with_pem(&key);
    let check = |claims: Value, code: ErrorCode| {
        assert_eq!(code_of(enter(&known, &key.token("k", &claims))), Some(code), "{claims}");
    };
    check(with("exp", in_seconds(-60)), ErrorCode::CredentialExpired);
    // Within the leeway of the library, and over all the same.
    check(with("exp", in_seconds(-1)), ErrorCode::CredentialExpired);
    check(with("nbf", in_seconds(60)), ErrorCode::BadCredentials);
    check(with("aud", "somebody else"), ErrorCode::BadCredentials);
    check(with("aud", json!(["a", "b"])), ErrorCode::BadCredentials);
    check(with("iss", "https://evil.example"), ErrorCode::BadCredentials);
    check(with("exp", "tomorrow"), ErrorCode::BadCredentials);
    check(with("exp", u64::MAX), ErrorCode::BadCredentials);
    for claim in ["exp", "aud", "iss"] {
        check(without(claim), ErrorCode::BadCredentials);
    }
    check(without("sub"), ErrorCode::BadName);
    for name in ["", "a#b", "~", "a/b", "..", "a\u{202e}b", "a\u{0}b", "\u{feff}", "a\nb"] {
        check(with("sub", name), ErrorCode::BadName);
    }
    check(with("sub", 7), ErrorCode::BadName);
    for role in ["", "r\u{200b}", "a/b", "r\u{7}"] {
        check(with("role", role), ErrorCode::BadName);
    }
    assert!(enter(&known, &key.token("k", &with("sub", "ålice 7"))).is_ok());
    assert!(enter(&known, &key.token("k", &with("aud", json!(["x", AUDIENCE])))).is_ok());
}

#[test]
fn no_algorithm_but_the_keys_own_is_believed() {
    for key in [Key::ed(), Key::ec(), Key::rsa()] {
        let (folder, known) = with_pem(&key);
        let refused =
            |token: &str| assert_eq!(code_of(enter(&known, token)), Some(ErrorCode::BadCredentials), "{token}");
        for none in ["none", "None", "nOnE", ""] {
            let unsigned = message(&json!({"alg": none}), &claims());
            refused(&format!("{unsigned}."));
            refused(&key.token_with(&json!({"alg": none}), &claims()));
        }
        // The public key is public: whoever took it for a shared secret could be fooled with it.
        let pem = fs::read(key.public_pem(folder.path())).expect("it is there");
        let unsigned = message(&json!({"alg": "HS256", "kid": "k"}), &claims());
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &pem), unsigned.as_bytes());
        refused(&format!("{unsigned}.{}", encode(tag)));
        for other in ["EdDSA", "ES256", "RS256", "ES384", "RS512", "PS256", "HS512"] {
            if other != key.algorithm() {
                refused(&key.token_with(&json!({"alg": other, "kid": "k"}), &claims()));
            }
        }
        refused(&key.token_with(&json!({"alg": key.algorithm(), "crit": ["exp"], "exp": 1}), &claims()));
        // A key that the token brings along is nobody's.
        let stranger = Key::ed();
        refused(&stranger.token_with(&json!({"alg": "EdDSA", "jwk": stranger.jwk("k"), "kid": "k"}), &claims()));
    }
}

#[test]
fn a_token_that_was_changed_cut_or_blown_up_is_refused() {
    let key = Key::ed();
    let (_folder, known) = with_pem(&key);
    let token = key.token("k", &claims());
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    let (header, _) = signed.split_once('.').expect("three parts");
    let forged = encode(with("sub", "root").to_string());
    let huge = key.token("k", &with("more", "x".repeat(3 << 20)));
    let bad = [
        "..".to_owned(),
        "a.b.c".into(),
        token[..token.len() - 1].to_owned(),
        token[..token.len() / 2].to_owned(),
        format!("{signed}."),
        format!("{token}A"),
        format!("{token} "),
        format!(" {token}"),
        token.replace('.', ". "),
        format!("{header}.{forged}.{signature}"),
        format!("{token}.{signature}"),
        huge,
    ];
    for token in bad {
        assert_eq!(
            code_of(enter(&known, &token)),
            Some(ErrorCode::BadCredentials),
            "{}",
            &token[..token.len().min(200)]
        );
    }
    assert!(enter(&known, &token).is_ok());
}

#[tokio::test]
async fn keys_of_a_jwks_file_are_told_apart_by_id_and_followed() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("jwks.json");
    let (one, two, other) = (Key::ed(), Key::rsa(), Key::ed());
    let odd = [json!({"kty": "oct", "k": "AAAA"}), json!({"kty": "EC", "crv": "P-384", "x": "", "y": ""}), json!(7)];
    let encryption = json!({"use": "enc", "kty": "OKP", "crv": "Ed25519", "x": other.jwk("enc")["x"], "kid": "enc"});
    let mut keys = vec![one.jwk("one"), two.jwk("two"), encryption];
    keys.extend(odd);
    fs::write(&file, jwks(&keys)).expect("written");
    let known = JwtAuthenticator::new(config(KeysFrom::JwksFile(file.clone()))).expect("it has keys");
    assert!(enter(&known, &one.token("one", &claims())).is_ok());
    assert!(enter(&known, &two.token("two", &claims())).is_ok());
    assert!(enter(&known, &one.token_with(&json!({"alg": "EdDSA"}), &claims())).is_ok(), "without an id all are tried");
    for token in [one.token("two", &claims()), one.token("unknown", &claims()), other.token("enc", &claims())] {
        assert_eq!(code_of(enter(&known, &token)), Some(ErrorCode::BadCredentials));
    }

    fs::write(&file, "{\"keys\": [").expect("written");
    fs::write(&file, jwks(&[other.jwk("other")])).expect("written");
    tokio::task::spawn_blocking(move || {
        eventually("the new keys", || enter(&known, &other.token("other", &claims())).is_ok());
        assert!(enter(&known, &one.token("one", &claims())).is_err(), "the old key is gone");
    })
    .await
    .expect("no panic");
}

#[tokio::test]
async fn keys_of_a_url_are_fetched_and_an_unknown_one_is_asked_for_at_most_once_in_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound")).parse().expect("a URL");
    let keys = KeysFrom::JwksUrl { url, refresh: Duration::from_secs(300) };
    let known = JwtAuthenticator::new(config(keys)).expect("nothing is read yet");
    let (key, other) = (Key::ec(), Key::ec());
    assert_eq!(code_of(enter(&known, &key.token("k", &claims()))), Some(ErrorCode::CannotCheck), "no keys yet");

    let body = jwks(&[key.jwk("k")]);
    let serving = tokio::spawn(async move {
        let mut served = 0;
        while let Ok((mut socket, _)) = listener.accept().await {
            served += 1;
            assert_ne!(socket.read(&mut [0; 4096]).await.expect("a request"), 0);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
            assert!(served < 2, "it is asked again although it was just asked");
        }
    });
    known.ready(Duration::from_secs(20)).await;
    assert!(enter(&known, &key.token("k", &claims())).is_ok());
    for _ in 0..100 {
        assert_eq!(code_of(enter(&known, &other.token("other", &claims()))), Some(ErrorCode::BadCredentials));
        tokio::task::yield_now().await;
    }
    assert!(!serving.is_finished());
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound")).parse().expect("a URL");
    let known =
        JwtAuthenticator::new(config(KeysFrom::JwksUrl { url, refresh: Duration::from_secs(300) })).expect("ok");
    let (mut socket, _) = listener.accept().await.expect("it asks");
    let flood = async {
        socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"keys\": [").await.expect("written");
        let mut sent = 0;
        while socket.write_all(&[b' '; 65536]).await.is_ok() {
            sent += 65536;
            assert!(sent < 64 << 20, "it reads on and on");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), flood).await.expect("it hangs up");
    known.ready(Duration::from_secs(20)).await;
    assert!(enter(&known, &Key::ed().token("k", &claims())).is_err());
}

#[test]
fn files_that_are_no_public_keys_are_refused_at_the_start() {
    let folder = TempDir::new().expect("a folder");
    let write = |text: &str| -> PathBuf {
        let path = folder.path().join("key.pem");
        fs::write(&path, text).expect("written");
        path
    };
    let private = include_str!("data/rsa_key_of_the_tests.pem");
    for text in ["", "x", private, "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        let outcome = JwtAuthenticator::new(config(KeysFrom::Pem(vec![write(text)])));
        assert!(matches!(outcome, Err(JwtError::Key { .. })), "{text}");
    }
    let missing = JwtAuthenticator::new(config(KeysFrom::Pem(vec![folder.path().join("none.pem")])));
    assert!(matches!(missing, Err(JwtError::Read { .. })));
}
