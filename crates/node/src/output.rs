//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file that takes its name when it is done. Until then it has another, in the same directory.
pub struct Output {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    is_kept: bool,
}

impl Output {
    /// Begins a file.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let mut name = path
            .file_name()
            .with_context(|| format!("{}: this names no file", path.display()))?
            .to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).with_context(|| path.display().to_string())?;
        Ok(Self {
            path: path.to_owned(),
            temporary,
            file,
            is_kept: false,
        })
    }

    /// To write to.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn file(&self) -> anyhow::Result<File> {
        self.file.try_clone().with_context(|| self.name())
    }

    /// What it will be called.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// When it cannot be written or renamed.
    pub fn keep(mut self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| self.name())?;
        fs::rename(&self.temporary, &self.path).with_context(|| self.name())?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_kept {
            // Nothing can be done about a file that does not go.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_is_there_when_it_is_kept_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let output = Output::create(&path).unwrap();
        output.file().unwrap().write_all(b"half").unwrap();
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let output = Output::create(&path).unwrap();
        output.file().unwrap().write_all(b"whole").unwrap();
        output.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(Output::create(Path::new("/")).is_err());
        let absent = folder.path().join("no/such");
        assert!(Output::create(&absent).is_err());
    }
}
