//! The batches of a client whose requests are not all answered yet. Their responses are sent together, as a batch; other
//! messages of their calls are sent at once.

use std::collections::HashMap;
use toolbus_mcp::Message;

#[derive(Default)]
pub struct Batches {
    open: HashMap<BatchNo, Batch>,
    last: BatchNo,
}

/// The number of a batch.
pub type BatchNo = u64;

#[derive(Default)]
struct Batch {
    running: usize,
    responses: Vec<Message>,
}

impl Batches {
    /// Opens a batch, which [`Batches::add_running`] and [`Batches::answered`] fill.
    pub fn open(&mut self) -> BatchNo {
        self.last += 1;
        // The batch itself counts as running until it is complete.
        self.open.insert(self.last, Batch { running: 1, responses: Vec::new() });
        self.last
    }

    pub fn add_running(&mut self, number: BatchNo) {
        self.open.entry(number).or_default().running += 1;
    }

    /// A message of the batch was rejected.
    pub fn add_response(&mut self, number: BatchNo, response: Message) {
        self.open.entry(number).or_default().responses.push(response);
    }

    /// A call of the batch ended, without a response if it was cancelled. Returns the text of all responses after the last.
    pub fn ended(&mut self, number: BatchNo, response: Option<Message>) -> Option<String> {
        let batch = self.open.get_mut(&number)?;
        batch.responses.extend(response);
        batch.running -= 1;
        if batch.running > 0 {
            return None;
        }
        let responses = self.open.remove(&number)?.responses;
        (!responses.is_empty()).then(|| to_text(&responses))
    }
}

/// The messages as a batch.
pub fn to_text(messages: &[Message]) -> String {
    let messages: Vec<String> = messages.iter().map(Message::to_json).collect();
    format!("[{}]", messages.join(","))
}
