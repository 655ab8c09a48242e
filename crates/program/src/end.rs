//! End of a program: exit, signal, or interruption.

use std::fmt;

/// End of a program, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with a status.
    Exited(u8),
    /// A signal ended it.
    Killed(u8),
    /// The run ended it.
    Stopped(Stop),
    /// It could not be observed to its end, for this reason.
    Failed(String),
}

/// Why a run ends its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The time that it was given is over.
    Time,
    /// The run was interrupted.
    Interrupted,
    /// All that was to be simulated has been.
    Done,
}

/// The first byte of an encoded [`End`].
mod kind {
    pub const EXITED: u8 = 1;
    pub const KILLED: u8 = 2;
    pub const TIME: u8 = 3;
    pub const INTERRUPTED: u8 = 4;
    pub const DONE: u8 = 5;
    pub const FAILED: u8 = 6;
}

impl End {
    /// The status that a shell reports for it; 0 where the run ended the program.
    #[must_use]
    pub const fn exit_code(&self) -> i32 {
        match self {
            Self::Exited(status) => *status as i32,
            Self::Killed(signal) => 128 + *signal as i32,
            Self::Stopped(Stop::Interrupted) => 128 + libc::SIGINT,
            Self::Stopped(_) => 0,
            Self::Failed(_) => 1,
        }
    }

    /// The bytes that [`End::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Exited(status) => vec![kind::EXITED, *status],
            Self::Killed(signal) => vec![kind::KILLED, *signal],
            Self::Stopped(Stop::Time) => vec![kind::TIME],
            Self::Stopped(Stop::Interrupted) => vec![kind::INTERRUPTED],
            Self::Stopped(Stop::Done) => vec![kind::DONE],
            Self::Failed(reason) => [&[kind::FAILED], reason.as_bytes()].concat(),
        }
    }

    /// Reads the bytes of [`End::encode`]; `None` for others.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            [kind::EXITED, status] => Self::Exited(*status),
            [kind::KILLED, signal] => Self::Killed(*signal),
            [kind::TIME] => Self::Stopped(Stop::Time),
            [kind::INTERRUPTED] => Self::Stopped(Stop::Interrupted),
            [kind::DONE] => Self::Stopped(Stop::Done),
            [kind::FAILED, reason @ ..] => Self::Failed(String::from_utf8(reason.to_vec()).ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
            Self::Stopped(Stop::Time) => f.write_str("was stopped when its time was over"),
            Self::Stopped(Stop::Interrupted) => f.write_str("was interrupted"),
            Self::Stopped(Stop::Done) => f.write_str("was stopped when the run was done"),
            Self::Failed(reason) => write!(f, "could not be observed to its end: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_is_read_as_it_was_written() {
        for end in [
            End::Exited(0),
            End::Exited(255),
            End::Killed(11),
            End::Stopped(Stop::Time),
            End::Stopped(Stop::Interrupted),
            End::Stopped(Stop::Done),
            End::Failed("no /proc".to_owned()),
        ] {
            assert_eq!(End::decode(&end.encode()), Some(end));
        }
        for bytes in [&[][..], &[0], &[kind::EXITED], &[kind::FAILED, 0xff]] {
            assert_eq!(End::decode(bytes), None);
        }
    }
}
