//! Search for programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::root::Root;

/// Directories of programs when `PATH` is not set (`DEFPATH` of Debian's shells).
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The file that a shell would run for `name`: as it is when it contains a slash, else the first
/// file of that name in `PATH`.
pub(crate) fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    let path = Path::new(name);
    if path.components().count() > 1 || path.is_absolute() {
        return path.exists().then(|| path.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Finds a program on `root`, as programs there would name it. Where it has a folder, names without a
/// slash are looked for in its directories of `PATH` only, and absolute paths there first.
pub(crate) fn find_on(root: &Root, name: &OsStr) -> Option<PathBuf> {
    if root.folder().is_none() {
        return find_in_path(name);
    }
    let path = Path::new(name);
    if name.is_empty() || path.components().count() > 1 || path.is_absolute() {
        return (!name.is_empty() && root.file(path).exists()).then(|| path.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| root.inside(candidate).is_some_and(|file| file.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_system_is_found_in_its_directories() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        let own = Path::new("/usr/bin/no-such-program-anywhere");
        std::fs::write(folder.path().join("usr/bin/no-such-program-anywhere"), "").unwrap();
        let root = Root::new(folder.path().to_owned());
        let find = |name: &str| find_on(&root, OsStr::new(name));
        assert_eq!(find("no-such-program-anywhere").as_deref(), Some(own));
        assert_eq!(
            find("/usr/bin/no-such-program-anywhere").as_deref(),
            Some(own)
        );
        // The host has it, and it is named by its path.
        assert_eq!(find("/bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find("sh"), None);
        assert_eq!(find(""), None);
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(find_in_path(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(
            find_in_path(OsStr::new("/bin/sh")),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(find_in_path(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find_in_path(OsStr::new("")), None);
    }
}
