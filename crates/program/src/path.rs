//! Where programs are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

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

#[cfg(test)]
mod tests {
    use super::*;

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
