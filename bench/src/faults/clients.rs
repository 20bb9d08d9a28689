//! All clients of a run as tasks.

use anyhow::Context;
use tokio::task::JoinSet;

use super::{client::Client, tally::Record};

/// The clients of a run.
#[derive(Default)]
pub struct Clients(JoinSet<anyhow::Result<(usize, Vec<Record>)>>);

impl Clients {
    pub fn start(&mut self, client: Client) {
        self.0.spawn(async move {
            let number = client.number;
            client.run().await.map(|records| (number, records))
        });
    }

    /// Adds the records of each client when it is done.
    pub async fn collect(&mut self, records: &mut Vec<(usize, Vec<Record>)>) -> anyhow::Result<()> {
        while let Some(client) = self.0.join_next().await {
            records.push(client.context("a client panicked")??);
        }
        Ok(())
    }
}
