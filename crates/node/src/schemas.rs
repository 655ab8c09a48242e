//! The JSON schemas of what commands print and write, in `docs/reference`.

use std::path::Path;

use schemars::{JsonSchema, Schema};

use crate::commands::apply::Advice;
use crate::commands::guard::Status;
use crate::commands::heap::ProcessReport;
use crate::commands::tlb::WalkReport;
use crate::guard::state::State;

fn written<T: JsonSchema>() -> Schema {
    let settings = schemars::generate::SchemaSettings::default().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// `CONTIGUA_WRITE_SCHEMAS=1` writes the files instead (`make reference`).
#[test]
fn are_the_schemas_in_the_documentation_those_of_the_types() {
    let schemas = [
        ("scan", written::<contigua_live::report::Report>()),
        ("advice", written::<Advice>()),
        ("heap", written::<Vec<ProcessReport<'_>>>()),
        ("tlb", written::<WalkReport>()),
        ("guard-status", written::<Status>()),
        ("guard-state", written::<State>()),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, schema) in schemas {
        let file = folder.join(format!("node-{name}.schema.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("CONTIGUA_WRITE_SCHEMAS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(known == text, "{}: run make reference", file.display());
    }
}
