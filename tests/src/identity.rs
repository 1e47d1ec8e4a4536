//! The identification of a server: every reply of a [`crate::pod`] carries an [`Answer`].

use std::{fmt, net::SocketAddr, str::FromStr};

use anyhow::{Context as _, Result, bail};

/// The server that answered, and the client that it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The Service that the server's port belongs to, `namespace/name`.
    pub service: String,
    /// The pod.
    pub pod: String,
    /// The client's address and port as the server saw them.
    pub client: SocketAddr,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service={} pod={} client={}", self.service, self.pod, self.client)
    }
}

impl FromStr for Answer {
    type Err = anyhow::Error;

    /// Parses the three fields from the words of a text.
    fn from_str(text: &str) -> Result<Self> {
        let field = |name: &str| {
            text.split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .with_context(|| format!("no {name}= in the reply {text:?}"))
        };
        let client = field("client")?.parse().with_context(|| format!("in the reply {text:?}"))?;
        let (service, pod) = (field("service")?, field("pod")?);
        if !service.contains('/') {
            bail!("no namespace/name in the reply {text:?}");
        }
        Ok(Self { service: service.to_owned(), pod: pod.to_owned(), client })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_survives_its_text() {
        let answer =
            Answer { service: "shop/web".into(), pod: "web-1".into(), client: "192.0.2.101:40000".parse().unwrap() };
        assert_eq!(answer.to_string().parse::<Answer>().unwrap(), answer);
    }

    #[test]
    fn a_text_without_a_service_is_no_answer() {
        assert!("pod=web-1 client=192.0.2.101:40000".parse::<Answer>().is_err());
        assert!("service=web pod=web-1 client=192.0.2.101:40000".parse::<Answer>().is_err());
    }
}
