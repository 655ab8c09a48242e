//! The file that `contigua profile --advice` writes, and the rules that the preloaded library reads.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use contigua_input::{MAX_CONFIG_BYTES, read_text};
use contigua_units::PAGE_BYTES;
use serde::{Deserialize, Serialize};

/// The version of the file; it grows when a key goes, comes or changes its meaning.
pub const VERSION: u32 = 2;
/// Rules, objects and callers of a rule that the library has room for.
const MAX_RULES: usize = 64;
const MAX_OBJECTS: usize = 16;
const MAX_CALLERS: usize = 4;
const MAX_PATH: usize = 1024;
const MAX_BUILD_ID: usize = 32;

/// Changes that help a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Advice {
    /// Version of the form.
    pub version: u32,
    /// The program that it is for.
    pub program: Program,
    /// The runs that it rests on.
    pub basis: Basis,
    /// The changes, the largest saving first.
    #[serde(default, rename = "advice")]
    pub items: Vec<Item>,
    /// Settings of the whole server that help, the largest saving first; nothing here applies them.
    #[serde(default)]
    pub server: Vec<Setting>,
    /// Memory and changes that do not help.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
}

/// The program that an advice is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Program {
    /// Its file: of a script, its interpreter's.
    pub path: String,
    /// Its build id in hexadecimal digits; empty where it has none, and the path decides.
    pub build_id: String,
    /// The command that was profiled.
    pub command: Vec<String>,
}

/// The simulated runs that an advice rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Basis {
    /// Version of Contigua.
    pub contigua: String,
    /// The design without the advice.
    pub design: String,
    /// The machine.
    pub machine: String,
    /// Cycles of the run without the advice.
    pub cycles: u64,
    /// Saving of everything that is advised together, as a share of the cycles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving: Option<f64>,
    /// Half of its 95 % interval; 0 for complete runs.
    #[serde(default)]
    pub half_width: f64,
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Action {
    /// A mapping is aligned to 2 MB, and gets `MADV_HUGEPAGE`.
    HugePages,
    /// The C library's malloc advises huge pages for its memory: `glibc.malloc.hugetlb=1`.
    MallocHugePages,
    /// `libcontigua_malloc` replaces the C library's malloc.
    ContiguaMalloc,
    /// The program's code is copied to huge pages.
    HugeCode,
}

/// Advice on one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Item {
    /// Name of the memory.
    pub name: String,
    /// The change.
    pub action: Action,
    /// Saving that is expected, as a share of the cycles.
    pub saving: f64,
    /// Half of its 95 % interval; 0 for complete runs.
    pub half_width: f64,
    /// Saving on fresh memory, where the server's was used before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_saving: Option<f64>,
    /// Half of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_half_width: Option<f64>,
    /// Basis of the saving.
    pub rests_on: RestsOn,
    /// Memory that it costs at the peak, in bytes; unknown for estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// How a programmer or an operator does the same.
    pub by_hand: String,
    /// The mapping, for `huge-pages`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping: Option<Mapping>,
    /// Why it is not applied; for example a result of `--verify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

/// Basis of a saving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum RestsOn {
    /// A run with the change, against the run without.
    Run,
    /// The mapping's share of what a design with huge pages everywhere saves.
    Estimate,
}

/// Recognizes a mapping: private memory of no file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Mapping {
    /// Bytes that `mmap` was asked for, in whole pages.
    pub bytes: u64,
    /// Its place among the mappings of a process with these bytes and callers, from 1 on; 0 for each of them.
    pub order: u64,
    /// How many of them there were.
    pub of: u64,
    /// The call of `mmap`, and the calls that led there, innermost first.
    #[serde(default)]
    pub callers: Vec<Caller>,
}

/// A call instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Caller {
    /// Build id of its file, in hexadecimal digits.
    pub build_id: String,
    /// Its offset in the file.
    pub offset: u64,
    /// The file.
    pub file: String,
    /// Function and line, where they are known.
    pub function: String,
}

/// A setting of the whole server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Setting {
    /// Name of the setting.
    pub name: String,
    /// Saving of a run of the program with it, as a share of the cycles.
    pub saving: f64,
    /// Half of its 95 % interval; 0 for complete runs.
    pub half_width: f64,
    /// Saving on fresh memory, where the server's was used before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_saving: Option<f64>,
    /// Half of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_half_width: Option<f64>,
    /// Memory that it costs the program at the peak, in bytes.
    pub memory_bytes: i64,
    /// How an operator sets it.
    pub by_hand: String,
}

/// Something that does not help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rejected {
    /// Name of the memory, or the change.
    pub name: String,
    /// The reason.
    pub why: String,
}

impl Advice {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no advice, is damaged, or is one of another version.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("advice {}", path.display());
        let text = read_text(path, MAX_CONFIG_BYTES).with_context(what)?;
        Self::parse(&text).with_context(what)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = toml::from_str(text)?;
        match table.get("version").and_then(toml::Value::as_integer) {
            None => bail!("no version: it is no file of contigua profile --advice"),
            Some(version) if version > i64::from(VERSION) => bail!(
                "its version is {version}, and this contigua-node reads version {VERSION}: update contigua-node"
            ),
            Some(version) if version < i64::from(VERSION) => {
                bail!(
                    "its version is {version}, and this contigua-node reads version {VERSION}: profile again"
                )
            }
            Some(_) => {}
        }
        let found: Self = toml::from_str(text)?;
        found.check()?;
        Ok(found)
    }

    fn check(&self) -> anyhow::Result<()> {
        let program = &self.program;
        if program.build_id.is_empty() {
            let bytes = program.path.len();
            ensure!(
                program.path.starts_with('/') && bytes <= MAX_PATH,
                "program.path is {:?}; without a build id it must be a whole path of at most {MAX_PATH} bytes",
                program.path
            );
        } else {
            check_build_id("program.build_id", &program.build_id)?;
        }
        for (item, number) in self.items.iter().zip(1..) {
            item.check()
                .with_context(|| format!("advice {number}, {:?}", item.name))?;
        }
        let has = |action| self.chosen(None).any(|item| item.action == action);
        ensure!(
            !(has(Action::MallocHugePages) && has(Action::ContiguaMalloc)),
            "malloc-huge-pages and contigua-malloc exclude each other: withdraw one"
        );
        let rules = self.items.iter().filter(|item| item.is_rule()).count();
        ensure!(
            rules <= MAX_RULES,
            "it names {rules} mappings; at most {MAX_RULES} can be applied"
        );
        let objects = self.objects().len();
        ensure!(
            objects <= MAX_OBJECTS,
            "its callers are in {objects} files; at most {MAX_OBJECTS} can be told apart"
        );
        Ok(())
    }

    /// Items to apply: all that are not withdrawn, or one.
    pub fn chosen(&self, only: Option<usize>) -> impl Iterator<Item = &Item> {
        let items = self.items.iter().enumerate();
        items
            .filter(move |(index, item)| match only {
                Some(only) => *index == only,
                None => item.withdrawn.is_none(),
            })
            .map(|(_, item)| item)
    }

    /// Something of it is done by a library.
    pub fn needs_loader(&self) -> bool {
        let mut chosen = self.chosen(None);
        chosen.any(|item| item.action != Action::MallocHugePages)
    }

    /// Build ids of the callers' files.
    fn objects(&self) -> Vec<&str> {
        let mappings = self.items.iter().filter_map(|item| item.mapping.as_ref());
        let mut found: Vec<&str> = Vec::new();
        for caller in mappings.flat_map(|mapping| &mapping.callers) {
            if !found.contains(&caller.build_id.as_str()) {
                found.push(&caller.build_id);
            }
        }
        found
    }

    /// The library's variable (`crates/apply/src/rules.rs` has its form), with a rule for each chosen item that
    /// [is one](Item::is_rule); `None` where there is none.
    pub fn rules(&self, only: Option<usize>) -> Option<String> {
        let objects = self.objects();
        let program = &self.program;
        let mut text = if program.build_id.is_empty() {
            let path = program
                .path
                .bytes()
                .fold(String::from("="), |mut digits, byte| {
                    let _ = write!(digits, "{byte:02x}");
                    digits
                });
            format!("1;{path};{}", objects.join(","))
        } else {
            format!("1;{};{}", program.build_id, objects.join(","))
        };
        let start = text.len();
        for item in self.chosen(only).filter(|item| item.is_rule()) {
            let Some(mapping) = &item.mapping else {
                text.push_str(";c");
                continue;
            };
            let callers = mapping.callers.iter().map(|caller| {
                let object = objects.iter().position(|&id| id == caller.build_id);
                format!("{}+{:x}", object.unwrap_or_default(), caller.offset)
            });
            let callers: Vec<String> = callers.collect();
            let _ = write!(
                text,
                ";m:{}:{}:{}",
                mapping.bytes,
                mapping.order,
                callers.join(",")
            );
        }
        (text.len() > start).then_some(text)
    }
}

impl Item {
    /// The library does it.
    pub fn is_rule(&self) -> bool {
        matches!(self.action, Action::HugePages | Action::HugeCode)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.saving.is_finite() && self.half_width.is_finite() && self.half_width >= 0.0,
            "saving is {} ± {}; both must be numbers",
            self.saving,
            self.half_width
        );
        let mapping = match (&self.mapping, self.action) {
            (Some(mapping), Action::HugePages) => mapping,
            (None, Action::HugePages) => bail!("huge-pages needs a mapping"),
            (Some(_), _) => bail!("only huge-pages has a mapping"),
            (None, _) => return Ok(()),
        };
        ensure!(
            mapping.bytes > 0
                && mapping.bytes.is_multiple_of(PAGE_BYTES)
                && i64::try_from(mapping.bytes).is_ok(),
            "mapping.bytes is {}; it must be a multiple of {PAGE_BYTES} above 0",
            mapping.bytes
        );
        ensure!(
            mapping.order <= mapping.of,
            "mapping.order is {}; it must be from 0 to mapping.of, which is {}",
            mapping.order,
            mapping.of
        );
        let callers = mapping.callers.len();
        ensure!(
            callers <= MAX_CALLERS,
            "it has {callers} callers; at most {MAX_CALLERS} can be told"
        );
        for caller in &mapping.callers {
            check_build_id("build_id", &caller.build_id)?;
        }
        Ok(())
    }
}

fn check_build_id(key: &str, id: &str) -> anyhow::Result<()> {
    let digits = id
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    ensure!(
        digits && !id.is_empty() && id.len().is_multiple_of(2) && id.len() <= 2 * MAX_BUILD_ID,
        "{key} is {id:?}; it must be 2 to {} hexadecimal digits in pairs",
        2 * MAX_BUILD_ID
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        version = 2
        [program]
        path = "/bin/program"
        build_id = "abcd"
        command = ["program"]
        [basis]
        contigua = "0.1.0"
        design = "linux-thp-madvise"
        machine = "skylake"
        cycles = 1000
        [[advice]]
        name = "anonymous 64 MB"
        action = "huge-pages"
        saving = 0.25
        half_width = 0.0
        rests_on = "run"
        by_hand = "madvise"
        [advice.mapping]
        bytes = 67108864
        order = 1
        of = 2
        callers = [
            { build_id = "abcd", offset = 16, file = "/bin/program", function = "f" },
            { build_id = "ef", offset = 31, file = "/lib/library.so", function = "" },
        ]
        [[advice]]
        name = "malloc"
        action = "malloc-huge-pages"
        saving = 0.1
        half_width = 0.01
        rests_on = "estimate"
        by_hand = "GLIBC_TUNABLES"
        [[advice]]
        name = "code"
        action = "huge-code"
        saving = 0.1
        half_width = 0.01
        rests_on = "run"
        by_hand = "-"
        [[server]]
        name = "huge pages for all programs"
        saving = 0.1
        half_width = 0.0
        memory_bytes = 4096
        by_hand = "echo always"
    "#;

    #[test]
    fn rules_are_those_that_the_library_does() {
        let advice = Advice::parse(TEXT).unwrap();
        let rules = advice.rules(None).unwrap();
        assert_eq!(rules, "1;abcd;abcd,ef;m:67108864:1:0+10,1+1f;c");
        assert_eq!(advice.rules(Some(1)), None);
        assert_eq!(advice.rules(Some(2)).unwrap(), "1;abcd;abcd,ef;c");
        let path = TEXT.replace(
            "build_id = \"abcd\"\n        command",
            "build_id = \"\"\n        command",
        );
        let rules = Advice::parse(&path).unwrap().rules(Some(2)).unwrap();
        assert!(rules.starts_with("1;=2f62696e2f"), "{rules}");
    }

    #[test]
    fn what_is_withdrawn_is_not_applied() {
        let mut advice = Advice::parse(TEXT).unwrap();
        advice.items[0].withdrawn = Some("no gain".to_owned());
        assert_eq!(advice.rules(None).unwrap(), "1;abcd;abcd,ef;c");
        let text = toml::to_string(&advice).unwrap();
        assert_eq!(Advice::parse(&text).unwrap(), advice);
    }

    #[test]
    fn errors_name_key_and_value() {
        for (from, to, said) in [
            ("version = 2", "version = 3", "update contigua-node"),
            ("version = 2", "version = 1", "profile again"),
            ("version = 2", "", "no version"),
            ("version = 2", "version = ", "TOML"),
            ("67108864", "67108865", "67108865"),
            ("67108864", "0", "multiple"),
            ("order = 1", "order = 3", "from 0 to"),
            ("order = 1", "order = -1", "order"),
            ("\"ef\"", "\"EF\"", "hexadecimal"),
            ("\"ef\"", "\"e;\"", "hexadecimal"),
            ("huge-code", "huge-cake", "huge-cake"),
            ("huge-code", "contigua-malloc", "exclude"),
            ("huge-code", "huge-pages", "needs a mapping"),
            ("\"huge-pages\"", "\"huge-code\"", "only huge-pages"),
            ("0.25", "nan", "numbers"),
            ("by_hand", "on_foot", "on_foot"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Advice::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert!(
                format!("{error:#}").contains(said),
                "{from} to {to}: {error:#}"
            );
        }
        for end in 0..TEXT.trim_end().len() {
            // Cut anywhere: an error, or what was whole until there.
            let _ = Advice::parse(&TEXT[..end]);
        }
    }
}
