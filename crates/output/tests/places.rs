//! Places where results may be written, and files that they must not replace.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use contigua_output::{Output, write};
use rustix::fs::{CWD, FileType, Mode};

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_file_is_there_when_it_is_kept_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let mut output = Output::create(&path).unwrap();
    output.write_all(b"half").unwrap();
    assert_eq!(entries(folder.path()), 0);
    drop(output);
    assert_eq!(entries(folder.path()), 0);
    for contents in ["first", "second"] {
        write(&path, contents.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        assert_eq!(entries(folder.path()), 1);
    }
    for refused in ["/", "no/such/folder", "..", "dir/"] {
        let refused = folder.path().join(refused);
        assert!(Output::create(&refused).is_err(), "{}", refused.display());
        assert!(Output::check(&refused).is_err(), "{}", refused.display());
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    for mode in [0o600, 0o640, 0o444] {
        write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
    }
}

#[test]
fn the_target_of_a_link_is_replaced_and_the_link_stays() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("other")).unwrap();
    let (link, target) = (folder.path().join("link"), folder.path().join("other/file"));
    symlink("other/file", &link).unwrap();
    for contents in ["made", "replaced"] {
        write(&link, contents.as_bytes()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), contents);
    }
    let round = folder.path().join("round");
    symlink("round", &round).unwrap();
    assert!(Output::create(&round).is_err());
}

#[test]
fn a_fifo_is_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    let reader = {
        let path = path.clone();
        thread::spawn(move || fs::read(path).unwrap())
    };
    write(&path, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
}

#[test]
fn a_socket_is_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    });
    write(&path, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
}

/// On nodes of its own: a fault must not cost the machine its `/dev/null`.
#[test]
fn a_device_is_written_through_and_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    for (name, minor) in [("null", 3), ("full", 7)] {
        let path = folder.path().join(name);
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
        let device = rustix::fs::makedev(1, minor);
        if rustix::fs::mknodat(CWD, &path, kind, mode, device).is_err()
            || File::open(&path).is_err()
        {
            // Not as root, or on a file system without devices.
            return;
        }
        let written = write(&path, b"through");
        match name {
            "null" => written.unwrap(),
            _ => assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull),
        }
        assert!(fs::metadata(&path).unwrap().file_type().is_char_device());
    }
}

#[test]
fn a_descriptor_of_this_process_is_written_where_it_is() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redirected");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"before ").unwrap();
    for folder in ["/proc/self/fd", "/dev/fd", "/proc/thread-self/fd"] {
        let name = format!("{folder}/{}", file.as_raw_fd());
        assert_eq!(Output::descriptor(Path::new(&name)), Some(file.as_raw_fd()));
        write(Path::new(&name), b"through ").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "before through through through ");
    let closed = Path::new("/proc/self/fd/1000000");
    assert!(Output::check(closed).is_err());
    let read_only = File::open(&path).unwrap();
    let name = format!("/dev/fd/{}", read_only.as_raw_fd());
    assert!(Output::check(Path::new(&name)).is_err());
}

/// A folder of the node exporter's, to which its user can write, and root's `watch --textfile`.
#[test]
fn links_and_fifos_that_others_planted_are_refused() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"precious").unwrap();
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let (link, fifo) = (shared.join("link.prom"), shared.join("fifo.prom"));
    symlink(&precious, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(1234), Some(1234)).unwrap();
    rustix::fs::mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).unwrap();
    chown(&fifo, Some(1234), Some(1234)).unwrap();
    for path in [&link, &fifo] {
        let error = write(path, b"metrics").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("of user 1234"), "{error}");
    }
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    // Root's own link there, and another user's where only root can write, are as good as any.
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    write(&link, b"metrics").unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::lchown(&link, Some(1234), Some(1234)).unwrap();
    write(&link, b"metrics").unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"metrics");
}
