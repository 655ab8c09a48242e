//! Lines of `/proc/PID/maps`.

/// What a line says.
pub struct MapsLine<'a> {
    /// The first address.
    pub begin: usize,
    /// The first address behind it.
    pub end: usize,
    /// Whether it may be read.
    pub readable: bool,
    /// Whether it may be executed.
    pub executable: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// The file's path, or what the kernel calls it; nothing if it has no name.
    pub name: &'a [u8],
}

impl<'a> MapsLine<'a> {
    /// Read a line, without its end; `None` if it is none.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let length = rest.iter().position(|&byte| byte == b' ');
            let (word, behind) = rest.split_at(length.unwrap_or(rest.len()));
            rest = behind.trim_ascii_start();
            word
        };
        let (range, access, offset, _device, _inode) = (word(), word(), word(), word(), word());
        let dash = range.iter().position(|&byte| byte == b'-')?;
        Some(Self {
            begin: hexadecimal(&range[..dash])? as usize,
            end: hexadecimal(&range[dash + 1..])? as usize,
            readable: *access.first()? == b'r',
            executable: *access.get(2)? == b'x',
            offset: hexadecimal(offset)?,
            name: rest,
        })
    }
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_line_of_maps_understood() {
        let line = b"7f00-7fa0 r-xp 0001f000 08:01 123    /usr/lib/a b.so (deleted)";
        let line = MapsLine::parse(line).expect("a mapping");
        assert_eq!(
            (line.begin, line.end, line.offset),
            (0x7f00, 0x7fa0, 0x1f000)
        );
        assert!(line.readable && line.executable);
        assert_eq!(line.name, b"/usr/lib/a b.so (deleted)");
        let anonymous = MapsLine::parse(b"1-2 -w-p 00000000 00:00 0 ").expect("a mapping");
        assert!(!anonymous.readable && !anonymous.executable && anonymous.name.is_empty());
        assert!(MapsLine::parse(b"").is_none());
    }
}
