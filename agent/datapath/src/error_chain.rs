//! Formats errors with their sources.

use std::error::Error;

/// Returns the messages of an error and of all its sources, separated by colons.
///
/// The JSON formatter of tracing-subscriber prints only the first message of a `dyn Error` field.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let message = source.to_string();
        // Some errors repeat the message of their source.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("cannot read")]
        Read(#[source] io::Error),
        #[error(transparent)]
        Transparent(Box<Self>),
    }

    #[test]
    fn each_message_of_a_chain_is_printed_once() {
        let failure = Failure::Transparent(Box::new(Failure::Read(io::Error::other("no data"))));
        assert_eq!(error_chain(&failure), "cannot read: no data");
    }
}
