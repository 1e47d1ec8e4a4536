//! A bulk transfer over TCP in both directions at once, checked by SHA-256 at both ends.
//!
//! The server identifies itself in a line, then sends back everything it gets. When the client has
//! closed its half, the server ends with the digest of what it has read. The client compares three
//! digests: of what it sent, of what the server read, and of what came back.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use sha2::{Digest as _, Sha256};

use crate::{identity::Answer, netns::Namespace, wait};

/// Bytes per write.
const CHUNK: usize = 65_536;
/// The time limit for a single byte, on both sides.
const STALL: Duration = Duration::from_secs(20);
/// The longest line.
const MAX_LINE: u64 = 1_024;
/// Characters of a digest in hexadecimal.
const DIGEST: usize = 64;

/// A running transfer: it sends until it is finished.
#[derive(Debug)]
pub struct Transfer {
    stop: Arc<AtomicBool>,
    /// Bytes that have come back so far.
    returned: Arc<AtomicU64>,
    client: Option<JoinHandle<Result<Answer>>>,
}

impl Transfer {
    /// Connects from a namespace and begins to send, with a pause after each 64 KiB.
    pub fn start(namespace: &Namespace, server: SocketAddr, pause: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let returned = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&returned));
        let stream = namespace.run(|| connect(server, STALL))?;
        let client = thread::Builder::new().name("transfer".to_owned()).spawn(move || {
            exchange(stream, pause, &stopped, &count)
                .with_context(|| format!("after {} bytes had come back from {server}", count.load(Ordering::Relaxed)))
        })?;
        Ok(Self { stop, returned, client: Some(client) })
    }

    /// Waits until this many more bytes have come back. Fails at once if the transfer has broken.
    pub fn wait_for_more(&mut self, bytes: u64, timeout: Duration) -> Result<()> {
        let wanted = self.returned.load(Ordering::Relaxed) + bytes;
        let broken = wait::until("a transfer's bytes", timeout, || {
            let returned = self.returned.load(Ordering::Relaxed);
            let broken = self.client.as_ref().is_none_or(JoinHandle::is_finished);
            ensure!(broken || returned >= wanted, "{returned} of {wanted} bytes came back");
            Ok(broken)
        })?;
        if broken {
            self.join().unwrap_or_else(|| Err(anyhow!("the transfer has ended")))?;
        }
        Ok(())
    }

    /// Stops sending, waits for the rest to come back, and compares the digests.
    pub fn finish(mut self) -> Result<Answer> {
        self.join().unwrap_or_else(|| Err(anyhow!("the transfer has ended")))
    }

    fn join(&mut self) -> Option<Result<Answer>> {
        self.stop.store(true, Ordering::Relaxed);
        Some(self.client.take()?.join().unwrap_or_else(|_| Err(anyhow!("the transfer panicked"))))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// Sends 64 KiB and gets them back, in the calling thread's network namespace. `timeout` limits the
/// connection attempt.
pub fn once(server: SocketAddr, timeout: Duration) -> Result<Answer> {
    exchange(connect(server, timeout)?, Duration::ZERO, &AtomicBool::new(true), &AtomicU64::new(0))
}

fn connect(server: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, timeout).context("no connection")?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

/// Runs the client's side.
fn exchange(stream: TcpStream, pause: Duration, stop: &AtomicBool, returned: &AtomicU64) -> Result<Answer> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(CHUNK, stream);
    let answer: Answer = line(&mut reader)?.parse()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || send(&mut writer, pause, stop));
        let received = receive(&mut reader, returned);
        // A failure here must not leave the sender waiting for its peer.
        if received.is_err() {
            let _ = reader.get_ref().shutdown(Shutdown::Both);
        }
        let sent = sender.join().unwrap_or_else(|_| Err(anyhow!("the sender panicked")));
        let (returned, read) = received.context("receiving")?;
        let sent = sent.context("sending")?;
        ensure!(read == sent, "the server read what hashes to {read}, {sent} was sent");
        ensure!(returned == sent, "what came back hashes to {returned}, {sent} was sent");
        Ok(answer)
    })
}

/// Sends pseudorandom numbers until it is stopped, then closes its half. Returns their digest.
fn send(writer: &mut TcpStream, pause: Duration, stop: &AtomicBool) -> Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    loop {
        for word in chunk.chunks_exact_mut(8) {
            // Xorshift (Marsaglia 2003): no part repeats, so a segment in a wrong place is
            // detected.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        hash.update(&chunk);
        writer.write_all(&chunk)?;
        if stop.load(Ordering::Relaxed) {
            writer.shutdown(Shutdown::Write)?;
            return Ok(hex(&hash.finalize()));
        }
        // This is the rate of the transfer, not a wait.
        thread::park_timeout(pause);
    }
}

/// Returns the digest of what came back, and the server's digest of what it read, which ends the
/// stream.
fn receive(reader: &mut impl Read, returned: &AtomicU64) -> Result<(String, String)> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    // The last bytes read so far: the server's digest, if none follow.
    let mut tail = Vec::new();
    loop {
        let read = reader.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        tail.extend_from_slice(&chunk[..read]);
        let data = tail.len().saturating_sub(DIGEST);
        hash.update(&tail[..data]);
        tail.drain(..data);
        returned.fetch_add(data as u64, Ordering::Relaxed);
    }
    ensure!(tail.len() == DIGEST, "the stream ended too early");
    Ok((hex(&hash.finalize()), String::from_utf8(tail).context("the server's digest")?))
}

/// Runs the server's side of one connection.
pub fn serve(stream: TcpStream, answer: &Answer) -> Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    let (mut reader, mut writer) = (stream.try_clone()?, stream);
    writer.write_all(format!("{answer}\n").as_bytes())?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = reader.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        hash.update(&chunk[..read]);
        writer.write_all(&chunk[..read])?;
    }
    Ok(writer.write_all(hex(&hash.finalize()).as_bytes())?)
}

fn line(reader: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    reader.by_ref().take(MAX_LINE).read_line(&mut line).context("no greeting")?;
    Ok(line)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Starts a server that applies `change` to what it read and sends it back at once.
    fn server(change: impl Fn(&mut [u8]) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, client) = listener.accept().unwrap();
            writeln!(stream, "service=a/b pod=c client={client}").unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            let digest = hex(&Sha256::digest(&all));
            change(&mut all);
            stream.write_all(&all).unwrap();
            stream.write_all(digest.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn a_true_echo_passes() {
        assert_eq!(once(server(|_| {}), STALL).unwrap().pod, "c");
    }

    #[test]
    fn a_changed_byte_is_told() {
        let error = once(server(|all| all[12_345] ^= 1), STALL).unwrap_err();
        assert!(error.to_string().contains("came back"), "{error}");
    }
}
