//! HTTP for one small page: one thread, and a bound on everything that a client could make grow.
//!
//! Servers from libraries keep connections for as long as clients like, or a thread for each.
//! Metrics are asked for every few seconds by few, so each connection gets one answer and a few
//! seconds, and when there are too many the oldest idle one goes. A web page that a user of this
//! machine looks at must not read the answer under a name of its own (DNS rebinding), so only known
//! names are served.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Headers of a request; browsers send about twenty.
const MOST_HEADERS: usize = 64;
/// Pieces of bytes that are read from one connection before others get their turn.
const MOST_READS: usize = 16;

/// Limits on clients.
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request's head.
    pub head: usize,
    /// From the beginning of a connection to its end.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: 8 << 10,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Response to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    text: Arc<str>,
}

impl Answer {
    /// A status and a text.
    pub fn new(status: u16, text: &str) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    fn into_bytes(self, with_text: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.text.len()
        )
        .into_bytes();
        if with_text {
            bytes.extend_from_slice(self.text.as_bytes());
        }
        bytes
    }
}

/// Progress of a connection.
enum Stage {
    /// The part of the request received so far.
    Asking(Vec<u8>),
    /// The answer, and how much of it was sent.
    Answering(Vec<u8>, usize),
    /// Answered. Closed with bytes unread, the client might lose the answer.
    Leaving,
}

struct Connection {
    stream: TcpStream,
    began: Instant,
    stage: Stage,
}

/// Answers requests for paths, for ever.
///
/// # Errors
/// When the system cannot wait for connections.
pub fn serve(
    listener: &TcpListener,
    limits: &Limits,
    hosts: &[String],
    answer: &mut dyn FnMut(&str) -> Answer,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<Connection> = Vec::with_capacity(limits.connections);
    loop {
        wait(listener, &connections, limits)?;
        connections.retain_mut(|connection| {
            connection.began.elapsed() < limits.timeout
                && connection.advance(limits, hosts, answer).is_ok()
        });
        for _ in 0..limits.connections {
            match listener.accept() {
                Ok((stream, _)) => {
                    if connections.len() >= limits.connections {
                        drop_one(&mut connections);
                    }
                    let mut connection = Connection {
                        stream,
                        began: Instant::now(),
                        stage: Stage::Asking(Vec::new()),
                    };
                    let ready = connection.stream.set_nonblocking(true);
                    if ready.is_ok() && connection.advance(limits, hosts, answer).is_ok() {
                        connections.push(connection);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    // No file descriptors, or no memory: others may give some back.
                    if connections.is_empty() {
                        crate::output::complain(format_args!(
                            "no connection was accepted: {error}"
                        ));
                        thread::sleep(Duration::from_millis(500));
                    }
                    drop_one(&mut connections);
                    break;
                }
            }
        }
    }
}

/// Returns true if a client was gone before it was accepted (accept(2): such errors are passed on).
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}

/// Closes the oldest connection that is not being answered, or the oldest.
fn drop_one(connections: &mut Vec<Connection>) {
    let oldest = connections
        .iter()
        .enumerate()
        .min_by_key(|(_, known)| (matches!(known.stage, Stage::Answering(..)), known.began));
    if let Some((index, _)) = oldest {
        connections.swap_remove(index);
    }
}

/// Sleeps until something happens on a connection, or one has lasted too long.
fn wait(listener: &TcpListener, connections: &[Connection], limits: &Limits) -> io::Result<()> {
    let mut files = vec![PollFd::new(listener, PollFlags::IN)];
    files.extend(connections.iter().map(|known| {
        let wanted = match known.stage {
            Stage::Answering(..) => PollFlags::OUT,
            Stage::Asking(_) | Stage::Leaving => PollFlags::IN,
        };
        PollFd::new(&known.stream, wanted)
    }));
    let oldest = connections.iter().map(|known| known.began).min();
    let left = oldest.map(|began| limits.timeout.saturating_sub(began.elapsed()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut files, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Connection {
    /// Goes on as far as that is possible without waiting. An error if the connection is over.
    fn advance(
        &mut self,
        limits: &Limits,
        hosts: &[String],
        answer: &mut dyn FnMut(&str) -> Answer,
    ) -> io::Result<()> {
        let mut piece = [0; 4096];
        for _ in 0..MOST_READS {
            match &mut self.stage {
                Stage::Asking(head) => {
                    let Some(count) = soon(self.stream.read(&mut piece))? else {
                        return Ok(());
                    };
                    let seen = head.len().saturating_sub(3);
                    head.extend_from_slice(&piece[..count]);
                    let ends = head[seen..].windows(4).any(|end| end == b"\r\n\r\n");
                    if ends || head.len() > limits.head {
                        let bytes = respond(head, limits, hosts, answer);
                        self.stage = Stage::Answering(bytes, 0);
                    }
                }
                Stage::Answering(bytes, sent) => {
                    let Some(count) = soon(self.stream.write(&bytes[*sent..]))? else {
                        return Ok(());
                    };
                    *sent += count;
                    if *sent == bytes.len() {
                        self.stream.shutdown(Shutdown::Write)?;
                        self.stage = Stage::Leaving;
                    }
                }
                Stage::Leaving => {
                    if soon(self.stream.read(&mut piece))?.is_none() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// The number of bytes that were read or written, or nothing if that takes waiting. An error at the
/// end.
fn soon(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The bytes of the answer to a request that begins with `head`.
fn respond(
    head: &[u8],
    limits: &Limits,
    hosts: &[String],
    answer: &mut dyn FnMut(&str) -> Answer,
) -> Vec<u8> {
    let refuse = |status, text: &str| Answer::new(status, text).into_bytes(true);
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&head[..head.len().min(limits.head)]) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refuse(431, "the request's head is too long\n");
        }
        Err(_) => return refuse(400, "this is no request of HTTP/1.1\n"),
    }
    let mut named = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("host"));
    match (named.next(), named.next(), request.version) {
        (None, None, Some(0)) => {}
        (Some(host), None, _) => {
            if !is_ours(host.value, hosts) {
                let text =
                    "this machine is not asked for metrics by that name; --host allows one\n";
                return refuse(421, text);
            }
        }
        _ => return refuse(400, "a request has one Host\n"),
    }
    let with_text = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refuse(405, "there is only GET\n"),
    };
    let path = request.path.unwrap_or_default();
    answer(path.split('?').next().unwrap_or_default()).into_bytes(with_text)
}

/// Returns true if the `Host` of a request is an address, `localhost`, or one of our names, with or
/// without a port. Nobody can make a name of an address.
fn is_ours(host: &[u8], hosts: &[String]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    if let Some(address) = host.strip_prefix('[') {
        let address = address.split(']').next().unwrap_or_default();
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// A server with a page of 200 KB, until the test ends.
    fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let hosts = ["node7".to_owned()];
            let page = "x".repeat(200_000);
            serve(&listener, &limits, &hosts, &mut |path| match path {
                "/page" => Answer::new(200, &page),
                _ => Answer::new(404, "no\n"),
            })
        });
        address
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn is_served(address: SocketAddr) -> bool {
        let answer = ask(address, "GET /page?x HTTP/1.1\r\nHost: localhost\r\n\r\n");
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(&"x".repeat(200_000))
    }

    #[test]
    fn idle_connections_keep_nobody_out() {
        let address = server(Limits::default());
        let idle: Vec<_> = (0..400)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert!(is_served(address));
        drop(idle);
        assert!(is_served(address));
    }

    #[test]
    fn a_client_that_never_reads_blocks_no_other() {
        let address = server(Limits::default());
        let request = "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let deaf: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_nonblocking(true).unwrap();
                // As many as fit in the socket's buffers.
                while stream.write(request.repeat(100).as_bytes()).is_ok() {}
                stream
            })
            .collect();
        assert!(is_served(address));
        drop(deaf);
    }

    #[test]
    fn a_head_that_does_not_end_is_refused_early() {
        let address = server(Limits::default());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nA: ").unwrap();
        stream.write_all("a".repeat(64 << 10).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let many = "A: b\r\n".repeat(100);
        assert!(ask(address, &format!("GET / HTTP/1.1\r\n{many}\r\n")).contains(" 431 "));
    }

    #[test]
    fn a_connection_ends_in_time_whatever_it_does() {
        let limits = Limits {
            timeout: Duration::from_millis(100),
            ..Limits::default()
        };
        let address = server(limits);
        let mut idle = TcpStream::connect(address).unwrap();
        idle.write_all(b"GET /page HTTP/1.1\r\n").unwrap();
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        assert!(is_served(address));
    }

    #[test]
    fn only_names_of_this_machine_are_served() {
        let address = server(Limits::default());
        let status = |host: &str| {
            let answer = ask(address, &format!("GET /page HTTP/1.1\r\n{host}\r\n"));
            answer["HTTP/1.1 ".len()..][..3].parse::<u16>().unwrap()
        };
        for host in [
            "localhost",
            "LOCALHOST:9835",
            "127.0.0.1:1",
            "10.1.2.3",
            "[::1]:9835",
            "node7:9835",
            "Node7.",
        ] {
            assert_eq!(status(&format!("Host: {host}\r\n")), 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9835",
            "node77",
            "[x]",
            "\u{fc}",
        ] {
            assert_eq!(status(&format!("Host: {host}\r\n")), 421, "{host}");
        }
        assert_eq!(status(""), 400);
        assert_eq!(status("Host: localhost\r\nHost: evil.example\r\n"), 400);
    }

    #[test]
    fn other_requests_are_told_what_is_wrong() {
        let address = server(Limits::default());
        assert!(ask(address, "GET /page HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(ask(address, "HEAD /page HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(ask(address, "POST /page HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(address, "GET /none HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "\u{1}\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }
}
