//! Is every parameter of a design, machine or profile checked? Generated from the schemas: each is
//! set below its least and above its largest value.

use contigua_machine::ageing::parse_profile;
use contigua_machine::config::{parse_design, parse_machine};
use contigua_machine::{Error, schema};
use contigua_units::{Bytes, Megahertz, Nanoseconds};
use serde_json::Value as Json;
use toml::Value;

/// Generic values have no range of their own; `Profile` checks them.
const CHECKED_ELSEWHERE: [&str; 2] = ["kernel.orders.value", "kernel.lifetimes.value"];

struct Schemas<'a> {
    root: &'a Json,
}

/// All schemas that apply to one value.
type Applied = Vec<Json>;

/// A document with one value that is out of range, and its key.
type Wrong = (Value, String);

fn get<'a>(applied: &'a Applied, key: &str) -> Option<&'a Json> {
    applied.iter().find_map(|schema| schema.get(key))
}

fn is_null(schema: &Json) -> bool {
    schema["type"] == "null"
}

impl Schemas<'_> {
    fn applied(&self, schema: &Json) -> Applied {
        let (mut schema, mut all) = (schema, vec![schema.clone()]);
        while let Some(reference) = schema["$ref"].as_str() {
            schema = self.root.pointer(&reference[1..]).unwrap();
            all.push(schema.clone());
        }
        all
    }

    /// The alternatives, without `null`, each with what stands beside them.
    fn branches(&self, applied: &Applied) -> Vec<Applied> {
        for (place, schema) in applied.iter().enumerate() {
            for word in ["oneOf", "anyOf"] {
                let Some(all) = schema.get(word).and_then(Json::as_array) else {
                    continue;
                };
                let mut beside = applied.clone();
                beside[place].as_object_mut().unwrap().remove(word);
                let all = all.iter().filter(|branch| !is_null(branch));
                let with = |branch| [beside.clone(), self.applied(branch)].concat();
                return all.map(with).collect();
            }
        }
        Vec::new()
    }

    fn properties(&self, applied: &Applied) -> Vec<(String, Applied)> {
        let all = applied
            .iter()
            .filter_map(|schema| schema["properties"].as_object());
        let mut found: Vec<(String, Applied)> = Vec::new();
        for (name, schema) in all.flatten() {
            let more = self.applied(schema);
            match found.iter_mut().find(|(known, _)| known == name) {
                Some((_, schemas)) => schemas.extend(more),
                None => found.push((name.clone(), more)),
            }
        }
        found
    }

    /// A value that is in range, with every parameter that there is.
    fn example(&self, applied: &Applied) -> Value {
        let kind = match get(applied, "type") {
            Some(Json::Array(kinds)) => kinds[0].as_str(),
            kind => kind.and_then(Json::as_str),
        };
        if let Some(branch) = self.branches(applied).first() {
            return self.example(branch);
        }
        let text = |key: &str| get(applied, key).and_then(Json::as_str).map(str::to_owned);
        if let Some(only) = text("const") {
            return Value::String(only);
        }
        if let Some(known) = get(applied, "enum") {
            return Value::try_from(&known[0]).unwrap();
        }
        match kind {
            Some("object") => {
                let properties = self.properties(applied).into_iter();
                let fields = properties.map(|(name, of)| (name, self.example(&of)));
                Value::Table(fields.collect())
            }
            Some("array") => {
                let items = self.applied(get(applied, "items").unwrap());
                Value::Array(vec![self.example(&items)])
            }
            Some("string") => {
                let examples =
                    get(applied, "examples").map(|all| all[0].as_str().unwrap().to_owned());
                let text = text("x-minimum").or(text("x-maximum")).or(examples);
                Value::String(text.unwrap_or_else(|| "x".to_owned()))
            }
            Some("boolean") => Value::Boolean(false),
            Some("integer") => {
                Value::Integer(get(applied, "minimum").map_or(0, |least| least.as_i64().unwrap()))
            }
            Some("number") => {
                Value::Float(get(applied, "maximum").map_or(1.0, |most| most.as_f64().unwrap()))
            }
            other => panic!("{other:?}: {applied:?}"),
        }
    }

    /// Every way to be wrong in one value. `unbounded` gets the keys that have no range.
    fn wrong(&self, applied: &Applied, key: &str, unbounded: &mut Vec<String>) -> Vec<Wrong> {
        let branches = self.branches(applied);
        if !branches.is_empty() {
            let each = branches.iter();
            return each
                .flat_map(|branch| self.wrong(branch, key, unbounded))
                .collect();
        }
        let limits = ["minimum", "maximum"].map(|limit| get(applied, limit));
        let texts = ["x-minimum", "x-maximum"].map(|limit| get(applied, limit));
        let kind = match get(applied, "type") {
            Some(Json::Array(kinds)) => kinds[0].as_str(),
            kind => kind.and_then(Json::as_str),
        };
        let here = |value| (value, key.to_owned());
        let is_quantity = get(applied, "pattern").is_some();
        match kind {
            Some("object") => {
                let example = self.example(applied);
                let mut all = Vec::new();
                for (name, schemas) in self.properties(applied) {
                    let dot = if key.is_empty() { "" } else { "." };
                    let key = format!("{key}{dot}{name}");
                    for (value, key) in self.wrong(&schemas, &key, unbounded) {
                        let mut whole = example.clone();
                        whole[&name] = value;
                        all.push((whole, key));
                    }
                }
                all
            }
            Some("array") => {
                let items = self.applied(get(applied, "items").unwrap());
                let all = self.wrong(&items, key, unbounded).into_iter();
                let mut all: Vec<Wrong> = all
                    .map(|(value, key)| (Value::Array(vec![value]), key))
                    .collect();
                if let Some(most) = get(applied, "maxItems").and_then(Json::as_u64) {
                    let many = vec![self.example(&items); most as usize + 1];
                    all.push(here(Value::Array(many)));
                }
                all
            }
            Some("integer") if get(applied, "enum").is_some() => {
                let known = get(applied, "enum").and_then(Json::as_array).unwrap();
                let known = || known.iter().filter_map(Json::as_i64);
                [known().min().unwrap() - 1, known().max().unwrap() + 1]
                    .map(|value| here(Value::Integer(value)))
                    .into()
            }
            Some("integer" | "number") if limits.contains(&None) => {
                unbounded.push(key.to_owned());
                Vec::new()
            }
            Some("string") if is_quantity && texts.contains(&None) => {
                unbounded.push(key.to_owned());
                Vec::new()
            }
            Some("integer") => {
                let [least, most] = limits.map(|limit| limit.unwrap().as_i64().unwrap());
                [least - 1, most + 1]
                    .map(|value| here(Value::Integer(value)))
                    .into()
            }
            Some("number") => {
                let [least, most] = limits.map(|limit| limit.unwrap().as_f64().unwrap());
                [least - 0.5, most + 0.5, f64::NAN, f64::INFINITY]
                    .map(|value| here(Value::Float(value)))
                    .into()
            }
            Some("string") if is_quantity => {
                let [least, most] = texts.map(|limit| limit.unwrap().as_str().unwrap());
                let all = [neighbor(least, -1), neighbor(most, 1)]
                    .into_iter()
                    .flatten();
                all.map(|text| here(Value::String(text))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A quantity one unit away from another one; nothing is below zero.
fn neighbor(text: &str, step: i64) -> Option<String> {
    let (value, unit) = if let Ok(bytes) = text.parse::<Bytes>() {
        (bytes.get(), "B")
    } else if let Ok(time) = text.parse::<Nanoseconds>() {
        (time.get(), "ns")
    } else {
        (u64::from(text.parse::<Megahertz>().unwrap().get()), "MHz")
    };
    Some(format!("{}{unit}", value.checked_add_signed(step)?))
}

/// Tries all, and returns how many there are.
fn check<T>(schema: &schemars::Schema, parse: impl Fn(&str) -> Result<T, Error>) -> usize {
    let schemas = Schemas {
        root: schema.as_value(),
    };
    let applied = schemas.applied(schemas.root);
    let right = toml::to_string(&schemas.example(&applied)).unwrap();
    if let Err(error) = parse(&right) {
        panic!("the example is refused: {error}\n{right}");
    }
    let mut unbounded = Vec::new();
    let wrong = schemas.wrong(&applied, "", &mut unbounded);
    unbounded.retain(|key| !CHECKED_ELSEWHERE.contains(&key.as_str()));
    assert!(unbounded.is_empty(), "no range: {unbounded:?}");
    for (document, key) in &wrong {
        let name = key.rsplit('.').next().unwrap();
        let text = toml::to_string(document).unwrap();
        match parse(&text) {
            Ok(_) => panic!("{key} was taken:\n{text}"),
            Err(error) => assert!(error.to_string().contains(name), "{key}: {error}"),
        }
    }
    wrong.len()
}

#[test]
fn every_parameter_of_a_design_out_of_its_range_is_refused() {
    let count = check(&schema::design(), |text| parse_design(text, "d.toml"));
    assert!(count > 100, "{count} values");
}

#[test]
fn every_parameter_of_a_machine_out_of_its_range_is_refused() {
    let count = check(&schema::machine(), |text| parse_machine(text, "m.toml"));
    assert!(count > 200, "{count} values");
}

#[test]
fn every_parameter_of_a_profile_out_of_its_range_is_refused() {
    let count = check(&schema::profile(), |text| parse_profile(text, "p.toml"));
    assert!(count > 50, "{count} values");
}

#[test]
fn a_refusal_names_key_value_and_range() {
    for (table, expected) in [
        ("colt.run_log2 = 6", "colt.run_log2 is 6; it is 0 to 3"),
        (
            "amd-coalescing.group_log2 = 0",
            "amd-coalescing.group_log2 is 0; it is 1 to 3",
        ),
        (
            "hugetlb.reserve = 7.5",
            "hugetlb.reserve is 7.5; it is 0.0 to 1.0",
        ),
        (
            "thp.max_ptes_none = 100000",
            "thp.max_ptes_none is 100000; it is 0 to 511",
        ),
        ("range.entries = 0", "range.entries is 0; it is 1 to 1024"),
    ] {
        let text = format!("description = \"x\"\ntranslation.{table}\n");
        let error = parse_design(&text, "d.toml").unwrap_err().to_string();
        assert_eq!(error, format!("d.toml: translation.{expected}"));
    }
}
