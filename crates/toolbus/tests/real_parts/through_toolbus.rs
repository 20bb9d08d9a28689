//! The checks of the real clients, with toolbus between them and four real servers.

use crate::clients::{Client, inspect_echo};
use crate::hosted::Hosted;
use crate::installed::Installed;
use serde_json::Value;

const PROFILES: [&str; 4] = ["both_eras", "everything", "files", "memory"];

#[tokio::test]
async fn python_clients_over_stdio() {
    check_all(&Client::PYTHON, Hosted::over_stdio).await;
}

#[tokio::test]
async fn python_clients_over_http() {
    check_all(&Client::PYTHON, Hosted::over_http).await;
}

#[tokio::test]
async fn typescript_clients_over_stdio() {
    check_all(&Client::TYPESCRIPT, Hosted::over_stdio).await;
}

#[tokio::test]
async fn typescript_clients_over_http() {
    check_all(&Client::TYPESCRIPT, Hosted::over_http).await;
}

#[tokio::test]
async fn the_inspector_over_stdio_and_http() {
    let installed = Installed::find();
    let hosted = Hosted::start(&installed).await;
    let command = hosted.connect_command();
    inspect_echo(&installed, &command.iter().map(String::as_str).chain(["--"]).collect::<Vec<_>>()).await;
    inspect_echo(&installed, &[&hosted.url()]).await;
}

async fn check_all(clients: &[Client], target: impl Fn(&Hosted) -> Value) {
    let installed = Installed::find();
    let hosted = Hosted::start(&installed).await;
    for &client in clients {
        // toolbus speaks the era that the client prefers, also for legacy servers.
        client.check(&installed, &target(&hosted), &PROFILES, client.prefers_modern()).await;
    }
}
