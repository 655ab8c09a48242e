//! Source of memory of QEMU's own allocator.
//!
//! Since version 10.0, QEMU and the program share a range of addresses, in which what QEMU maps at another
//! time moves what the program maps. Two things do: glibc maps an arena of 64 MiB for a thread that
//! allocates while another one does, and maps each large block by itself; which blocks find a place among
//! freed ones depends on when QEMU's thread for RCU has freed them. So QEMU has a single arena, which
//! grows by `brk` alone.

/// glibc's environment variables (mallopt(3)), and their values for QEMU.
const SETTINGS: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_MAX_", "0")];

/// A variable's value for QEMU, and QEMU's option that leaves the program its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// Its value for QEMU.
    pub value: &'static str,
    /// The option and its argument.
    pub option: [Vec<u8>; 2],
}

/// The settings, given what finds a variable's value for the program.
///
/// With a comma, which would end the option's argument, a value is no number, and glibc ignores it.
pub fn settings(mut own: impl FnMut(&str) -> Option<Vec<u8>>) -> [Setting; 2] {
    SETTINGS.map(|(name, value)| {
        let own = own(name).filter(|value| !value.contains(&b','));
        let option = match own {
            Some(own) => [b"-E".to_vec(), [name.as_bytes(), b"=", &own].concat()],
            None => [b"-U".to_vec(), name.into()],
        };
        Setting {
            name,
            value,
            option,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_their_own_values_or_none() {
        let options = |own: Option<&[u8]>| {
            settings(|name| {
                own.filter(|_| name == "MALLOC_ARENA_MAX")
                    .map(<[u8]>::to_vec)
            })
            .map(|setting| setting.option.map(|part| String::from_utf8(part).unwrap()))
        };
        let rest = ["-U".to_owned(), "MALLOC_MMAP_MAX_".to_owned()];
        let none = ["-U".to_owned(), "MALLOC_ARENA_MAX".to_owned()];
        assert_eq!(options(None), [none.clone(), rest.clone()]);
        assert_eq!(options(Some(b"1,A=2")), [none, rest.clone()]);
        let four = ["-E".to_owned(), "MALLOC_ARENA_MAX=4".to_owned()];
        assert_eq!(options(Some(b"4")), [four, rest]);
    }
}
