//! What a peer has shown of itself before it says `hello`: who it is for certain, a token in the request's header, a
//! certificate of its TLS connection.

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap};
use toolbus_identity::{AuthRefusal, Credential, Identity};
use toolbus_protocol::{AgentRef, ErrorCode};

#[derive(Default)]
pub struct Presented {
    /// Who the peer is, where that is certain without a credential.
    pub known_as: Option<Identity>,
    /// Of `Authorization: Bearer`.
    pub token: Option<String>,
    /// The client's certificate (DER), verified.
    pub certificate: Option<Bytes>,
}

impl Presented {
    pub fn known_as(identity: Identity) -> Self {
        Self { known_as: Some(identity), ..Self::default() }
    }

    pub fn in_request(headers: &HeaderMap, certificate: Option<Bytes>) -> Self {
        Self { known_as: None, token: bearer_token(headers), certificate }
    }

    /// Together with what `hello` says. Two tokens that differ are one too many.
    pub fn credential<'a>(
        &'a self,
        hello_token: &'a str,
        claimed: &'a AgentRef,
    ) -> Result<Credential<'a>, AuthRefusal> {
        let token = match &self.token {
            Some(token) if hello_token.is_empty() || hello_token == token => token,
            Some(_) => {
                let reason = "the token of `hello` is not the one of the Authorization header";
                return Err(AuthRefusal::new(ErrorCode::BadCredentials, reason));
            }
            None => hello_token,
        };
        Ok(Credential { token, certificate: self.certificate.as_deref(), claimed })
    }
}

/// The token of the request. One that can't be read, or stands beside another, is an empty one, which is nobody's; other
/// schemes are for whoever stands between the client and us.
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
        let presented = Presented::in_request(&headers, None);
        let claimed = AgentRef::new("w");
        let credential = presented.credential(hello, &claimed).map_err(|refusal| refusal.code);
        assert_eq!(credential.map(|credential| credential.token), expected, "{values:?} {hello}");
    }

    #[test]
    fn a_token_may_stand_in_the_header_or_in_hello_and_has_to_be_the_same_in_both() {
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
