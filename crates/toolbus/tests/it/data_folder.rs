//! The files of a data folder are documented.

use crate::up::UpInstance;

/// The names of all files and folders below a folder, with `*` in place of numbers and hashes.
fn names_in(folder: &std::path::Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("text");
        if entry.path().is_dir() {
            names_in(&entry.path(), names);
        } else {
            let is_counted = |part: &str| part.len() >= 6 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let parts = name.split_inclusive(['-', '.']);
            let general = parts.map(|part| match part.trim_end_matches(['-', '.']) {
                counted if is_counted(counted) => format!("*{}", &part[counted.len()..]),
                _ => part.to_owned(),
            });
            names.push(general.collect());
        }
    }
}

#[tokio::test]
async fn every_file_of_a_data_folder_is_documented() {
    let instance = UpInstance::start(&[]).await.settled().await;
    instance.run(&["agent", "add", "bob", "--role", "local", "--token-file", "bob.token"]).await.check(0, &[], &[]);
    instance.run(&["call", "now"]).await.check(0, &[], &[]);
    let mut names = Vec::new();
    names_in(&instance.folder.path().join("data/toolbus"), &mut names);
    assert!(names.len() > 15, "{names:?}");
    let documented = include_str!("../../../../docs/operations.md");
    let is_named = |name: &str| documented.contains(&format!("`{name}`")) || documented.contains(&format!("/{name}`"));
    names.retain(|name| !is_named(name) && !name.contains(".new-"));
    assert_eq!(names, Vec::<String>::new(), "docs/operations.md names every file");
}
