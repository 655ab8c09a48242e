//! Values against the ranges of their JSON schema, so that a range is written once: at its field.
//!
//! Numbers have `minimum` and `maximum` (schemars' `range`). Quantities are text, for which JSON
//! schemas have no ranges: theirs are `x-minimum` and `x-maximum`, written as files write the
//! quantity (`extend("x-minimum" = "64KiB")`).

extern crate alloc;

use alloc::format;
use alloc::string::{String, ToString};
use core::cmp::Ordering;
use core::fmt;

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::{Bytes, Megahertz, Nanoseconds};

/// A value outside of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The key, with those of the tables around it.
    pub key: String,
    /// The value.
    pub value: String,
    /// The range, in words.
    pub allowed: String,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            value,
            allowed,
        } = self;
        write!(f, "{key} is {value}; it is {allowed}")
    }
}

impl core::error::Error for OutOfRange {}

/// A configuration whose schema has ranges.
pub trait Validate {
    /// Checks every value against its range.
    ///
    /// # Errors
    /// The first value that is out of range.
    fn validate(&self) -> Result<(), OutOfRange>;
}

impl<T: Serialize + JsonSchema> Validate for T {
    fn validate(&self) -> Result<(), OutOfRange> {
        let schema = SchemaGenerator::default().into_root_schema_for::<T>();
        let value = serde_json::to_value(self).map_err(|error| OutOfRange {
            key: T::schema_name().into_owned(),
            value: error.to_string(),
            allowed: "what a file can hold".into(),
        })?;
        let root = schema.as_value();
        Check { root }.value(root, &value, "")
    }
}

struct Check<'a> {
    root: &'a Value,
}

impl<'a> Check<'a> {
    /// Follows a schema's reference, if it is one.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let reference = schema.get("$ref").and_then(Value::as_str);
        let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
        pointer
            .and_then(|pointer| self.root.pointer(pointer))
            .unwrap_or(schema)
    }

    fn value(&self, schema: &'a Value, value: &Value, key: &str) -> Result<(), OutOfRange> {
        bounds(schema, value, key)?;
        let resolved = self.resolve(schema);
        if !core::ptr::eq(resolved, schema) {
            self.value(resolved, value, key)?;
        }
        for branches in ["anyOf", "oneOf"] {
            let branches = schema.get(branches).and_then(Value::as_array);
            let fitting = branches.and_then(|all| all.iter().find(|one| self.fits(one, value)));
            if let Some(branch) = fitting {
                self.value(branch, value, key)?;
            }
        }
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    let property = schema.get("properties").and_then(|all| all.get(name));
                    if let Some(property) = property {
                        let dot = if key.is_empty() { "" } else { "." };
                        self.value(property, field, &format!("{key}{dot}{name}"))?;
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(schema) = schema.get("items") {
                        self.value(schema, item, &format!("{key}[{index}]"))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true if a value has the form of one branch of an enumeration.
    fn fits(&self, schema: &'a Value, value: &Value) -> bool {
        let schema = self.resolve(schema);
        let is = |name: &str| match name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            _ => value.is_object(),
        };
        let has_type = match schema.get("type") {
            Some(Value::String(name)) => is(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is),
            _ => true,
        };
        let is_known = |name: &String| {
            schema
                .get("properties")
                .is_some_and(|p| p.get(name).is_some())
        };
        let has_keys = value
            .as_object()
            .is_none_or(|fields| fields.keys().all(is_known));
        let alternatives = |word: &str| schema.get(word).and_then(Value::as_array);
        let has_branch = alternatives("oneOf").or(alternatives("anyOf"));
        let is_one = schema.get("const").is_none_or(|known| known == value)
            && alternatives("enum").is_none_or(|known| known.contains(value));
        match has_branch {
            Some(branches) => branches.iter().any(|branch| self.fits(branch, value)),
            None => has_type && has_keys && is_one,
        }
    }
}

/// Checks a value against the limits that are written at its place.
fn bounds(schema: &Value, value: &Value, key: &str) -> Result<(), OutOfRange> {
    let limit = |name: &str| schema.get(name).filter(|limit| !limit.is_null());
    let (least, most) = if value.is_string() {
        (limit("x-minimum"), limit("x-maximum"))
    } else if value.is_array() {
        (limit("minItems"), limit("maxItems"))
    } else {
        (limit("minimum"), limit("maximum"))
    };
    // A number that is not finite has no form in JSON.
    let is_number = matches!(schema.get("type"), Some(Value::String(name)) if name == "number");
    let is_lost = value.is_null() && is_number;
    let is_below = least.is_some_and(|least| order(value, least) == Some(Ordering::Less));
    let is_above = most.is_some_and(|most| order(value, most) == Some(Ordering::Greater));
    let is_between = limit("x-power-of-two").is_some()
        && !is_below
        && !is_above
        && number(value).is_some_and(|number| number > 0 && !number.is_power_of_two());
    if !is_lost && !is_below && !is_above && !is_between {
        return Ok(());
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Err(OutOfRange {
        key: key.into(),
        value: match value {
            _ if is_lost => "no finite number".into(),
            Value::Array(items) => format!("a list of {}", items.len()),
            value => text(value),
        },
        allowed: match (least, most) {
            _ if is_between => "a power of two".into(),
            (Some(least), Some(most)) => format!("{} to {}", text(least), text(most)),
            (Some(least), None) => format!("at least {}", text(least)),
            (None, Some(most)) => format!("at most {}", text(most)),
            (None, None) => "a number".into(),
        },
    })
}

/// Compares a value with a limit.
fn order(value: &Value, limit: &Value) -> Option<Ordering> {
    match (value, limit) {
        (Value::String(value), Value::String(limit)) => {
            Some(quantity(value)?.cmp(&quantity(limit)?))
        }
        (Value::Array(items), limit) => Some((items.len() as u64).cmp(&limit.as_u64()?)),
        (value, limit) => match (value.as_u64(), limit.as_u64()) {
            (Some(value), Some(limit)) => Some(value.cmp(&limit)),
            _ => value.as_f64()?.partial_cmp(&limit.as_f64()?),
        },
    }
}

/// A whole number, or the units of a quantity.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| quantity(value.as_str()?))
}

/// The number of units in the text of a quantity; no text is one of two kinds.
fn quantity(text: &str) -> Option<u64> {
    let bytes = text.parse::<Bytes>().map(Bytes::get);
    let nanoseconds = || text.parse::<Nanoseconds>().map(Nanoseconds::get);
    let megahertz = || text.parse::<Megahertz>().map(|clock| clock.get().into());
    bytes
        .or_else(|_| nanoseconds())
        .or_else(|_| megahertz())
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cycles;
    use alloc::vec::Vec;

    #[derive(Clone, Serialize, JsonSchema)]
    struct Inner {
        #[schemars(range(min = 2, max = 3))]
        ways: u32,
        #[schemars(range(min = 0.0, max = 1.0))]
        share: f64,
    }

    #[derive(Clone, Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Choice {
        Nothing,
        Inner(Inner),
    }

    #[derive(Clone, Serialize, JsonSchema)]
    struct Outer {
        #[schemars(extend("x-minimum" = "4KiB", "x-maximum" = "1MiB", "x-power-of-two" = true))]
        size: Bytes,
        #[schemars(extend("x-maximum" = "1s"))]
        time: Option<Nanoseconds>,
        #[schemars(extend("maximum" = 9))]
        latency: Cycles,
        #[schemars(length(max = 2))]
        list: Vec<Inner>,
        choice: Choice,
    }

    fn inner(ways: u32, share: f64) -> Inner {
        Inner { ways, share }
    }

    fn sound() -> Outer {
        Outer {
            size: Bytes::new(4096),
            time: Some(Nanoseconds::new(1_000_000_000)),
            latency: Cycles::new(9),
            list: [inner(2, 0.0), inner(3, 1.0)].into(),
            choice: Choice::Inner(inner(2, 0.5)),
        }
    }

    fn problem(change: impl FnOnce(&mut Outer)) -> String {
        let mut outer = sound();
        change(&mut outer);
        outer
            .validate()
            .map_or_else(|e| e.to_string(), |()| String::new())
    }

    #[test]
    fn values_at_their_limits_are_in_range() {
        assert_eq!(problem(|_| ()), "");
        assert_eq!(problem(|o| o.time = None), "");
        assert_eq!(problem(|o| o.choice = Choice::Nothing), "");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_key_and_its_limits() {
        for (found, expected) in [
            (
                problem(|o| o.size = Bytes::new(4095)),
                "size is 4095B; it is 4KiB to 1MiB",
            ),
            (
                problem(|o| o.size = Bytes::new(2 << 20)),
                "size is 2MiB; it is 4KiB to 1MiB",
            ),
            (
                problem(|o| o.size = Bytes::new(12 << 10)),
                "size is 12KiB; it is a power of two",
            ),
            (
                problem(|o| o.time = Some(Nanoseconds::new(1_000_000_001))),
                "time is 1000000001ns; it is at most 1s",
            ),
            (
                problem(|o| o.latency = Cycles::new(10)),
                "latency is 10; it is at most 9",
            ),
            (
                problem(|o| o.list[1].ways = 1),
                "list[1].ways is 1; it is 2 to 3",
            ),
            (
                problem(|o| o.list.push(inner(2, 0.0))),
                "list is a list of 3; it is at most 2",
            ),
            (
                problem(|o| o.list[0].share = 1.5),
                "list[0].share is 1.5; it is 0.0 to 1.0",
            ),
            (
                problem(|o| o.list[0].share = f64::NAN),
                "list[0].share is no finite number; it is 0.0 to 1.0",
            ),
            (
                problem(|o| o.choice = Choice::Inner(inner(4, 0.0))),
                "choice.inner.ways is 4; it is 2 to 3",
            ),
        ] {
            assert_eq!(found, expected);
        }
    }
}
