//! The pages whose figures unit tests compare with the code.

/// docs/failover.md.
pub const FAILOVER: &str = include_str!("../../../docs/failover.md");
/// docs/cluster.md.
pub const CLUSTER: &str = include_str!("../../../docs/cluster.md");

/// Asserts that a page has these words, wherever its lines break.
#[track_caller]
pub fn assert_says(page: &str, words: &str) {
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(words), "the page does not say {words:?}");
}
