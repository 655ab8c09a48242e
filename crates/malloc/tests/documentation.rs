//! Is everything documented that a C program can call, set or ask for? The header and the man page are compared with
//! what the library knows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use contigua_malloc::control::SETTINGS;
use contigua_telemetry::Page;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).expect(name)
}

fn header() -> String {
    read("include/contigua_malloc.h")
}

/// A section of the man page.
fn section(title: &str) -> String {
    let page = read("man/contigua_malloc.3");
    let (_, rest) = page.split_once(&format!(".SH {title}\n")).expect(title);
    rest.split("\n.SH ").next().expect(title).to_owned()
}

/// Names that follow `before` in a text.
fn names_after<'a>(text: &'a str, before: &'a str) -> BTreeSet<&'a str> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(before)
        .skip(1)
        .map(|rest| {
            rest.split(|letter| !is_name(letter))
                .next()
                .unwrap_or_default()
        })
        .collect()
}

#[test]
fn is_every_function_declared_explained_and_in_the_man_page() {
    let source = read("src/c_api.rs");
    let functions = names_after(&source, "extern \"C\" fn contigua_malloc_");
    assert!(functions.len() > 10, "{functions:?}");
    let header = header();
    let declared: BTreeSet<_> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with(" *"))
        .flat_map(|line| names_after(line, "contigua_malloc_"))
        .collect();
    assert_eq!(declared, functions);
    // Each has a comment of its own right before it.
    let lines: Vec<_> = header.lines().collect();
    for (before, line) in lines.iter().zip(&lines[1..]) {
        let is_function = line.ends_with(");") && line.contains("contigua_malloc_");
        assert!(!is_function || before.ends_with("*/"), "{line}");
    }
    let (synopsis, description) = (section("SYNOPSIS"), section("DESCRIPTION"));
    assert_eq!(names_after(&synopsis, "contigua_malloc_"), functions);
    for function in functions {
        let paragraph = format!("\n.B contigua_malloc_{function}\n");
        assert!(description.contains(&paragraph), "{function}");
    }
}

#[test]
fn is_every_setting_in_the_header_and_the_man_page() {
    let header = header();
    let (_, list) = header
        .split_once("ENOENT: there is none of this name.")
        .expect("a list");
    let list = list.split("*/").next().expect("its end");
    let description = section("DESCRIPTION");
    for setting in SETTINGS {
        let name = setting.name;
        let line = list.lines().find(|line| {
            let names = line.trim_start_matches([' ', '*']).split("  ").next();
            names.is_some_and(|names| names.split(", ").any(|known| known == name))
        });
        let line = line.unwrap_or_else(|| panic!("{name} is not in the header"));
        assert_eq!(
            line.contains("(read only)"),
            setting.is_read_only(),
            "{line}"
        );
        let words = || description.split([' ', '\n']);
        assert!(
            words().any(|word| word == name),
            "{name} is not in the man page"
        );
    }
    // And nothing else.
    let listed = list
        .lines()
        .filter(|line| line.starts_with(" *   "))
        .count();
    let in_pairs = list.matches(", soft_limit").count();
    assert_eq!(listed + in_pairs, SETTINGS.len() + 1, "{list}");
}

#[test]
fn is_every_figure_in_the_man_page_as_the_library_explains_it() {
    let figures = Page {
        figures: Page::NAMES.len() as u32,
        ..Page::default()
    };
    let documented: Vec<_> = section("STATISTICS")
        .split(".TP\n")
        .skip(1)
        .map(|entry| entry.trim_end().to_owned())
        .collect();
    let expected: Vec<_> = figures
        .known()
        .map(|figure| format!(".B {}\n{}", figure.name, figure.help))
        .collect();
    assert_eq!(documented, expected);
}

#[test]
fn is_every_variable_of_the_environment_in_the_man_page() {
    let source = read("src/settings.rs");
    let (_, set) = source
        .split_once("fn set(&mut self, name: &[u8]")
        .expect("a function");
    let set = set.split("\n    }\n").next().expect("its end");
    // Names are in capitals, values are not.
    let known: BTreeSet<_> = names_after(set, "b\"")
        .into_iter()
        .filter(|name| name.starts_with(|letter: char| letter.is_ascii_uppercase()))
        .collect();
    let environment = section("ENVIRONMENT");
    let documented: BTreeSet<_> = environment
        .split(".TP\n")
        .skip(1)
        .filter_map(|entry| entry.lines().next())
        .flat_map(|line| names_after(line, "CONTIGUA_MALLOC_"))
        .collect();
    assert_eq!(documented, known);
    assert!(known.len() >= 18, "{known:?}");
    let (table, _) = source.split_once("mod dump;").expect("its documentation");
    assert_eq!(names_after(table, "//! | `"), known);
}
