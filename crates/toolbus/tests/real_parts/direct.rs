//! Real clients against real servers without toolbus: a check that passes here and fails through toolbus is a defect of
//! toolbus.

use crate::clients::{Client, inspect_echo};
use crate::installed::{Installed, Server};

#[tokio::test]
async fn python_clients_pass_against_all_servers() {
    check_all(&Client::PYTHON).await;
}

#[tokio::test]
async fn typescript_clients_pass_against_all_servers() {
    check_all(&Client::TYPESCRIPT).await;
}

#[tokio::test]
async fn the_inspector_calls_a_server() {
    let installed = Installed::find();
    let server = installed.everything().definition;
    let words = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    let mut target = vec![words(&server["command"])];
    target.extend(server["args"].as_array().expect("a list").iter().map(words));
    inspect_echo(&installed, &target.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn check_all(clients: &[Client]) {
    let installed = Installed::find();
    for &client in clients {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for Server { name, definition } in installed.all(folder.path()) {
            let modern = client.prefers_modern() && name == "both_eras";
            client.check(&installed, &definition, &[name], modern).await;
        }
    }
}
