//! Errors that the broker reports: refused messages, and ends of the whole connection.

use crate::error::BrokerError;
use crate::outstanding::fail_delivery;
use crate::session::Session;
use toolbus_protocol::{ErrorCode, MsgId, Refusal};

impl Session {
    pub fn receive_refusal(&mut self, refusal: Refusal) {
        let Refusal { reason, id, code } = refusal;
        let Some(id) = id else {
            tracing::warn!(code = code.map(ErrorCode::code), reason, "the broker reported an error");
            return self.receive_connection_error(code, reason);
        };
        // A stopping broker has not accepted the message: it is sent again on the next connection, under the same id.
        if code == Some(ErrorCode::ShuttingDown) && self.outstanding.contains(&id) {
            return;
        }
        let error = BrokerError::Rejected { code, reason, id: Some(MsgId::from(id.clone())) };
        if let Some(request) = self.requests.remove(&id) {
            request.end(Err(error.clone()));
        }
        self.queries.refused(&id, &error);
        self.follows.refused(&id, &error);
        // Another message under an id that is in use is refused while the first one waits for its receipt.
        let is_of_latest = code == Some(ErrorCode::IdConflict);
        let refused = if is_of_latest { self.outstanding.take_latest(&id) } else { self.outstanding.take(&id) };
        if let Some(delivery) = refused {
            if code == Some(ErrorCode::NotYourRequest) {
                self.kept_replies.keep(delivery.copy(), self.now);
            }
            self.postponed
                .keep(delivery, code, self.now)
                .into_iter()
                .for_each(|delivery| fail_delivery(delivery, error.clone()));
        }
    }

    /// An error of the whole connection. A displaced client receives no more replies, so its pending requests fail.
    fn receive_connection_error(&mut self, code: Option<ErrorCode>, reason: String) {
        let error = BrokerError::Auth { code, reason };
        match code {
            Some(ErrorCode::Displaced) => {
                self.end_requests(&error);
                self.displaced = Some(error);
            }
            Some(ErrorCode::CredentialExpired | ErrorCode::CredentialRevoked) => self.close(error),
            _ => {}
        }
    }
}
