//! Text of the operating system's in documents.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A path, an argument or a variable: JSON text of any bytes, also those that are no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OsText(OsString);

impl From<OsText> for OsString {
    fn from(text: OsText) -> Self {
        text.0
    }
}

impl From<OsText> for PathBuf {
    fn from(text: OsText) -> Self {
        Self::from(text.0)
    }
}

impl JsonSchema for OsText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OsText".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = String::json_schema(generator);
        schema.insert("format".into(), "path".into());
        schema
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = OsText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<OsText, E> {
                if bytes.contains(&0) {
                    return Err(E::custom("text with a NUL byte"));
                }
                Ok(OsText(OsString::from_vec(bytes.to_vec())))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OsText, E> {
                self.visit_bytes(text.as_bytes())
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn text_of_any_bytes_but_nul_is_read() {
        let read = |text: &[u8]| serde_json::from_slice::<Vec<OsText>>(text);
        let found = read(b"[\"a\\n\", \"\xff\"]").unwrap();
        assert_eq!(found[0].0, "a\n");
        assert_eq!(found[1].0.as_encoded_bytes(), b"\xff");
        let error = read(b"[\"a\\u0000b\"]").unwrap_err().to_string();
        assert!(error.starts_with("text with a NUL byte"), "{error}");
        assert!(read(b"[1]").is_err());
        let keys: BTreeMap<OsText, OsText> = serde_json::from_slice(b"{\"\xfe\": \"x\"}").unwrap();
        assert_eq!(
            keys.first_key_value().unwrap().0.0.as_encoded_bytes(),
            b"\xfe"
        );
    }
}
