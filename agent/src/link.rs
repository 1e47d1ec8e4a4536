//! To come.
#[cfg(test)]
pub(crate) mod netns;
