//! Order among the messages of one client session: each goes to the server in its turn, although each has a task of its
//! own. What is waited for afterwards, the server's answer, is no part of a turn.

use std::sync::Mutex;
use tokio::sync::oneshot;

#[derive(Default)]
pub struct Turns(Mutex<Option<oneshot::Receiver<()>>>);

/// A place in the row. Dropping it lets the next one go, as soon as those before are through.
pub struct Turn {
    before: Option<oneshot::Receiver<()>>,
    after: Option<oneshot::Sender<()>>,
}

impl Turns {
    pub fn take(&self) -> Turn {
        let (after, next) = oneshot::channel();
        let before = self.0.lock().expect("nothing panics while it holds this lock").replace(next);
        Turn { before, after: Some(after) }
    }
}

impl Turn {
    pub async fn wait(&mut self) {
        if let Some(before) = self.before.as_mut() {
            // Whether it was told or dropped: the one before is through.
            before.await.ok();
            self.before = None;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Who leaves the row before it is his turn must not let the next one overtake those before.
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
    async fn turns_come_in_the_order_in_which_they_were_taken() {
        let turns = Turns::default();
        let (mut first, mut second) = (turns.take(), turns.take());
        first.wait().await;
        tokio::select! {
            biased;
            () = second.wait() => panic!("the first still has it"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        second.wait().await;
    }

    #[tokio::test]
    async fn leaving_the_row_lets_nobody_overtake() {
        let turns = Turns::default();
        let (first, second, mut third) = (turns.take(), turns.take(), turns.take());
        drop(second);
        tokio::select! {
            biased;
            () = third.wait() => panic!("the first still has it"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        third.wait().await;
    }
}
