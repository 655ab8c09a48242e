//! Results on disk: whole or not at all, and never in the place of a device or a link.
//!
//! Everything that Contigua writes for a user goes through [`Output`].
//!
//! A regular file, or one that does not exist yet, is written without a name (`O_TMPFILE`) in the
//! target's folder, and takes its name when it is complete, so a process that is killed leaves
//! nothing. Where the file system has no `O_TMPFILE`, and for the moment in which an existing file is
//! replaced, the file has an unguessable temporary name and is locked. The next process that
//! writes into the folder removes such files that nobody holds a lock on.
//!
//! A symbolic link is followed, and its target is replaced. A device, a FIFO or a socket is written
//! through, and so are descriptors of this process: `-`, `/dev/stdout`, `/dev/fd/N`.
//!
//! Links and special files in a folder that other users can write are refused unless this user or
//! root placed them: somebody else chose what they lead to. The kernel does the same in sticky
//! folders only (`fs.protected_symlinks`, `fs.protected_fifos`).

mod place;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use place::Place;

const PREFIX: &str = ".contigua-";
const SUFFIX: &str = ".partial";

/// A result that is being written. Without [`Output::keep`], a regular file never appears.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// Absent when the target is written through.
    pending: Option<Pending>,
}

/// Names and permissions needed to give a complete file its name.
#[derive(Debug)]
struct Pending {
    folder: OwnedFd,
    target: OsString,
    /// Permissions of the file that is replaced.
    mode: Option<Mode>,
    /// Absent as long as the file has no name at all.
    temporary: Option<OsString>,
}

impl Output {
    /// Begins to write; `-` is standard output.
    ///
    /// A FIFO is waited for until somebody reads it.
    ///
    /// # Errors
    /// When the target is a folder, when its folder does not exist or cannot be written, and when
    /// it is a link or a special file of another user (see the crate's documentation);
    /// [`io::ErrorKind::Interrupted`] when a signal arrives while a FIFO is waited for.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::begin(path, true)
    }

    fn begin(path: &Path, may_be_unnamed: bool) -> io::Result<Self> {
        match Place::find(path)? {
            Place::Through(through) => Ok(Self {
                file: through.open()?.into(),
                pending: None,
            }),
            Place::File {
                folder,
                target,
                mode,
            } => {
                remove_abandoned(&folder);
                // What replaces a private file must not be public while it is written.
                let first = Mode::from_raw_mode(if mode.is_some() { 0o600 } else { 0o666 });
                let unnamed = if may_be_unnamed {
                    unnamed(&folder, first)?
                } else {
                    None
                };
                let (file, temporary) = match unnamed {
                    Some(file) => (file, None),
                    None => named(&folder, first).map(|(file, name)| (file, Some(name)))?,
                };
                Ok(Self {
                    file,
                    pending: Some(Pending {
                        folder,
                        target,
                        mode,
                        temporary,
                    }),
                })
            }
        }
    }

    /// Checks that [`Output::create`] would work, as far as that can be known without writing.
    ///
    /// # Errors
    /// As of [`Output::create`].
    pub fn check(path: &Path) -> io::Result<()> {
        Place::find(path)?.check()
    }

    /// Returns true if output to a path is written directly: to a device, a FIFO, a socket or a
    /// descriptor.
    #[must_use]
    pub fn is_through(path: &Path) -> bool {
        matches!(Place::find(path), Ok(Place::Through(_)))
    }

    /// The descriptor of this process that a path means: 1 for `-` and `/dev/stdout`.
    #[must_use]
    pub fn descriptor(path: &Path) -> Option<RawFd> {
        match Place::find(path) {
            Ok(Place::Through(through)) => through.descriptor(),
            _ => None,
        }
    }

    /// The open file, to write to.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Says that all is written: a regular file takes its name, with the permissions of the file
    /// that it replaces.
    ///
    /// # Errors
    /// When the data do not reach the disk, or the file cannot be renamed. Nothing remains.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(pending) = &mut self.pending else {
            return self.file.flush();
        };
        if let Some(mode) = pending.mode {
            rustix::fs::fchmod(&self.file, mode)?;
        }
        self.file.sync_data()?;
        if pending.temporary.is_none() {
            // Where nothing is replaced, no second name is needed.
            if pending.mode.is_none() && pending.link(&self.file, &pending.target)? {
                return Ok(());
            }
            let name = unguessable()?;
            if !pending.link(&self.file, &name)? {
                return Err(Errno::EXIST.into());
            }
            pending.temporary = Some(name);
        }
        let Pending { folder, target, .. } = &*pending;
        // The name is dropped, if this fails, with `self`.
        let temporary = pending.temporary.as_deref().unwrap_or_default();
        rustix::fs::renameat(folder, temporary, folder, target.as_os_str())?;
        pending.temporary = None;
        Ok(())
    }
}

impl Pending {
    /// Gives a file without a name one; `false` when the name is taken.
    fn link(&self, file: &File, name: &OsStr) -> io::Result<bool> {
        let follow = AtFlags::SYMLINK_FOLLOW;
        match rustix::fs::linkat(CWD, own_path(file.as_fd()), &self.folder, name, follow) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // Nothing can be done about a file that does not go.
            let _ = rustix::fs::unlinkat(&self.folder, name.as_os_str(), AtFlags::empty());
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes all of a result, whole or not at all.
///
/// # Errors
/// As of [`Output::create`] and [`Output::keep`], and when there is no space.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(contents)?;
    output.keep()
}

fn own_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A locked file without a name; `None` where there can be none.
fn unnamed(folder: &OwnedFd, mode: Mode) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(folder, ".", flags, mode) {
        Ok(file) => file,
        // Not on this file system, or not in this kernel.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // It could not be named without /proc.
    if rustix::fs::stat(own_path(file.as_fd())).is_err() {
        return Ok(None);
    }
    lock(&file);
    Ok(Some(file.into()))
}

/// A locked file with a temporary name.
fn named(folder: &OwnedFd, mode: Mode) -> io::Result<(File, OsString)> {
    loop {
        let name = unguessable()?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(folder, name.as_os_str(), flags, mode) {
            Ok(file) => file,
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error.into()),
        };
        lock(&file);
        // Another process may have taken it for abandoned before it was locked.
        if rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok((file.into(), name));
        }
    }
}

/// Marks a file as in use. Where locks do not exist, nothing is taken for abandoned either.
fn lock(file: &OwnedFd) {
    let _ = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
}

fn unguessable() -> io::Result<OsString> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    let number = u128::from_ne_bytes(bytes);
    Ok(format!("{PREFIX}{number:032x}{SUFFIX}").into())
}

/// Removes temporary files that killed processes of this user left in a folder: those that nobody
/// holds a lock on. Once for each folder in a process, since folders can be large.
fn remove_abandoned(folder: &OwnedFd) {
    static SEEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());
    let Ok(state) = rustix::fs::fstat(folder) else {
        return;
    };
    let key = (state.st_dev, state.st_ino);
    if SEEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(key)
    {
        // What cannot be listed or removed stays; it is in nobody's way.
        let _ = try_remove_abandoned(folder);
    }
}

fn try_remove_abandoned(folder: &OwnedFd) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(folder, ".", flags, Mode::empty())?;
    for entry in Dir::new(listed)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let bytes = name.as_bytes();
        if !bytes.starts_with(PREFIX.as_bytes()) || !bytes.ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        let Ok(state) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if FileType::from_raw_mode(state.st_mode) != FileType::RegularFile
            || state.st_uid != rustix::process::geteuid().as_raw()
        {
            continue;
        }
        // For writing: file systems that emulate these locks want it.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_without_unnamed_files_gets_named_ones_that_do_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let mut output = Output::begin(&path, false).unwrap();
        output.write_all(b"half").unwrap();
        assert_eq!(count(), 1);
        drop(output);
        assert_eq!(count(), 0);
        for contents in ["first", "second"] {
            let mut output = Output::begin(&path, false).unwrap();
            output.write_all(contents.as_bytes()).unwrap();
            output.keep().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            assert_eq!(count(), 1);
        }
    }

    #[test]
    fn files_of_killed_processes_are_removed_and_those_of_living_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let abandoned = folder.path().join(".contigua-0123.partial");
        fs::write(&abandoned, b"half").unwrap();
        let foreign = folder.path().join(".contigua-notes");
        fs::write(&foreign, b"mine").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open = rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap();
        let (_living, name) = named(&open, Mode::from_raw_mode(0o600)).unwrap();
        remove_abandoned(&open);
        assert!(!abandoned.exists());
        assert!(foreign.exists());
        assert!(folder.path().join(name).exists());
    }
}
