//! `toolbus tools TOOL`.

use crate::up::UpInstance;

#[tokio::test]
async fn one_tool_is_shown_with_its_arguments() {
    let instance = UpInstance::start(&[]).await.settled().await;
    let chart = instance.run(&["tools", "chart"]).await;
    let parts = [
        "chart (Bar chart), of server demo",
        "ARGUMENT",
        "values",
        "list of number",
        "required; 1 to 64 items",
        "toolbus call chart --arg values=VALUE",
    ];
    chart.check(0, &parts, &[]);
    assert!(!chart.out.contains("countdown"), "{}", chart.out);
    instance.run(&["tools", "text_stats"]).await.check(0, &["RESULT", "longest_word", "string or null"], &[]);
    let json: serde_json::Value =
        serde_json::from_str(&instance.run(&["tools", "chart", "--json"]).await.out).expect("JSON");
    assert_eq!(json["definition"]["name"], "chart");
    instance.run(&["tools", "chrat"]).await.check(1, &[], &["no tool \"chrat\"", "did you mean chart?"]);
}
