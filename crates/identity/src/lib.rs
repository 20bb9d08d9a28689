//! Who a peer is: credentials go in, an [`Identity`] or a refusal comes out. Nothing that a peer says of itself counts
//! unless its credential says the same.
//!
//! - [`Authenticator`] is the seam; `shared_token` is the original's way, one secret for all.
//! - [`Identity`] is what the broker believes of a connection; [`Standing`] is for how long.

mod authenticator;
mod identity;
mod shared_token;
mod standing;

pub use authenticator::{AuthRefusal, Authenticator, Credential};
pub use identity::{Identity, OWN_NAME, Rights, mailbox_of, principal_of};
pub use shared_token::SharedToken;
pub use standing::{EndReason, Standing};
