//! JSON schemas of quantities as files write them: text with a unit, or a plain count.

extern crate alloc;

use alloc::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Bytes, Cycles, Megahertz, Nanoseconds};

/// A number, a space perhaps, and one of the units that the parser knows.
macro_rules! text {
    ($($name:ident: $description:literal, $pattern:literal, $examples:expr;)*) => {$(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "description": $description,
                    "type": "string",
                    "pattern": $pattern,
                    "examples": $examples,
                })
            }
        }
    )*};
}

text! {
    Bytes: "An amount of memory; units are binary, whatever their spelling.",
        r"^[0-9]+(\.[0-9]+)? ?([bB]|[kKmMgGtT]([iI]?[bB])?)?$", ["4KiB", "8G", "1.5MiB"];
    Nanoseconds: "A duration with its unit.",
        r"^[0-9]+(\.[0-9]+)? ?(ns|us|ms|s|min|h)$", ["80ns", "2us", "10ms", "60s"];
    Megahertz: "A clock frequency, in whole megahertz.",
        r"^[0-9]+(\.[0-9]+)? ?([mM]|[gG])[hH][zZ]$", ["2200MHz", "2.2GHz"];
}

impl JsonSchema for Cycles {
    fn schema_name() -> Cow<'static, str> {
        "Cycles".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of clock cycles of the simulated core.",
            "type": "integer",
            "minimum": 0,
        })
    }
}
