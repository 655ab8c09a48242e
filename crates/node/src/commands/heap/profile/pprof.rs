//! A profile for `pprof`: `profile.proto` of github.com/google/pprof. Protocol buffers are tags, lengths and
//! variable-length numbers.
//!
//! The address of a call is also the number of its location. Names are left to pprof, which finds them in the files of
//! the mappings: those are listed with their build ids.

use std::collections::BTreeSet;

use super::Profile;
use super::names::Names;

/// Functions that allocate for others: pprof hides them and what they call.
const ALLOCATORS: &str = "malloc|malloc_(slowly|missed|counted)|new_(slowly|missed|counted)|calloc|realloc|\
     reallocarray|memalign|aligned_alloc|posix_memalign|p?valloc|operator new.*|_Zn[wa]m.*|\
     __rust_(alloc|alloc_zeroed|realloc)|__r(dl|g)_(alloc|alloc_zeroed|realloc)|contigua_malloc::.*|\
     <contigua_malloc::.*";

/// Fields of `Profile`.
mod profile {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const MAPPING: u32 = 3;
    pub const LOCATION: u32 = 4;
    pub const STRING: u32 = 6;
    pub const DROP_FRAMES: u32 = 7;
    pub const TIME_NANOS: u32 = 9;
    pub const PERIOD_TYPE: u32 = 11;
    pub const PERIOD: u32 = 12;
    pub const COMMENT: u32 = 13;
    pub const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// A message that is being built.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn variable(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field with a number.
    fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.variable(u64::from(field << 3));
        self.variable(value);
        self
    }

    /// A field with bytes, a string or a message.
    fn field(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.variable(u64::from(field << 3 | 2));
        self.variable(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A field with a list of numbers.
    fn numbers(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut list = Self::default();
        values.into_iter().for_each(|value| list.variable(value));
        self.field(field, &list.0)
    }
}

/// A profile that is being built, and its table of strings.
#[derive(Default)]
struct Writer {
    out: Message,
    strings: Vec<String>,
}

impl Writer {
    /// The number of a string.
    fn string(&mut self, text: &str) -> u64 {
        let known = self.strings.iter().position(|known| known == text);
        known.unwrap_or_else(|| {
            self.strings.push(text.to_owned());
            self.strings.len() - 1
        }) as u64
    }

    /// `ValueType`.
    fn kind(&mut self, field: u32, kind: &str, unit: &str) {
        let (kind, unit) = (self.string(kind), self.string(unit));
        let mut message = Message::default();
        message.number(1, kind).number(2, unit);
        self.out.field(field, &message.0);
    }
}

/// Encode a profile.
pub fn encode(profile: &Profile) -> Vec<u8> {
    let mut writer = Writer::default();
    // The first string is empty.
    writer.string("");
    head(&mut writer, profile);
    mappings(&mut writer, profile);
    let frames = profile.stacks.iter().flat_map(|stack| &stack.frames);
    for &address in frames.collect::<BTreeSet<_>>() {
        let mapping = profile.mapping_of(address).map_or(0, |index| index + 1);
        let mut message = Message::default();
        message
            .number(1, address)
            .number(2, mapping as u64)
            .number(3, address);
        writer.out.field(profile::LOCATION, &message.0);
    }
    samples(&mut writer, profile);
    for text in &writer.strings {
        writer.out.field(profile::STRING, text.as_bytes());
    }
    writer.out.0
}

fn head(writer: &mut Writer, profile: &Profile) {
    for (kind, unit) in [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ] {
        writer.kind(profile::SAMPLE_TYPE, kind, unit);
    }
    writer.kind(profile::PERIOD_TYPE, "space", "bytes");
    let (allocators, shown) = (writer.string(ALLOCATORS), writer.string("inuse_space"));
    let about = writer.string(&profile.about);
    writer
        .out
        .number(profile::PERIOD, profile.rate)
        .number(profile::DROP_FRAMES, allocators)
        .number(profile::DEFAULT_SAMPLE_TYPE, shown)
        .number(profile::TIME_NANOS, profile.nanoseconds)
        .number(profile::COMMENT, about);
}

fn mappings(writer: &mut Writer, profile: &Profile) {
    let mut names = Names::default();
    for (number, mapping) in (1..).zip(&profile.mappings) {
        let name = if mapping.name.is_empty() {
            "//anon"
        } else {
            &mapping.name
        };
        let mut message = Message::default();
        message
            .number(1, number)
            .number(2, mapping.begin)
            .number(3, mapping.end)
            .number(4, mapping.offset)
            .number(5, writer.string(name));
        if let Some(id) = names.build_id(mapping) {
            message.number(6, writer.string(id));
        }
        writer.out.field(profile::MAPPING, &message.0);
    }
}

fn samples(writer: &mut Writer, profile: &Profile) {
    let bytes = writer.string("bytes");
    for stack in &profile.stacks {
        let values = profile.values(stack);
        let mut label = Message::default();
        label
            .number(1, bytes)
            .number(3, stack.size)
            .number(4, bytes);
        let mut message = Message::default();
        message
            .numbers(1, stack.frames.iter().copied())
            .numbers(
                2,
                [
                    values.objects,
                    values.bytes,
                    values.live_objects,
                    values.live_bytes,
                ],
            )
            .field(3, &label.0);
        writer.out.field(profile::SAMPLE, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::SMALL;
    use super::*;

    /// A field of a message: its number, and a number or bytes.
    #[derive(Debug, PartialEq)]
    enum Value {
        Number(u64),
        Bytes(Vec<u8>),
    }

    fn variable(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        panic!("a number of more than 64 bits");
    }

    fn fields(mut bytes: &[u8]) -> Vec<(u32, Value)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = variable(&mut bytes);
            let value = match tag & 7 {
                0 => Value::Number(variable(&mut bytes)),
                2 => {
                    let length = variable(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push(((tag >> 3) as u32, value));
        }
        fields
    }

    #[test]
    fn pprof_varints_have_seven_bits_a_byte() {
        let mut message = Message::default();
        message.number(1, 300).field(2, b"ab");
        assert_eq!(message.0, [8, 0xac, 2, 0x12, 2, b'a', b'b']);
    }

    #[test]
    fn pprof_encoding_round_trips() {
        let all = fields(&encode(&Profile::parse(SMALL).unwrap()));
        let messages = |wanted| {
            let found = all.iter().filter(move |(field, _)| *field == wanted);
            found.map(|(_, value)| match value {
                Value::Bytes(bytes) => bytes.clone(),
                Value::Number(number) => panic!("{number}"),
            })
        };
        let strings: Vec<_> = messages(profile::STRING)
            .map(|text| String::from_utf8(text).unwrap())
            .collect();
        assert_eq!(strings[0], "");
        let text = |value: &Value| match value {
            Value::Number(number) => strings[*number as usize].as_str(),
            Value::Bytes(_) => panic!("no number"),
        };
        let kinds: Vec<_> = messages(profile::SAMPLE_TYPE)
            .map(|kind| text(&fields(&kind)[0].1).to_owned())
            .collect();
        let expected = [
            "alloc_objects",
            "alloc_space",
            "inuse_objects",
            "inuse_space",
        ];
        assert_eq!(kinds, expected);
        assert!(all.contains(&(profile::PERIOD, Value::Number(1))));
        assert!(all.contains(&(profile::TIME_NANOS, Value::Number(99))));
        let locations: Vec<_> = messages(profile::LOCATION).collect();
        assert_eq!(locations.len(), 3);
        assert_eq!(
            fields(&locations[0])[1].1,
            Value::Number(1),
            "the first mapping"
        );
        let mappings: Vec<_> = messages(profile::MAPPING).collect();
        assert_eq!(text(&fields(&mappings[0])[4].1), "/bin/a b");
        let samples: Vec<_> = messages(profile::SAMPLE).collect();
        let first = fields(&samples[0]);
        let list = |field: &(u32, Value)| {
            let Value::Bytes(bytes) = &field.1 else {
                panic!("{field:?}")
            };
            let (mut bytes, mut found) = (&bytes[..], Vec::new());
            while !bytes.is_empty() {
                found.push(variable(&mut bytes));
            }
            found
        };
        assert_eq!(list(&first[0]), [0x1010, 0x1020]);
        assert_eq!(list(&first[1]), [5, 5120, 3, 3072]);
        let Value::Bytes(label) = &first[2].1 else {
            panic!("{first:?}")
        };
        assert_eq!(fields(label)[1].1, Value::Number(1024));
    }
}
