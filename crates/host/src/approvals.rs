//! What happens to a call under `ask`: somebody who may approve calls has to be asked first.

use crate::calls::{Authorised, Job, Stop};
use crate::failure;
use toolbus_protocol::ErrorCode;

/// Returns when the call may run. Nobody can be asked yet, so none may.
pub async fn wait_for_approval(job: &mut Job, authorised: &Authorised) -> Result<(), Stop> {
    let message = format!(
        "the call to server {:?} needs approval ({}), and nobody can be asked for it",
        job.server.name(),
        authorised.why
    );
    Err(failure::bus(ErrorCode::ApprovalDenied, message).into())
}
