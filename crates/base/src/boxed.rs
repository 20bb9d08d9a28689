//! Boxed futures, for the few functions that other crates await.

use std::pin::Pin;

/// The boxed future of a function that is compiled in its own crate. The body of an `async fn` is compiled again in every
/// crate that awaits it, with all that it awaits in turn: that of a whole service would be compiled with the binary.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
