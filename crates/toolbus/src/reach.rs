//! How a command reaches the broker: address and token, shared by all commands that talk to one.

use crate::failure::Failure;
use crate::folders;
use clap::Args;
use std::env;
use std::path::PathBuf;
use toolbus_broker::{TokenError, read_token};
use toolbus_client::{BrokerClient, ClientOptions};
use toolbus_protocol::AgentRef;

#[derive(Args)]
pub struct ReachArgs {
    /// Address of the broker.
    #[arg(long, env = "TOOLBUS_BROKER", default_value = "ws://127.0.0.1:7420/bus", value_name = "URL")]
    pub broker: String,
    /// File with the token. Without it: TOOLBUS_TOKEN, or the token of a broker of this user on this machine.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl ReachArgs {
    pub async fn connect(&self, agent: AgentRef, reconnect: bool) -> Result<BrokerClient, Failure> {
        let options = ClientOptions { reconnect, ..ClientOptions::default() };
        Ok(BrokerClient::connect_with(&self.broker, agent, &self.token()?, options).await?)
    }

    /// Never from the command line: that is visible to everyone on the machine.
    fn token(&self) -> Result<String, Failure> {
        if let Some(file) = &self.token_file {
            return Ok(read_token(file)?);
        }
        if let Ok(token) = env::var("TOOLBUS_TOKEN")
            && !token.trim().is_empty()
        {
            return Ok(token.trim().to_owned());
        }
        match read_token(&folders::data_folder()?.join(folders::TOKEN_FILE)) {
            Err(TokenError::Read { .. }) => Err(Failure::NoToken),
            other => Ok(other?),
        }
    }
}

/// A name for a command that only sends or asks.
pub fn passing_agent() -> AgentRef {
    AgentRef::new(format!("cli-{}", uuid::Uuid::new_v4()))
}
