//! Choice of the QEMU that runs programs: one whose user mode loads plugins.
//!
//! Not every QEMU does: Debian's is a static program since Debian 13, which can load nothing. So a
//! QEMU is asked, and not known by where it comes from. `contigua setup qemu` builds one into the
//! user's cache.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::path::find_in_path;
use crate::syscall::Architecture;

/// Environment variable that names the emulator to use for programs of an architecture instead of
/// those that are found.
#[must_use]
pub const fn variable_of(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "CONTIGUA_QEMU",
        Architecture::Aarch64 => "CONTIGUA_QEMU_AARCH64",
    }
}

/// Host address of the program's address 0 in QEMU since version 10.0: at 16 TiB.
///
/// QEMU 7.2 puts programs far below itself. Newer versions put them where Linux does, at
/// 0x555555555000, where QEMU itself is: the program goes elsewhere, and its heap cannot grow.
const BASE: u64 = 1 << 44;

/// A QEMU that loads plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// The program.
    pub path: PathBuf,
    /// Host address of the program's address 0 (QEMU's `-B`), unless QEMU's own choice will do.
    pub base: Option<u64>,
}

impl Emulator {
    /// Finds the emulator for programs of an architecture: the one that [`variable_of`] names,
    /// else the newest that `contigua setup qemu` has built, else the one in `PATH`.
    ///
    /// # Errors
    /// [`Error::NoQemu`].
    pub fn find(architecture: Architecture) -> Result<Self, Error> {
        let name = OsString::from(format!("qemu-{}", architecture.name()));
        let none = |reason| Error::NoQemu {
            architecture,
            reason,
        };
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let chooser = variable_of(architecture);
        if let Some(chosen) = variable(chooser) {
            return Self::of(&chosen).map_err(|reason| {
                none(format!("{chooser}={}: {reason}", chosen.to_string_lossy()))
            });
        }
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| {
            let home = variable("HOME")?;
            Some(PathBuf::from(home).join(".cache"))
        });
        let built = cache.map_or_else(Vec::new, |cache| {
            built_in(&cache.join("contigua/qemu"), &name)
        });
        // A cache that came from another computer may hold what does not start here.
        if let Some(found) = built
            .iter()
            .find_map(|path| Self::of(path.as_os_str()).ok())
        {
            return Ok(found);
        }
        Self::of(&name).map_err(|reason| none(format!("{}: {reason}", name.to_string_lossy())))
    }

    /// Asks a QEMU what it is.
    fn of(name: &OsStr) -> Result<Self, String> {
        let path = find_in_path(name).ok_or("no such program")?;
        let help = said(&path, "--help").ok_or("does not start")?;
        if !help.lines().any(|line| line.starts_with("-plugin")) {
            return Err("loads no plugins".to_owned());
        }
        let version = said(&path, "--version").unwrap_or_default();
        let base = match numbers(&version) {
            Some((7, 2..)) => None,
            Some((10.., _)) => Some(BASE),
            Some((major, minor)) => {
                return Err(format!(
                    "version {major}.{minor}; 7.2, and 10.0 and newer ones are supported"
                ));
            }
            None => return Err("does not say which version it is".to_owned()),
        };
        Ok(Self { path, base })
    }

    /// QEMU's options that decide where programs are.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        self.base
            .map_or_else(Vec::new, |base| vec!["-B".to_owned(), format!("{base:#x}")])
    }
}

/// Output of a program for one argument; `None` when it cannot be started.
fn said(program: &Path, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    let command = command.arg(argument).stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The 10 and the 2 of `qemu-x86_64 version 10.2.2 (...)`.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let (_, version) = text.split_once(" version ")?;
    let (major, rest) = version.split_once('.')?;
    let end = rest.find(|digit: char| !digit.is_ascii_digit());
    let minor = &rest[..end.unwrap_or(rest.len())];
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The builds of an emulator in a cache, the newest version first.
fn built_in(cache: &Path, name: &OsStr) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(cache)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let folder = entry.ok()?;
            let version = folder.file_name();
            let numbers = version.to_str()?.split('.').map(str::parse);
            let path = folder.path().join(name);
            Some((numbers.collect::<Result<_, _>>().ok()?, path))
        })
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A script that answers as a QEMU does.
    fn script(folder: &Path, name: &str, options: &str, version: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let path = folder.join(name);
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && echo 'qemu version {version}' || echo '{options}'\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn an_emulator_is_asked_whether_it_loads_plugins_and_where_it_puts_programs() {
        let folder = tempfile::tempdir().unwrap();
        let of = |path: &Path| Emulator::of(path.as_os_str());
        let plugin = "-plugin  QEMU_PLUGIN";
        let old = script(folder.path(), "old", plugin, "7.2.22 (Debian)");
        assert_eq!(of(&old).unwrap().options(), Vec::<String>::new());
        let new = script(folder.path(), "new", plugin, "10.2.2");
        assert_eq!(of(&new).unwrap().options(), ["-B", "0x100000000000"]);
        for (name, options, version, reason) in [
            ("static", "-cpu  QEMU_CPU", "10.0.8", "loads no plugins"),
            ("between", plugin, "8.2.7", "version 8.2; 7.2, and"),
            ("silent", plugin, "", "does not say which version"),
        ] {
            let path = script(folder.path(), name, options, version);
            let refused = of(&path).unwrap_err();
            assert!(refused.starts_with(reason), "{refused}");
        }
        let none = of(&folder.path().join("none")).unwrap_err();
        assert_eq!(none, "no such program");
        assert_eq!(of(folder.path()).unwrap_err(), "does not start");
    }

    #[test]
    fn the_newest_build_of_the_cache_comes_first() {
        let cache = tempfile::tempdir().unwrap();
        for version in ["9.2.4", "10.2.2", "10.0.13", "unfinished"] {
            script(&cache.path().join(version), "qemu-x86_64", "", version);
        }
        fs::create_dir(cache.path().join("11.0.0")).unwrap();
        let found = built_in(cache.path(), OsStr::new("qemu-x86_64"));
        let expected = ["10.2.2", "10.0.13", "9.2.4"];
        assert_eq!(
            found,
            expected.map(|version| cache.path().join(version).join("qemu-x86_64"))
        );
        assert!(built_in(&cache.path().join("none"), OsStr::new("qemu-x86_64")).is_empty());
    }
}
