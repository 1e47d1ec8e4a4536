//! Sends requests to Services, each on a new connection. A [`Session`] is a connection that stays
//! open.

use std::{
    fmt,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage, bind,
            connect as connect_socket, recv, recvfrom, sendto, setsockopt, socket,
            sockopt::{ReceiveTimeout, ReuseAddr, SendTimeout},
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::{dns, frames::checksum, identity::Answer, sctp, transfer};

/// The limit of a response's length.
const MAX_REPLY: u64 = 16_384;
/// The name in DNS requests.
pub const DNS_NAME: &str = "who.example";

/// Tells an echo server to hold its reply until another client sends [`RELEASE`] to the same pod.
pub const HOLD: &str = "hold";
/// The server answers this once the pod holds a reply.
pub const HELD: &str = "held";
/// Tells the pod to send the reply that it holds.
pub const RELEASE: &str = "release";

/// A protocol that a [`crate::pod`] serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// HTTP/1.1, one request per connection.
    Http,
    /// Lines over TCP, each answered with an identification and the line. Like with HTTPS, the
    /// connection stays open.
    Echo,
    /// DNS over UDP.
    DnsUdp,
    /// DNS over TCP (RFC 7766).
    DnsTcp,
    /// One datagram, answered with another.
    UdpEcho,
    /// A [`transfer`] over TCP.
    Bulk,
    /// Lines over SCTP, like [`Kind::Echo`].
    Sctp,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Http, Self::Echo, Self::DnsUdp, Self::DnsTcp, Self::UdpEcho, Self::Bulk, Self::Sctp];

    /// Returns its name in arguments and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Echo => "echo",
            Self::DnsUdp => "dns-udp",
            Self::DnsTcp => "dns-tcp",
            Self::UdpEcho => "udp-echo",
            Self::Bulk => "bulk",
            Self::Sctp => "sctp",
        }
    }

    /// Returns its transport protocol.
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Http | Self::Echo | Self::DnsTcp | Self::Bulk => "TCP",
            Self::DnsUdp | Self::UdpEcho => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.with_context(|| format!("{name:?} is none of {}", known()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A request to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind of request.
    pub kind: Kind,
    /// The server.
    pub server: SocketAddr,
}

impl Request {
    /// A request of this kind to this address.
    pub fn new(kind: Kind, address: impl Into<IpAddr>, port: u16) -> Self {
        Self { kind, server: SocketAddr::new(address.into(), port) }
    }

    /// Sends the request once, in the calling thread's network namespace. `timeout` limits both the
    /// connection attempt and the reply.
    pub fn send(&self, timeout: Duration) -> Result<Answer> {
        let asked = match self.kind {
            Kind::Http => self.http(timeout),
            Kind::Echo => Session::connect(self.server, timeout).and_then(|mut session| session.echo("hello")),
            Kind::DnsUdp => self.dns_over_udp(timeout),
            Kind::DnsTcp => self.dns_over_tcp(timeout),
            Kind::UdpEcho => self.udp_echo(timeout),
            Kind::Sctp => Session::associate(self.server, timeout).and_then(|mut session| session.echo("hello")),
            Kind::Bulk => transfer::once(self.server, timeout),
        };
        asked.with_context(|| format!("{} request to {}", self.kind, self.server))
    }

    fn http(&self, timeout: Duration) -> Result<Answer> {
        let mut stream = connect(self.server, timeout)?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.server)?;
        let mut reply = String::new();
        stream.take(MAX_REPLY).read_to_string(&mut reply).context("no whole reply")?;
        let (head, body) = reply.split_once("\r\n\r\n").context("no HTTP reply")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "the reply is {head:?}");
        body.parse()
    }

    fn dns_over_udp(&self, timeout: Duration) -> Result<Answer> {
        let socket = udp_socket(self.server, timeout)?;
        let id = socket.local_addr()?.port();
        socket.send(&dns::query(id, DNS_NAME)?)?;
        let mut reply = [0; dns::MAX_MESSAGE];
        let length = received(|| socket.recv(&mut reply)).context("no reply")?;
        dns::parse(&reply[..length], id)?.1.parse()
    }

    fn dns_over_tcp(&self, timeout: Duration) -> Result<Answer> {
        let mut stream = connect(self.server, timeout)?;
        let id = stream.local_addr()?.port();
        let query = dns::query(id, DNS_NAME)?;
        let length = u16::try_from(query.len())?;
        stream.write_all(&[&length.to_be_bytes(), query.as_slice()].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length).context("no reply")?;
        let mut reply = vec![0; usize::from(u16::from_be_bytes(length)).min(dns::MAX_MESSAGE)];
        stream.read_exact(&mut reply).context("no whole reply")?;
        dns::parse(&reply, id)?.1.parse()
    }

    fn udp_echo(&self, timeout: Duration) -> Result<Answer> {
        let datagrams = Datagrams::connect(self.server, timeout)?;
        datagrams.send("hello")?;
        datagrams.receive()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.server)
    }
}

/// A connection to an echo server that stays open.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    /// Connects in the calling thread's network namespace. Any thread can use the connection.
    /// `timeout` also limits each reply.
    pub fn connect(server: SocketAddr, timeout: Duration) -> Result<Self> {
        Ok(Self { stream: BufReader::new(connect(server, timeout)?) })
    }

    /// Like [`Self::connect`], over SCTP.
    pub fn associate(server: SocketAddr, timeout: Duration) -> Result<Self> {
        Ok(Self { stream: BufReader::new(sctp::connect(server, timeout)?) })
    }

    /// Like [`Session::connect`], from this port of the client, even if an earlier connection from
    /// it is remembered.
    pub fn connect_from(port: u16, server: SocketAddr, timeout: Duration) -> Result<Self> {
        let (family, any) = match server {
            SocketAddr::V4(_) => (AddressFamily::Inet, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (AddressFamily::Inet6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, ReuseAddr, &true)?;
        let limit = TimeVal::microseconds(i64::try_from(timeout.as_micros())?);
        setsockopt(&socket, SendTimeout, &limit)?;
        setsockopt(&socket, ReceiveTimeout, &limit)?;
        let local = SockaddrStorage::from(SocketAddr::new(any, port));
        bind(socket.as_raw_fd(), &local).with_context(|| format!("cannot bind port {port}"))?;
        // The send timeout also limits this (socket(7)).
        connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(server)).context("no connection")?;
        Ok(Self { stream: BufReader::new(TcpStream::from(socket)) })
    }

    /// Limits each wait from now on.
    pub fn limit(&self, timeout: Duration) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(Some(timeout))?)
    }

    /// Closes the connection, and waits until the server has closed it too.
    pub fn close(mut self) -> Result<()> {
        self.stream.get_ref().shutdown(Shutdown::Write)?;
        let rest = self.stream.read_to_end(&mut Vec::new()).context("the server did not close")?;
        ensure!(rest == 0, "{rest} bytes came after the last reply");
        Ok(())
    }

    /// Aborts the connection with a RST.
    pub fn reset(self) -> Result<()> {
        dissolve(self.stream.get_ref())
    }

    /// Sends a line and waits for its echo.
    pub fn echo(&mut self, line: &str) -> Result<Answer> {
        self.send(line)?;
        self.receive(line)
    }

    /// Sends a line.
    pub fn send(&mut self, line: &str) -> Result<()> {
        Ok(self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits for a line's echo.
    pub fn receive(&mut self, line: &str) -> Result<Answer> {
        let mut reply = String::new();
        self.stream.by_ref().take(MAX_REPLY).read_line(&mut reply).context("no reply")?;
        ensure!(reply.trim_end().ends_with(&format!("line={line}")), "{line:?} was answered with {reply:?}");
        reply.parse()
    }

    /// Returns the client's address and port.
    pub fn local_address(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }
}

/// A UDP socket that stays open. It takes replies only from its echo server's address and port.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
}

impl Datagrams {
    /// Opens the socket in the calling thread's network namespace. `timeout` limits the wait for
    /// each reply.
    pub fn connect(server: SocketAddr, timeout: Duration) -> Result<Self> {
        Ok(Self { socket: udp_socket(server, timeout)? })
    }

    /// Closes the socket.
    pub fn close(self) -> Result<()> {
        dissolve(&self.socket)
    }

    /// Sends without checksums from now on, as IPv4 allows (RFC 768).
    pub fn leave_checksums_out(&self) -> Result<()> {
        let (yes, length) = (1_i32, libc::socklen_t::try_from(size_of::<i32>())?);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the value is a live number of that length, which is what the option takes
        // (socket(7)).
        let done =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const yes).cast(), length) };
        ensure!(done == 0, "cannot do without checksums: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Sends a datagram.
    pub fn send(&self, text: &str) -> Result<()> {
        self.socket.send(text.as_bytes())?;
        Ok(())
    }

    /// Waits for a reply.
    pub fn receive(&self) -> Result<Answer> {
        self.reply()?.parse()
    }

    /// Sends a text and waits for the reply, which must contain all of it.
    pub fn echo(&self, text: &str) -> Result<Answer> {
        self.send(text)?;
        let reply = self.reply()?;
        ensure!(reply.ends_with(&format!(" said={text}")), "{} bytes came back otherwise", text.len());
        reply.parse()
    }

    /// Sends texts one after the other. A busy machine may drop one of the long ones, which have
    /// many fragments. So one of all texts may be sent again.
    pub fn echo_all(&self, texts: &[&str]) -> Result<Vec<Answer>> {
        const UNFRAGMENTED: usize = 1_400;
        let mut again = true;
        let echo = |text: &&str| {
            let answer = match self.echo(text) {
                Err(_) if text.len() > UNFRAGMENTED && mem::take(&mut again) => self.echo(text),
                answer => answer,
            };
            answer.with_context(|| format!("{} bytes", text.len()))
        };
        texts.iter().map(echo).collect()
    }

    fn reply(&self) -> Result<String> {
        let mut reply = vec![0; usize::from(u16::MAX)];
        let length = received(|| self.socket.recv(&mut reply)).context("no reply")?;
        reply.truncate(length);
        Ok(String::from_utf8(reply)?)
    }
}

fn connect(server: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, timeout).context("no connection")?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn udp_socket(server: SocketAddr, timeout: Duration) -> Result<UdpSocket> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(timeout))?;
    Ok(socket)
}

/// Receives by `call`. With a time limit, the call ends early if this process is stopped and continued
/// (signal(7)).
fn received<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends one ICMP echo request (RFC 792) with `length` bytes of data, and waits for its reply.
pub fn ping(address: Ipv4Addr, length: usize, timeout: Duration) -> Result<()> {
    const ECHO_REPLY: u8 = 0;
    const ECHO_REQUEST: u8 = 8;
    const HEADER: usize = 8;
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)
        .context("ICMP socket")?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::microseconds(i64::try_from(timeout.as_micros())?))?;
    let identifier = u16::try_from(std::process::id() & 0xffff)?.to_be_bytes();
    let mut request = vec![ECHO_REQUEST, 0, 0, 0, identifier[0], identifier[1], 0, 1];
    request.extend((0..length).map(|i| i.to_le_bytes()[0]));
    let sum = checksum(&request).to_be_bytes();
    request[2..4].copy_from_slice(&sum);
    sendto(socket.as_raw_fd(), &request, &SockaddrIn::from(SocketAddrV4::new(address, 0)), MsgFlags::empty())?;
    let mut packet = vec![0; 65_536];
    loop {
        let read =
            received(|| Ok(recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty())?)).context("no echo reply")?;
        // An IPv4 packet without options: raw sockets get the header too.
        let Some((header, message)) = packet[..read].split_at_checked(20) else { continue };
        let is_reply = header[12..16] == address.octets() && message.first() == Some(&ECHO_REPLY);
        if is_reply && message[4..] == request[4..] && message.len() == HEADER + length {
            ensure!(checksum(message) == 0, "the echo reply's checksum is wrong");
            return Ok(());
        }
    }
}

/// Shuts down a socket at once. Closing is not enough: a process that another thread starts right
/// now has the socket too, until its exec.
fn dissolve(socket: &impl AsRawFd) -> Result<()> {
    // SAFETY: zeros are an address, of the family `AF_UNSPEC`.
    let nowhere: libc::sockaddr = unsafe { mem::zeroed() };
    let length = libc::socklen_t::try_from(size_of_val(&nowhere))?;
    // SAFETY: the address is as long as is said.
    let dissolved = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
    Ok(Errno::result(dissolved).map(drop)?)
}

/// Sends one ICMPv6 echo request (RFC 4443, 4.1) with `length` bytes of data, and waits for its
/// reply. The kernel handles the checksums.
pub fn ping_v6(address: Ipv6Addr, length: usize, timeout: Duration) -> Result<()> {
    const ECHO_REPLY: u8 = 129;
    const ECHO_REQUEST: u8 = 128;
    let socket = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6)
        .context("ICMPv6 socket")?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::microseconds(i64::try_from(timeout.as_micros())?))?;
    let identifier = u16::try_from(std::process::id() & 0xffff)?.to_be_bytes();
    let mut request = vec![ECHO_REQUEST, 0, 0, 0, identifier[0], identifier[1], 0, 1];
    request.extend((0..length).map(|i| i.to_le_bytes()[0]));
    let to = SocketAddrV6::new(address, 0, 0, 0);
    sendto(socket.as_raw_fd(), &request, &SockaddrIn6::from(to), MsgFlags::empty())?;
    let mut message = vec![0; 65_536];
    loop {
        let reply = received(|| Ok(recvfrom::<SockaddrIn6>(socket.as_raw_fd(), &mut message)?));
        let (read, from) = reply.context("no echo reply")?;
        let is_reply = message[0] == ECHO_REPLY && from.is_some_and(|from| from.ip() == address);
        if is_reply && read == request.len() && message[4..read] == request[4..] {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reset_is_sent_though_a_process_that_starts_has_the_socket_too() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let session = Session::connect(listener.local_addr().unwrap(), Duration::from_secs(20)).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let _copy = session.stream.get_ref().try_clone().unwrap();
        session.reset().unwrap();
        served.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(served.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
