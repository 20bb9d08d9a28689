//! Errors that the broker reports: refused messages, and ends of the whole connection.

use crate::BrokerError;
use crate::outstanding::{OutstandingDelivery, fail_delivery};
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
            return self.outstanding.was_not_accepted(&id, self.epoch);
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

    /// On a new connection: fails deliveries that the broker would end it for. It may accept less than the one before.
    pub fn fail_too_large(&mut self) {
        let limit = self.terms.max_frame_bytes.unwrap_or(u64::MAX);
        let is_too_large = |delivery: &OutstandingDelivery| delivery.envelope.sealed().len() as u64 > limit;
        for delivery in self.outstanding.take_all(is_too_large) {
            let id = delivery.envelope.id.clone();
            let reason =
                format!("the message has {} bytes, the broker's limit is {limit}", delivery.envelope.sealed().len());
            let code = Some(ErrorCode::FrameTooLarge);
            let error = BrokerError::Rejected { code, reason, id: Some(MsgId::from(id.clone())) };
            if let Some(request) = self.requests.remove(&id) {
                request.end(Err(error.clone()));
            }
            fail_delivery(delivery, error);
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
