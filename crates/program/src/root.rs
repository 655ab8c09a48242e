//! A folder with the files of another system, which programs see in the place of the host's.
//!
//! QEMU's user mode (`-L`) looks for each absolute path in this folder first, and then on the host.
//! It does so for files that a program opens, and neither for the program itself nor for those that it
//! executes, which the host's kernel would run. Who looks for those asks here.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that are followed, as many as Linux follows (`MAXSYMLINKS`,
/// `include/linux/namei.h`).
const MAX_LINKS: usize = 40;

/// The folder, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root(Option<PathBuf>);

impl Root {
    /// The files of the host, and of no other system.
    pub const HOST: Self = Self(None);

    /// With the files in `folder`, which is an absolute path.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self(Some(folder))
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    /// The host's path of the file that a program means by `name`: in the folder when `name` is
    /// absolute and there is such a file, else `name`.
    #[must_use]
    pub fn file(&self, name: &Path) -> PathBuf {
        self.inside(name).unwrap_or_else(|| name.to_owned())
    }

    /// Resolves a path in the folder only. Symbolic links lead to where they would lead if the folder
    /// were `/`.
    #[must_use]
    pub fn inside(&self, name: &Path) -> Option<PathBuf> {
        let root = self.folder()?;
        if !name.is_absolute() {
            return None;
        }
        let parts = |path: &Path| -> Vec<OsString> {
            let parts = path.components().filter_map(|part| match part {
                Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
                _ => None,
            });
            parts.collect()
        };
        let mut left = VecDeque::from(parts(name));
        let mut found = root.to_owned();
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            if part == ".." {
                if found != root {
                    found.pop();
                }
                continue;
            }
            let next = found.join(&part);
            let kind = next.symlink_metadata().ok()?.file_type();
            if !kind.is_symlink() {
                found = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            let target = next.read_link().ok()?;
            if target.is_absolute() {
                root.clone_into(&mut found);
            }
            for part in parts(&target).into_iter().rev() {
                left.push_front(part);
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn system() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        fs::create_dir_all(folder.path().join("etc/alternatives")).unwrap();
        fs::write(folder.path().join("usr/bin/mawk"), "").unwrap();
        symlink("usr/bin", folder.path().join("bin")).unwrap();
        symlink("/etc/alternatives/awk", folder.path().join("usr/bin/awk")).unwrap();
        symlink("/bin/mawk", folder.path().join("etc/alternatives/awk")).unwrap();
        symlink("../../../../bin/mawk", folder.path().join("usr/bin/up")).unwrap();
        symlink("circle", folder.path().join("usr/bin/circle")).unwrap();
        let root = Root::new(folder.path().to_owned());
        (folder, root)
    }

    #[test]
    fn links_lead_where_they_would_if_the_folder_were_the_root() {
        let (folder, root) = system();
        let awk = folder.path().join("usr/bin/mawk");
        for name in [
            "/usr/bin/mawk",
            "/bin/awk",
            "/usr/bin/up",
            "/bin/../bin/./awk",
        ] {
            assert_eq!(root.file(Path::new(name)), awk, "{name}");
        }
        assert_eq!(root.inside(Path::new("/bin/circle")), None);
    }

    #[test]
    fn paths_missing_in_the_root_are_the_hosts() {
        let (_folder, root) = system();
        for name in ["/bin/sh", "/no/such/file", "bin/mawk", "mawk"] {
            assert_eq!(root.inside(Path::new(name)), None, "{name}");
            assert_eq!(root.file(Path::new(name)), Path::new(name));
            assert_eq!(Root::HOST.file(Path::new(name)), Path::new(name));
        }
    }
}
