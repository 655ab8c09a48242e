//! Resolution of a path, and rules for following links.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// Target of a path.
pub(crate) enum Place {
    /// To a regular file, or to nothing yet.
    File {
        folder: OwnedFd,
        target: OsString,
        /// The file's permissions, if there is one.
        mode: Option<Mode>,
    },
    /// To what is written as it comes.
    Through(Through),
}

/// Target that is written directly.
pub(crate) enum Through {
    /// A descriptor of this process.
    Descriptor(RawFd),
    /// A descriptor of another process, as its link in `/proc`.
    Foreign(PathBuf),
    /// A device, FIFO or socket.
    Special {
        folder: OwnedFd,
        name: OsString,
        path: PathBuf,
        is_socket: bool,
    },
}

impl Place {
    /// Follows links.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::Through(Through::Descriptor(1)));
        }
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            if path.as_os_str().as_bytes().ends_with(b"/") {
                return Err(Errno::ISDIR.into());
            }
            let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(parent, flags, Mode::empty())?;
            if let Some(through) = descriptor(&folder, parent, &name, &path) {
                return Ok(Self::Through(through));
            }
            let follow = AtFlags::SYMLINK_NOFOLLOW;
            let state = match rustix::fs::statat(&folder, name.as_os_str(), follow) {
                Ok(state) => state,
                Err(Errno::NOENT) => {
                    return Ok(Self::File {
                        folder,
                        target: name,
                        mode: None,
                    });
                }
                Err(error) => return Err(error.into()),
            };
            match FileType::from_raw_mode(state.st_mode) {
                FileType::RegularFile => {
                    return Ok(Self::File {
                        folder,
                        target: name,
                        mode: Some(Mode::from_raw_mode(state.st_mode & 0o777)),
                    });
                }
                FileType::Directory => return Err(Errno::ISDIR.into()),
                FileType::Symlink => {
                    refuse_planted("symbolic link", &folder, &state)?;
                    let link = rustix::fs::readlinkat(&folder, name.as_os_str(), Vec::new())?;
                    path = parent.join(OsStr::from_bytes(link.as_bytes()));
                }
                kind => {
                    refuse_planted("special file", &folder, &state)?;
                    return Ok(Self::Through(Through::Special {
                        folder,
                        name,
                        path,
                        is_socket: kind == FileType::Socket,
                    }));
                }
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Checks that it can be written to, without writing.
    pub(crate) fn check(&self) -> io::Result<()> {
        let flags = AtFlags::EACCESS;
        match self {
            Self::File { folder, .. } => {
                rustix::fs::accessat(folder, ".", Access::WRITE_OK | Access::EXEC_OK, flags)?;
            }
            Self::Through(Through::Special { folder, name, .. }) => {
                rustix::fs::accessat(folder, name.as_os_str(), Access::WRITE_OK, flags)?;
            }
            Self::Through(through) => drop(through.open()?),
        }
        Ok(())
    }
}

impl Through {
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Descriptor(number) => Some(*number),
            _ => None,
        }
    }

    /// Opens it for writing.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self {
            Self::Descriptor(number) => {
                // SAFETY: the number is not negative, and the borrow ends with this call, which
                // copies the descriptor or says that there is none.
                let borrowed = unsafe { BorrowedFd::borrow_raw(*number) };
                let copy = rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?;
                if (rustix::fs::fcntl_getfl(&copy)? & OFlags::ACCMODE) == OFlags::RDONLY {
                    return Err(Errno::BADF.into());
                }
                Ok(copy)
            }
            Self::Foreign(path) => Ok(rustix::fs::open(path, flags, Mode::empty())?),
            Self::Special {
                path,
                is_socket: true,
                ..
            } => Ok(UnixStream::connect(path)?.into()),
            Self::Special { folder, name, .. } => {
                let flags = flags | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(folder, name.as_os_str(), flags, Mode::empty())?;
                let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
                if kind == FileType::RegularFile {
                    // Somebody replaced it meanwhile.
                    return Err(Errno::AGAIN.into());
                }
                Ok(file)
            }
        }
    }
}

/// Returns the target of a link in a folder of descriptors under `/proc`. Its text is no path.
fn descriptor(folder: &OwnedFd, parent: &Path, name: &OsStr, path: &Path) -> Option<Through> {
    if rustix::fs::fstatfs(folder).ok()?.f_type != PROC_SUPER_MAGIC {
        return None;
    }
    let number: RawFd = name.to_str()?.parse().ok().filter(|&number| number >= 0)?;
    let place = parent.canonicalize().ok()?;
    let own = Path::new("/proc/self").canonicalize().ok()?;
    Some(if place.starts_with(own) {
        Through::Descriptor(number)
    } else {
        Through::Foreign(path.to_owned())
    })
}

/// Refuses what another user put into a folder that others can write to.
fn refuse_planted(what: &str, folder: &OwnedFd, state: &Stat) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = |user: u32| user == own || user == 0;
    let around = rustix::fs::fstat(folder)?;
    let is_shared = around.st_mode & OTHERS_WRITE != 0 || !is_trusted(around.st_uid);
    if is_shared && !is_trusted(state.st_uid) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "a {what} of user {} in a folder that others can write to; \
                 remove it, or give a path elsewhere",
                state.st_uid
            ),
        ));
    }
    Ok(())
}
