//! JWTs of an identity provider: valid ones of all three algorithms, and every kind of invalid one.

use crate::issuer::{AUDIENCE, ISSUER, Key, claims, encode, in_seconds, message, with, without};
use crate::support::{authenticate, authenticate_as, code_of, eventually};
use ring::hmac;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use toolbus_identity::{Authenticator, JwtAuthenticator, JwtConfig, JwtError, KeysFrom, Pattern, Qualifier, Rights};
use toolbus_protocol::{AgentRef, ErrorCode};

fn config(keys: KeysFrom) -> JwtConfig {
    JwtConfig {
        issuer: ISSUER.into(),
        audiences: vec!["another".into(), AUDIENCE.into()],
        keys,
        name_claim: "sub".into(),
        qualifier: Qualifier::new("").expect("valid"),
        role_claim: "role".into(),
        roles: Vec::new(),
        host_claim: Some("host".into()),
        hosts: vec![Pattern::new("build-*").expect("a pattern")],
    }
}

fn with_pem(key: &Key) -> (TempDir, JwtAuthenticator) {
    let folder = TempDir::new().expect("a folder");
    let keys = KeysFrom::Pem(vec![key.public_pem(folder.path())]);
    let authenticator = JwtAuthenticator::new(config(keys)).expect("a good key");
    (folder, authenticator)
}

fn jwks(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

#[test]
fn tokens_of_all_three_algorithms_are_accepted_until_they_expire() {
    for key in [Key::ed(), Key::ec(), Key::rsa()] {
        let (_folder, authenticator) = with_pem(&key);
        let identity = authenticate_as(&authenticator, &key.token("k", &claims()), AgentRef::new("~#x"));
        let identity = identity.unwrap_or_else(|refusal| panic!("{}: {refusal:?}", key.algorithm()));
        assert_eq!((&*identity.agent.session_id, identity.agent.role.as_deref()), ("alice#x", Some("reader")));
        assert_eq!(identity.rights, Rights::WORKER);
        let left = identity.standing.expires().expect("an expiry time").duration_since(SystemTime::now());
        assert!(left.expect("in the future") <= Duration::from_secs(600));
    }
}

#[test]
fn a_host_is_determined_by_a_claim_or_a_name_pattern() {
    let key = Key::ed();
    let (_folder, authenticator) = with_pem(&key);
    let rights = |claims: &Value| authenticate(&authenticator, &key.token("k", claims)).expect("accepted").rights;
    assert_eq!(rights(&with("host", true)), Rights::HOST);
    assert_eq!(rights(&with("host", "true")), Rights::WORKER);
    assert_eq!(rights(&with("sub", "build-7")), Rights::HOST);
    assert!(authenticator.is_host("build-7") && !authenticator.is_host("alice"));
}

#[test]
fn only_the_name_and_role_of_the_token_are_accepted() {
    let key = Key::ed();
    let (_folder, authenticator) = with_pem(&key);
    let token = key.token("k", &claims());
    assert_eq!(code_of(authenticate_as(&authenticator, &token, AgentRef::new("bob"))), Some(ErrorCode::NotYourName));
    let claimed = AgentRef::new("alice").with_role("writer");
    assert_eq!(code_of(authenticate_as(&authenticator, &token, claimed)), Some(ErrorCode::NotYourRole));
    let roleless = authenticate(&authenticator, &key.token("k", &without("role"))).expect("accepted");
    assert_eq!(roleless.agent.role, None);
}

#[test]
fn tokens_with_wrong_audience_time_issuer_or_names_are_refused() {
    let key = Key::ec();
    let (_folder, authenticator) = with_pem(&key);
    let check = |claims: Value, code: ErrorCode| {
        assert_eq!(code_of(authenticate(&authenticator, &key.token("k", &claims))), Some(code), "{claims}");
    };
    check(with("exp", in_seconds(-60)), ErrorCode::CredentialExpired);
    // Within the library's leeway, but expired.
    check(with("exp", in_seconds(-1)), ErrorCode::CredentialExpired);
    check(with("nbf", in_seconds(60)), ErrorCode::BadCredentials);
    check(with("aud", "other-service"), ErrorCode::BadCredentials);
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
    assert!(authenticate(&authenticator, &key.token("k", &with("sub", "ålice 7"))).is_ok());
    assert!(authenticate(&authenticator, &key.token("k", &with("aud", json!(["x", AUDIENCE])))).is_ok());
}

#[test]
fn only_the_algorithm_of_the_key_is_accepted() {
    for key in [Key::ed(), Key::ec(), Key::rsa()] {
        let (folder, authenticator) = with_pem(&key);
        let refused = |token: &str| {
            assert_eq!(code_of(authenticate(&authenticator, token)), Some(ErrorCode::BadCredentials), "{token}")
        };
        for none in ["none", "None", "nOnE", ""] {
            let unsigned = message(&json!({"alg": none}), &claims());
            refused(&format!("{unsigned}."));
            refused(&key.token_with(&json!({"alg": none}), &claims()));
        }
        // Algorithm confusion: the public key must not be accepted as an HMAC secret.
        let pem = fs::read(key.public_pem(folder.path())).expect("present");
        let unsigned = message(&json!({"alg": "HS256", "kid": "k"}), &claims());
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &pem), unsigned.as_bytes());
        refused(&format!("{unsigned}.{}", encode(tag)));
        for other in ["EdDSA", "ES256", "RS256", "ES384", "RS512", "PS256", "HS512"] {
            if other != key.algorithm() {
                refused(&key.token_with(&json!({"alg": other, "kid": "k"}), &claims()));
            }
        }
        refused(&key.token_with(&json!({"alg": key.algorithm(), "crit": ["exp"], "exp": 1}), &claims()));
        // A key embedded in the token header must be ignored.
        let stranger = Key::ed();
        refused(&stranger.token_with(&json!({"alg": "EdDSA", "jwk": stranger.jwk("k"), "kid": "k"}), &claims()));
    }
}

#[test]
fn modified_truncated_or_oversized_tokens_are_refused() {
    let key = Key::ed();
    let (_folder, authenticator) = with_pem(&key);
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
            code_of(authenticate(&authenticator, &token)),
            Some(ErrorCode::BadCredentials),
            "{}",
            &token[..token.len().min(200)]
        );
    }
    assert!(authenticate(&authenticator, &token).is_ok());
}

#[tokio::test]
async fn keys_of_a_jwks_file_are_selected_by_id_and_reloaded() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("jwks.json");
    let (one, two, other) = (Key::ed(), Key::rsa(), Key::ed());
    let unsupported =
        [json!({"kty": "oct", "k": "AAAA"}), json!({"kty": "EC", "crv": "P-384", "x": "", "y": ""}), json!(7)];
    let encryption = json!({"use": "enc", "kty": "OKP", "crv": "Ed25519", "x": other.jwk("enc")["x"], "kid": "enc"});
    let mut keys = vec![one.jwk("one"), two.jwk("two"), encryption];
    keys.extend(unsupported);
    fs::write(&file, jwks(&keys)).expect("written");
    let authenticator = JwtAuthenticator::new(config(KeysFrom::JwksFile(file.clone()))).expect("valid keys");
    assert!(authenticate(&authenticator, &one.token("one", &claims())).is_ok());
    assert!(authenticate(&authenticator, &two.token("two", &claims())).is_ok());
    assert!(
        authenticate(&authenticator, &one.token_with(&json!({"alg": "EdDSA"}), &claims())).is_ok(),
        "without a key id all keys are tried"
    );
    for token in [one.token("two", &claims()), one.token("unknown", &claims()), other.token("enc", &claims())] {
        assert_eq!(code_of(authenticate(&authenticator, &token)), Some(ErrorCode::BadCredentials));
    }

    fs::write(&file, "{\"keys\": [").expect("written");
    fs::write(&file, jwks(&[other.jwk("other")])).expect("written");
    tokio::task::spawn_blocking(move || {
        eventually("the new keys", || authenticate(&authenticator, &other.token("other", &claims())).is_ok());
        assert!(authenticate(&authenticator, &one.token("one", &claims())).is_err(), "the old key is refused");
    })
    .await
    .expect("no panic");
}

/// Only root can give files away, so other users skip this.
#[tokio::test]
async fn keys_of_another_user_are_refused_at_the_start_and_when_they_are_read_again() {
    const OTHER_USER: u32 = 65_534;
    let folder = TempDir::new().expect("a folder");
    let (one, two) = (Key::ed(), Key::ed());
    let (file, new) = (folder.path().join("jwks.json"), folder.path().join("new"));
    fs::write(&file, jwks(&[one.jwk("one")])).expect("written");
    if std::os::unix::fs::chown(&file, Some(OTHER_USER), None).is_err() {
        return;
    }
    let pem = one.public_pem(folder.path());
    std::os::unix::fs::chown(&pem, Some(OTHER_USER), None).expect("given away");
    for from in [KeysFrom::JwksFile(file.clone()), KeysFrom::Pem(vec![pem])] {
        let refused = JwtAuthenticator::new(config(from)).err().expect("refused");
        assert!(toolbus_base::UnsafePath::in_chain(&refused).is_some(), "{refused}");
    }
    std::os::unix::fs::chown(&file, Some(0), None).expect("taken back");
    let authenticator = JwtAuthenticator::new(config(KeysFrom::JwksFile(file.clone()))).expect("own keys");
    let replace = |owner| {
        fs::write(&new, jwks(&[two.jwk("two")])).expect("written");
        std::os::unix::fs::chown(&new, Some(owner), None).expect("given away");
        fs::rename(&new, &file).expect("replaced");
    };
    replace(OTHER_USER);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(authenticate(&authenticator, &two.token("two", &claims())).is_err());
    assert!(authenticate(&authenticator, &one.token("one", &claims())).is_ok(), "the previous keys stay");
    replace(0);
    tokio::task::spawn_blocking(move || {
        eventually("the new keys", || authenticate(&authenticator, &two.token("two", &claims())).is_ok());
    })
    .await
    .expect("no panic");
}

#[tokio::test]
async fn keys_of_a_url_are_fetched_and_unknown_keys_do_not_trigger_a_fetch_too_soon() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound")).parse().expect("a URL");
    let keys = KeysFrom::JwksUrl { url, refresh: Duration::from_secs(300) };
    let authenticator = JwtAuthenticator::new(config(keys)).expect("no keys needed yet");
    let (key, other) = (Key::ec(), Key::ec());
    assert_eq!(
        code_of(authenticate(&authenticator, &key.token("k", &claims()))),
        Some(ErrorCode::CannotCheck),
        "no keys yet"
    );

    let body = jwks(&[key.jwk("k")]);
    let serving = tokio::spawn(async move {
        let mut served = 0;
        while let Ok((mut socket, _)) = listener.accept().await {
            served += 1;
            assert_ne!(socket.read(&mut [0; 4096]).await.expect("a request"), 0);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
            assert!(served < 2, "fetched again within the minimum interval");
        }
    });
    authenticator.ready(Duration::from_secs(20)).await;
    assert!(authenticate(&authenticator, &key.token("k", &claims())).is_ok());
    for _ in 0..100 {
        assert_eq!(
            code_of(authenticate(&authenticator, &other.token("other", &claims()))),
            Some(ErrorCode::BadCredentials)
        );
        tokio::task::yield_now().await;
    }
    assert!(!serving.is_finished());
}

#[tokio::test]
async fn an_endless_response_is_not_read_completely() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("bound")).parse().expect("a URL");
    let authenticator =
        JwtAuthenticator::new(config(KeysFrom::JwksUrl { url, refresh: Duration::from_secs(300) })).expect("ok");
    let (mut socket, _) = listener.accept().await.expect("a fetch");
    let flood = async {
        socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"keys\": [").await.expect("written");
        let mut sent = 0;
        while socket.write_all(&[b' '; 65536]).await.is_ok() {
            sent += 65536;
            assert!(sent < 64 << 20, "the response is read without a limit");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), flood).await.expect("the client closes the connection");
    authenticator.ready(Duration::from_secs(20)).await;
    assert!(authenticate(&authenticator, &Key::ed().token("k", &claims())).is_err());
}

#[test]
fn files_without_a_public_key_are_refused_at_startup() {
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
