//! Credentials that a peer presents before `hello`: a token in the request header, a client certificate of the TLS
//! connection.

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap};
use toolbus_identity::{AuthRefusal, Credential};
use toolbus_protocol::{AgentRef, ErrorCode};

pub struct PresentedCredentials {
    /// Token of the `Authorization: Bearer` header.
    pub token: Option<String>,
    /// The client certificate (DER), verified by TLS.
    pub certificate: Option<Bytes>,
}

impl PresentedCredentials {
    pub fn in_request(headers: &HeaderMap, certificate: Option<Bytes>) -> Self {
        Self { token: bearer_token(headers), certificate }
    }

    /// Combines them with the token and agent of `hello`. Two different tokens are refused.
    pub fn credential<'a>(
        &'a self,
        hello_token: &'a str,
        claimed: &'a AgentRef,
    ) -> Result<Credential<'a>, AuthRefusal> {
        let token = match &self.token {
            Some(token) if hello_token.is_empty() || hello_token == token => token,
            Some(_) => {
                let reason = "the tokens of `hello` and of the Authorization header differ";
                return Err(AuthRefusal::new(ErrorCode::BadCredentials, reason));
            }
            None => hello_token,
        };
        Ok(Credential { token, certificate: self.certificate.as_deref(), claimed })
    }
}

/// Returns the bearer token of the request. A malformed or repeated header yields an empty token, which matches no
/// credential. Other schemes are ignored: they are meant for a proxy in front of the broker.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (first, more) = (values.next()?, values.next());
    let Some((scheme, token)) = first.to_str().ok().and_then(|value| value.split_once(' ')) else {
        return Some(String::new());
    };
    if more.is_some() {
        return Some(String::new());
    }
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn check(values: &[&'static str], hello: &str, expected: Result<&str, ErrorCode>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        let presented = PresentedCredentials::in_request(&headers, None);
        let claimed = AgentRef::new("w");
        let credential = presented.credential(hello, &claimed).map_err(|refusal| refusal.code);
        assert_eq!(credential.map(|credential| credential.token), expected, "{values:?} {hello}");
    }

    #[test]
    fn the_token_is_in_the_header_or_in_hello_and_equal_if_in_both() {
        check(&[], "t", Ok("t"));
        check(&[], "", Ok(""));
        check(&["Bearer t"], "", Ok("t"));
        check(&["bearer  t "], "t", Ok("t"));
        check(&["Bearer t"], "u", Err(ErrorCode::BadCredentials));
        check(&["Bearer t", "Bearer t"], "", Ok(""));
        check(&["Bearer t", "Bearer u"], "u", Err(ErrorCode::BadCredentials));
        check(&["Bearer"], "", Ok(""));
        check(&["Basic dTpw"], "t", Ok("t"));
    }
}
