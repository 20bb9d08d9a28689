//! Session order: the messages of one client session reach the server in the order of their arrival, although each is
//! handled by its own tokio task. A ticket covers sending only, not the wait for the answer.

use std::sync::Mutex;
use tokio::sync::oneshot;

#[derive(Default)]
pub struct SessionOrder(Mutex<Option<oneshot::Receiver<()>>>);

/// A position in the session order. Dropping it releases the next ticket once all predecessors have finished.
pub struct OrderTicket {
    before: Option<oneshot::Receiver<()>>,
    after: Option<oneshot::Sender<()>>,
}

impl SessionOrder {
    pub fn take_ticket(&self) -> OrderTicket {
        let (after, next) = oneshot::channel();
        let before = self.0.lock().expect("no code panics while it holds this lock").replace(next);
        OrderTicket { before, after: Some(after) }
    }
}

impl OrderTicket {
    pub async fn wait(&mut self) {
        if let Some(before) = self.before.as_mut() {
            // Sent or dropped: the predecessor has finished.
            before.await.ok();
            self.before = None;
        }
    }
}

impl Drop for OrderTicket {
    fn drop(&mut self) {
        // A ticket dropped early keeps its position until its predecessors finish, so later requests cannot overtake
        // them.
        if let (Some(before), Some(after)) = (self.before.take(), self.after.take())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                before.await.ok();
                drop(after);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tickets_are_served_in_order() {
        let order = SessionOrder::default();
        let (mut first, mut second) = (order.take_ticket(), order.take_ticket());
        first.wait().await;
        tokio::select! {
            biased;
            () = second.wait() => panic!("the first ticket is still held"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        second.wait().await;
    }

    #[tokio::test]
    async fn a_dropped_ticket_lets_no_later_one_overtake() {
        let order = SessionOrder::default();
        let (first, second, mut third) = (order.take_ticket(), order.take_ticket(), order.take_ticket());
        drop(second);
        tokio::select! {
            biased;
            () = third.wait() => panic!("the first ticket is still held"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        third.wait().await;
    }
}
