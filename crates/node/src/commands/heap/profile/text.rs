//! A profile as text: call stacks, those with the most memory in use first.

use std::cmp::Reverse;
use std::io::{self, Write};

use contigua_input::Printable;

use super::names::Names;
use super::{Profile, Values};
use crate::text::{count, size};

/// Write a profile.
///
/// # Errors
/// When it cannot be written.
pub fn write(out: &mut dyn Write, profile: &Profile) -> io::Result<()> {
    let out = &mut Printable(out);
    let mut names = Names::default();
    let mut stacks: Vec<_> = profile
        .stacks
        .iter()
        .map(|stack| (profile.values(stack), stack))
        .collect();
    stacks.sort_by_key(|(values, _)| Reverse((values.live_bytes, values.bytes)));
    let sum = |what: fn(&Values) -> u64| stacks.iter().map(|(values, _)| what(values)).sum();
    writeln!(out, "{}", profile.about)?;
    writeln!(
        out,
        "{} in use in {} objects; {} allocated in {} objects; one sample in {}",
        size(sum(|values| values.live_bytes)),
        count(sum(|values| values.live_objects)),
        size(sum(|values| values.bytes)),
        count(sum(|values| values.objects)),
        size(profile.rate)
    )?;
    for (values, stack) in stacks {
        writeln!(
            out,
            "\n{} in use in {} objects of {}; {} allocated in {} objects",
            size(values.live_bytes),
            count(values.live_objects),
            size(stack.size),
            size(values.bytes),
            count(values.objects)
        )?;
        for &frame in &stack.frames {
            let mapping = profile.mapping_of(frame);
            let name = match mapping.map(|index| &profile.mappings[index]) {
                Some(mapping) => names.function(mapping, frame),
                None => "?".to_owned(),
            };
            writeln!(out, "  {frame:#x} {name}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::SMALL;
    use super::*;

    #[test]
    fn stacks_are_sorted_by_memory() {
        let profile = Profile::parse(SMALL).unwrap();
        let mut out = Vec::new();
        write(&mut out, &profile).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "contigua-malloc 0.1.0: process 7, nanoseconds 99, lost samples 0\n\
            3.00 kB in use in 3 objects; 9.00 kB allocated in 6 objects; one sample in 1 B\n\
            \n\
            3.00 kB in use in 3 objects of 1.00 kB; 5.00 kB allocated in 5 objects\n\
            \x20 0x1010 /bin/a b+0x10\n\
            \x20 0x1020 /bin/a b+0x20\n\
            \n\
            0 B in use in 0 objects of 4.00 kB; 4.00 kB allocated in 1 objects\n\
            \x20 0x1030 /bin/a b+0x30\n";
        assert_eq!(text, expected);
    }
}
