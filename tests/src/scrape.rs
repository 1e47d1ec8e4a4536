//! Reads what an agent or allocator serves by HTTP, from a machine's own network namespace.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::netns::Namespace;

/// The port.
pub const PORT: u16 = 7945;

/// Requests a path. Returns the status and the body.
pub fn get(from: &Namespace, host: impl Into<IpAddr>, path: &str, timeout: Duration) -> Result<(u16, String)> {
    let host = host.into();
    from.run(|| get_here(host, path, timeout))
}

/// The same from the calling thread's network namespace.
pub fn get_here(host: impl Into<IpAddr>, path: &str, timeout: Duration) -> Result<(u16, String)> {
    let to = SocketAddr::new(host.into(), PORT);
    let mut stream = TcpStream::connect_timeout(&to, timeout).with_context(|| format!("no connection to {to}"))?;
    stream.set_read_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{to} does not answer for {path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer by HTTP: {answer}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status: {head}"))?, body.to_owned()))
}

/// The metrics of an agent or allocator.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Requests the metrics.
    pub fn scrape(from: &Namespace, host: impl Into<IpAddr>, timeout: Duration) -> Result<Self> {
        let (status, body) = get(from, host, "/metrics", timeout)?;
        ensure!(status == 200 && body.ends_with("# EOF\n"), "status {status}: {body}");
        Ok(Self(body))
    }

    /// Returns the sum of a metric's values over all series that have these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let of_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let has = |line: &&str| labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")));
        let value = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
        // Not `sum`, whose result for no values is -0.
        self.0.lines().filter(of_it).filter(has).filter_map(value).fold(0.0, |sum, value| sum + value)
    }

    /// Returns the values of a gauge with this label alone.
    pub fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let start = format!("{name}{{{label}=\"");
        let series = self.0.lines().filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
        let series = series.filter(|(label, _)| !label.contains('"'));
        series.filter_map(|(label, value)| Some((label.to_owned(), value.parse().ok()?))).collect()
    }

    /// Returns whether there is a series of this metric.
    pub fn has(&self, name: &str) -> bool {
        self.0.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_summed_over_the_series_that_are_meant() {
        let metrics =
            Metrics("# TYPE a counter\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\",y=\"2\"} 4\na 5\n".to_owned());
        let sum = |name, labels: &[_]| metrics.sum(name, labels).to_string();
        assert_eq!(sum("a_total", &[]), "7");
        assert_eq!(sum("a_total", &[("x", "1")]), "3");
        assert_eq!(sum("a_total", &[("x", "3")]), "0");
        assert_eq!(metrics.by_label("a_total", "x"), [].into(), "it has two labels");
        let maps = Metrics("a{map=\"X\"} 3\na{map=\"Y\"} 0\nab{map=\"Z\"} 1\n".to_owned());
        assert_eq!(maps.by_label("a", "map"), [("X".to_owned(), 3), ("Y".to_owned(), 0)].into());
        assert!(metrics.has("a") && metrics.has("a_total") && !metrics.has("a_tot"));
    }
}
