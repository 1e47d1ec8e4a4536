//! A pod: real servers that report in each reply who they are and which client they see.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use vipmux_tests::{
    client::{HELD, HOLD, Kind, RELEASE},
    dns,
    identity::Answer,
    pod::Listener,
    sctp, transfer,
};

/// The limit of a request's length.
const MAX_REQUEST: u64 = 8192;
/// The time limit for a client's request.
const CLIENT_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Parser)]
struct Arguments {
    /// The pod's name.
    #[arg(long)]
    name: String,
    /// An address of the pod, any number of times.
    #[arg(long, required = true)]
    address: Vec<IpAddr>,
    /// KIND:PORT:NAMESPACE/SERVICE, any number of times.
    #[arg(long, required = true)]
    listen: Vec<Listener>,
}

/// Holds replies. A server that gets [`HOLD`] holds its reply until any server of the pod gets
/// [`RELEASE`].
#[derive(Default)]
struct Gate {
    held: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self, request: &str) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            HOLD => {
                *held += 1;
                let before = *held;
                self.changed.notify_all();
                drop(self.changed.wait_while(held, |now| *now >= before));
            }
            HELD => drop(self.changed.wait_while(held, |now| *now == 0)),
            RELEASE => {
                *held = held.saturating_sub(1);
                self.changed.notify_all();
            }
            _ => {}
        }
    }
}

/// One server of the pod.
struct Server {
    pod: String,
    /// The address in DNS responses.
    address: Ipv4Addr,
    service: String,
    kind: Kind,
    gate: Arc<Gate>,
}

impl Server {
    fn answer(&self, client: SocketAddr) -> Answer {
        Answer { service: self.service.clone(), pod: self.pod.clone(), client }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let gate = Arc::new(Gate::default());
    let mut servers = Vec::new();
    let v4 = arguments.address.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    for listener in arguments.listen {
        let server = Arc::new(Server {
            pod: arguments.name.clone(),
            address: v4.unwrap_or(Ipv4Addr::UNSPECIFIED),
            service: listener.service,
            kind: listener.kind,
            gate: Arc::clone(&gate),
        });
        for address in &arguments.address {
            let at = SocketAddr::new(*address, listener.port);
            servers.push(start(Arc::clone(&server), at).with_context(|| format!("cannot listen on {at}"))?);
        }
    }
    println!("listening");
    for server in servers {
        // A server only ends if it fails. Then the pod ends.
        server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    Ok(())
}

fn start(server: Arc<Server>, at: SocketAddr) -> Result<thread::JoinHandle<Result<()>>> {
    let thread = thread::Builder::new().name(server.kind.to_string());
    Ok(match server.kind {
        Kind::Http | Kind::Echo | Kind::DnsTcp | Kind::Bulk => {
            let listener = TcpListener::bind(at)?;
            thread.spawn(move || accept(&server, &listener))?
        }
        Kind::Sctp => {
            let listener = sctp::bound(at)?;
            thread.spawn(move || accept(&server, &listener))?
        }
        Kind::DnsUdp | Kind::UdpEcho => {
            let socket = UdpSocket::bind(at)?;
            thread.spawn(move || reply_to_datagrams(&server, &socket))?
        }
    })
}

fn accept(server: &Arc<Server>, listener: &TcpListener) -> Result<()> {
    loop {
        // The client closed the connection before it was accepted. That is no failure.
        let Ok((stream, client)) = listener.accept() else { continue };
        let server = Arc::clone(server);
        thread::Builder::new().spawn(move || {
            let outcome = match server.kind {
                Kind::Http => http(&server, stream, client),
                Kind::DnsTcp => dns_over_tcp(&server, stream, client),
                Kind::Bulk => transfer::serve(stream, &server.answer(client)),
                _ => echo(&server, stream, client),
            };
            if let Err(error) = outcome {
                eprintln!("{} from {client}: {error:#}", server.kind);
            }
        })?;
    }
}

fn http(server: &Server, stream: TcpStream, client: SocketAddr) -> Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut left = MAX_REQUEST;
    // The head ends with an empty line.
    while !matches!(line.as_str(), "\r\n" | "\n") {
        line.clear();
        let read = reader.by_ref().take(left).read_line(&mut line)?;
        left -= read as u64;
        anyhow::ensure!(read > 0, "no whole request");
    }
    let body = format!("{}\n", server.answer(client));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n";
    Ok(write!(reader.into_inner(), "{head}Content-Length: {}\r\n\r\n{body}", body.len())?)
}

fn echo(server: &Server, stream: TcpStream, client: SocketAddr) -> Result<()> {
    if server.kind != Kind::Sctp {
        stream.set_nodelay(true)?;
    }
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.by_ref().take(MAX_REQUEST).read_line(&mut line)? > 0 {
        server.gate.pass(line.trim_end());
        let reply = format!("{} line={}\n", server.answer(client), line.trim_end());
        reader.get_mut().write_all(reply.as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn dns_over_tcp(server: &Server, mut stream: TcpStream, client: SocketAddr) -> Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut query = vec![0; usize::from(u16::from_be_bytes(length)).min(dns::MAX_MESSAGE)];
    stream.read_exact(&mut query)?;
    let answer = dns::answer(&query, server.address, &server.answer(client).to_string())
        .context("not a query for an A record")?;
    let length = u16::try_from(answer.len())?;
    Ok(stream.write_all(&[&length.to_be_bytes(), answer.as_slice()].concat())?)
}

fn reply_to_datagrams(server: &Server, socket: &UdpSocket) -> Result<()> {
    let mut datagram = vec![0; usize::from(u16::MAX)];
    loop {
        // An ICMP error about an earlier reply is reported here. It is ignored.
        let Ok((length, client)) = socket.recv_from(&mut datagram) else { continue };
        let text = server.answer(client).to_string();
        let reply = if server.kind == Kind::DnsUdp {
            dns::answer(&datagram[..length], server.address, &text)
        } else {
            let said = String::from_utf8_lossy(&datagram[..length]);
            server.gate.pass(&said);
            Some(format!("{text} said={said}").into_bytes())
        };
        if let Some(reply) = reply {
            let _ = socket.send_to(&reply, client);
        }
    }
}
