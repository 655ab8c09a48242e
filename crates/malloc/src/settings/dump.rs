//! `DUMP`: a signal by name, and a file.

use crate::files::FileName;

/// A signal, and the file that it has written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The signal.
    pub signal: i32,
    /// The file; none: standard error.
    pub file: Option<FileName>,
}

/// Signals that people send; those that faults raise are not among them.
const SIGNALS: [(&[u8], i32); 11] = [
    (b"HUP", libc::SIGHUP),
    (b"INT", libc::SIGINT),
    (b"QUIT", libc::SIGQUIT),
    (b"USR1", libc::SIGUSR1),
    (b"USR2", libc::SIGUSR2),
    (b"TERM", libc::SIGTERM),
    (b"URG", libc::SIGURG),
    (b"VTALRM", libc::SIGVTALRM),
    (b"PROF", libc::SIGPROF),
    (b"WINCH", libc::SIGWINCH),
    (b"PWR", libc::SIGPWR),
];

impl Dump {
    /// `SIGNAL` or `SIGNAL:FILE`; signals by name, with `SIG` or without, or as `RTMIN+n`.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let colon = value.iter().position(|&byte| byte == b':');
        let (name, file) = match colon {
            Some(at) => (&value[..at], Some(FileName::new(&value[at + 1..])?)),
            None => (value, None),
        };
        let name = name.strip_prefix(b"SIG").unwrap_or(name);
        let signal = if let Some(number) = name.strip_prefix(b"RTMIN+") {
            let number: i32 = core::str::from_utf8(number).ok()?.parse().ok()?;
            libc::SIGRTMIN()
                .checked_add(number)
                .filter(|signal| (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(signal))?
        } else {
            SIGNALS.iter().find(|(known, _)| *known == name)?.1
        };
        Some(Self { signal, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_signal_known_by_its_names_and_a_fault_not() {
        let signal = |value: &[u8]| Dump::parse(value).map(|dump| dump.signal);
        assert_eq!(signal(b"SIGUSR1"), Some(libc::SIGUSR1));
        assert_eq!(signal(b"QUIT:/tmp/a:b"), Some(libc::SIGQUIT));
        assert_eq!(signal(b"RTMIN+3"), Some(libc::SIGRTMIN() + 3));
        for wrong in [
            &b"SEGV"[..],
            b"KILL",
            b"",
            b"USR1:",
            b"RTMIN+99",
            b"RTMIN+-1",
        ] {
            assert_eq!(signal(wrong), None);
        }
    }
}
