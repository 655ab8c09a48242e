//! Untrusted input: files to read, and text to show.
//!
//! A path may name anything. Opening a FIFO waits for a writer, reading `/dev/zero` never ends, and
//! some devices act when they are opened for reading. So files are opened with `O_NONBLOCK`, and
//! must be regular ones, or pipes where a reader goes through them once. Text that came from
//! elsewhere (names of processes, hosts, files and programs) may hold sequences that terminals obey;
//! [`printable`] and [`Printable`] write these out.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Bytes of a file of settings; the longest that we ship has 6 kB.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Longest silence of a pipe before its first byte.
const MAX_SILENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Opens a regular file for reading, without ever waiting.
///
/// # Errors
/// The system's, and [`ErrorKind::InvalidInput`] for anything that is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let (file, kind) = open_any(path)?;
    if !kind.is_file() {
        return Err(refuse(kind, "a regular file is needed"));
    }
    Ok(file)
}

/// Opens a regular file or a pipe that is read once, from its start to its end.
///
/// # Errors
/// Those of [`open`], and [`ErrorKind::TimedOut`] for a pipe to which nobody writes.
pub fn open_stream(path: &Path) -> io::Result<File> {
    let (file, kind) = open_any(path)?;
    if kind.is_file() {
        return Ok(file);
    }
    if !kind.is_fifo() {
        return Err(refuse(kind, "a regular file or a pipe is needed"));
    }
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    let mut readable = [PollFd::new(&file, PollFlags::IN)];
    if poll(&mut readable, Some(&MAX_SILENCE))? == 0 {
        let seconds = MAX_SILENCE.tv_sec;
        let problem = format!("nobody wrote to this pipe within {seconds} s");
        return Err(io::Error::new(ErrorKind::TimedOut, problem));
    }
    Ok(file)
}

/// Reads a regular file of text, of at most `most` bytes.
///
/// # Errors
/// Those of [`open`], and [`ErrorKind::InvalidData`] when it is longer or no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let problem = format!("longer than {most} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, problem));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("no UTF-8 at byte {at}"))
    })
}

fn open_any(path: &Path) -> io::Result<(File, std::fs::FileType)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    Ok((file, kind))
}

fn refuse(kind: std::fs::FileType, needed: &str) -> io::Error {
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    io::Error::new(ErrorKind::InvalidInput, format!("{what}; {needed}"))
}

/// Text without characters that terminals obey or that cannot be seen, which are written as in
/// Rust's strings (`\u{1b}`). Line ends are such characters.
///
/// ```
/// assert_eq!(contigua_input::printable("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
/// assert_eq!(contigua_input::printable("Größe 'x'"), "Größe 'x'");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Shows a message of several lines without control codes.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1;
    if text.chars().all(|c| is_plain(c) || keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_plain(c) || keep(c) {
            escaped.push(c);
        } else {
            write!(escaped, "{}", c.escape_debug()).expect("a string has room");
        }
    }
    Cow::Owned(escaped)
}

/// A writer of text for people, in which [`printable_lines`] is applied to all that is written.
///
/// Each call must be given whole characters, as `write!` does; put buffers below it, not above.
pub struct Printable<W>(pub W);

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(printable_lines(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            mode,
            rustix::fs::makedev(0, 0),
        )
        .unwrap();
        (folder, path)
    }

    #[test]
    fn a_pipe_and_a_device_are_refused_at_once() {
        let (_folder, pipe) = fifo();
        let error = open(&pipe).unwrap_err();
        assert_eq!(error.to_string(), "a pipe; a regular file is needed");
        let error = open(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "a device; a regular file is needed");
        let error = open_stream(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().starts_with("a device"), "{error}");
        let error = open(Path::new("/")).unwrap_err();
        assert!(error.to_string().starts_with("a directory"), "{error}");
    }

    #[test]
    fn a_pipe_is_read_as_a_stream() {
        let (_folder, pipe) = fifo();
        let path = pipe.clone();
        let writer = thread::spawn(move || std::fs::write(path, "through a pipe"));
        let mut text = String::new();
        open_stream(&pipe)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(text, "through a pipe");
    }

    #[test]
    fn text_that_is_too_long_or_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let error = read_text(&path, 4).unwrap_err();
        assert_eq!(error.to_string(), "longer than 4 bytes");
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path, 5).unwrap_err();
        assert_eq!(error.to_string(), "no UTF-8 at byte 2");
    }

    #[test]
    fn terminals_are_not_told_what_to_do() {
        for (text, shown) in [
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\rb", "a\\rb"),
            ("\u{202e}txt", "\\u{202e}txt"),
            ("C:\\x \"quoted\" 'y'", "C:\\x \"quoted\" 'y'"),
        ] {
            assert_eq!(printable(text), shown);
        }
        let mut out = Printable(Vec::new());
        writeln!(out, "name \x1b[31m").unwrap();
        assert_eq!(out.0, b"name \\u{1b}[31m\n");
    }
}
