//! From what a person wrote to what is simulated.
//!
//! Machines and designs are TOML files. Reading one yields a complete value, with every default
//! filled in; that value, not the text, goes into the report. Unknown keys are errors that name
//! the place and offer the nearest known key.

mod age;
mod design;
mod holes;
mod iommu;
mod machine;
mod network;
mod ranger;
mod regions;
mod run;

use std::path::PathBuf;

use contigua_frames::Placement;
use contigua_units::ranges::Validate;
use serde::Deserialize;

pub use self::age::Age;
pub(crate) use self::age::PROFILES;
pub use self::design::{
    DesignConfig, HostConfig, LlcMigration, MigrationConfig, Shootdown, SoftwareMigration,
};
pub use self::holes::Holes;
pub use self::iommu::IommuConfig;
pub use self::machine::{KernelCosts, MachineConfig, PageTableLevels};
pub use self::network::NetworkConfig;
pub use self::ranger::RangerConfig;
pub use self::regions::{Point, RegionConfig};
pub use self::run::{AdvisedMemory, CONFIDENCE, Detail, RunConfig};
use crate::Error;

/// Reads a machine from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, [`Error::Component`] when a value is
/// beyond all hardware.
pub fn parse_machine(text: &str, path: &str) -> Result<MachineConfig, Error> {
    let machine: MachineConfig = parse(text, path)?;
    machine.check().map_err(|problem| Error::Component {
        machine: path.to_owned(),
        problem,
    })?;
    Ok(machine)
}

/// Reads a design from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, or a key out of its range.
pub fn parse_design(text: &str, path: &str) -> Result<DesignConfig, Error> {
    let mut design: DesignConfig = parse(text, path)?;
    if let (MigrationConfig::Llc(_), Placement::Contiguitas(placement)) =
        (&design.migration, &mut design.placement)
    {
        // What hardware can move is not in the way of a region that shrinks.
        placement.hardware_migration = true;
    }
    Ok(design)
}

/// Reads a file from TOML, and checks every value against the range that its schema has. `path` is
/// where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, or the key and its range.
pub(crate) fn parse<T>(text: &str, path: &str) -> Result<T, Error>
where
    T: for<'de> Deserialize<'de> + Validate,
{
    let problem = |message: String, hint| Error::Config {
        path: PathBuf::from(path),
        hint,
        message,
    };
    let value: T = toml::from_str(text).map_err(|error| {
        let hint = nearest_key(error.message());
        problem(error.to_string().trim_end().to_owned(), hint)
    })?;
    let checked = value.validate();
    checked.map_err(|error| problem(error.to_string(), String::new()))?;
    Ok(value)
}

/// The known key that is most like the unknown one in an error message of serde's, as a sentence.
fn nearest_key(message: &str) -> String {
    const LIKENESS: f64 = 0.7;
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !(message.contains("unknown field") || message.contains("unknown variant")) {
        return String::new();
    }
    let Some(unknown) = quoted.next() else {
        return String::new();
    };
    quoted
        .map(|known| (strsim::jaro_winkler(unknown, known), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, known)| {
            format!("\ndid you mean `{known}`?")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_that_moves_pages_clears_the_way_for_a_region_that_shrinks() {
        let moves = |migration: &str| {
            let text = format!(
                "description = \"x\"\n[translation.base]\n[placement.contiguitas]\n{migration}"
            );
            match parse_design(&text, "d").unwrap().placement {
                Placement::Contiguitas(placement) => placement.hardware_migration,
                other => panic!("{}", other.name()),
            }
        };
        assert!(moves("[migration.llc]"));
        assert!(!moves("[migration.software]"));
        assert!(!moves(""));
    }

    #[test]
    fn a_misspelt_key_is_reported_where_it_stands_with_the_right_one() {
        let text = "description = \"x\"\n\n[translation.thp]\nenabeld = \"always\"\n";
        let error = parse_design(text, "d.toml").unwrap_err().to_string();
        assert!(error.contains("d.toml"), "{error}");
        assert!(error.contains("line 4"), "{error}");
        assert!(error.contains("did you mean `enabled`?"), "{error}");
        let error = parse_design("description = \"x\"\n[translation.thb]\n", "d").unwrap_err();
        assert!(error.to_string().contains("did you mean `thp`?"), "{error}");
    }
}
